"""What a plan of serving says of itself: one line per part."""

from __future__ import annotations

from tpuctl.cli.console import counted
from tpuctl.modelspec import num_parameters
from tpuctl.plan.budget import gib
from tpuctl.plan.schema import EmbeddingPlan, ModelsPlan, ServingPlan
from tpuctl.plan.serve_schema import AddressPlan, EndpointPlan
from tpuctl.plan.weights_schema import ServedAdapterPlan


def describe_serving(plan: ServingPlan) -> list[tuple[str, str]]:
    """The parts of an endpoint."""
    handed = [("handed to", "vLLM by Ray Serve LLM; `tpuctl serve config` prints how")] if plan.handover else []
    named = f"{plan.endpoint.name} at {_address(plan.endpoint)}; {_limits(plan.endpoint)}"
    return [*_model(plan), ("endpoint", named), *handed]


def describe_models(plan: ModelsPlan) -> list[tuple[str, str]]:
    """The parts of an endpoint of several models, one model after the other."""
    lines: list[tuple[str, str]] = []
    for one in map(plan.plan_of, plan.models):
        lines += [("serves", f"{one.endpoint.name}; {_limits(one.endpoint)}"), *_model(one)]
    return [*lines, ("endpoint", _address(plan.address))]


def _model(plan: ServingPlan) -> list[tuple[str, str]]:
    engine, model = plan.engine, plan.model
    heads = f"{model.num_heads}/{model.num_kv_heads} heads × {model.head_dim}"
    size = f"{num_parameters(model):,} parameters"
    page = f"{counted(engine.page_size, 'token')}{f' in {engine.kv_dtype}' if engine.kv_dtype else ''}"
    pages = f"{counted(engine.num_pages, 'page')} of {page}, {gib(engine.num_pages * engine.page_bytes)}"
    drafts = f"; up to {counted(engine.speculate, 'draft token')} a step" if engine.speculate else ""
    room = f"{counted(engine.max_sequences, 'sequence')} of at most {engine.max_length:,} tokens; {pages}{drafts}"
    numbers = engine.dtype if engine.weights is None else f"{engine.weights} and {engine.dtype}"
    return [
        ("model", f"{model.name}: {size}; hidden {model.hidden_size}, {model.num_layers} layers, {heads}"),
        ("weights", f"{_weights(plan)}, {numbers}, over {counted(plan.mesh.tensor, 'device')}"),
        *(("adapter", _adapter(adapter)) for adapter in plan.adapters),
        ("text", f"tokenizer {plan.text.tokenizer}; chat template {plan.text.chat_template or 'the tokenizer’s'}"),
        ("engine", room),
        ("seed", str(engine.seed)),
    ]


def _weights(plan: ServingPlan) -> str:
    if plan.checkpoint is not None:
        return f"{_step(plan.checkpoint.step)} of {plan.checkpoint.run}"
    return (
        f"drawn from seed {plan.engine.seed}" if plan.weights is None else f"{plan.weights.uri} ({plan.weights.family})"
    )


def _step(step: int | None) -> str:
    return "the newest checkpoint" if step is None else f"step {step}"


def _adapter(adapter: ServedAdapterPlan) -> str:
    source = f"{_step(adapter.step)} of {adapter.uri}" if adapter.is_run else adapter.uri
    lora = adapter.lora
    return f"{adapter.name}: {source}; rank {lora.rank}, alpha {lora.alpha:g} on {', '.join(lora.targets)}"


def describe_embedding(plan: EmbeddingPlan) -> list[tuple[str, str]]:
    """The parts of an encoder's endpoint."""
    encoder = plan.encoder
    pooled = f"{encoder.pooling} of the last states" + (", of length 1" if encoder.normalise else "")
    batches = f"batches of {counted(encoder.batch_rows, 'text')} of at most {encoder.max_length:,} tokens, float32"
    return [
        ("model", f"{encoder.uri}: {encoder.parameters:,} parameters, an encoder"),
        ("vectors", f"{pooled}; {batches}"),
        ("endpoint", f"{plan.endpoint.name} at {_address(plan.endpoint)}; {_limits(plan.endpoint)}"),
    ]


def _address(address: AddressPlan) -> str:
    port = address.port or "any free port"
    keys = "open to all who reach it" if address.is_open else "with API keys"
    scheme = "HTTP" if address.tls_cert is None else "HTTPS"
    return f"{address.host}, port {port} ({scheme}), {keys}"


def _limits(endpoint: EndpointPlan) -> str:
    limits = f"{endpoint.max_waiting:,} may wait, at most {endpoint.timeout_seconds:g} s an answer"
    if not endpoint.is_replicated:
        return limits
    few = "" if endpoint.min_replicas == endpoint.max_replicas else f"{endpoint.min_replicas} to "
    return f"{limits}; {few}{counted(endpoint.max_replicas, 'replica')}"
