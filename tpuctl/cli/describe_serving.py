"""What a plan of serving says of itself: one line per part."""

from __future__ import annotations

from tpuctl.cli.console import counted
from tpuctl.modelspec import num_parameters
from tpuctl.plan.budget import gib
from tpuctl.plan.schema import ServingPlan


def describe_serving(plan: ServingPlan) -> list[tuple[str, str]]:
    """The parts of an endpoint."""
    engine, model = plan.engine, plan.model
    heads = f"{model.num_heads}/{model.num_kv_heads} heads × {model.head_dim}"
    size = f"{num_parameters(model):,} parameters"
    weights = (
        f"drawn from seed {engine.seed}" if plan.weights is None else f"{plan.weights.uri} ({plan.weights.family})"
    )
    page = f"{counted(engine.page_size, 'token')}, {gib(engine.num_pages * engine.page_bytes)}"
    pages = f"{counted(engine.num_pages, 'page')} of {page}"
    return [
        ("model", f"{model.name}: {size}; hidden {model.hidden_size}, {model.num_layers} layers, {heads}"),
        ("weights", f"{weights}, {engine.dtype}, over {counted(plan.mesh.tensor, 'device')}"),
        ("text", f"tokenizer {plan.text.tokenizer}; chat template {plan.text.chat_template or 'the tokenizer’s'}"),
        ("engine", f"{counted(engine.max_sequences, 'sequence')} of at most {engine.max_length:,} tokens; {pages}"),
        ("seed", str(engine.seed)),
        ("endpoint", _endpoint(plan)),
        *([("handed to", "vLLM by Ray Serve LLM; `tpuctl serve config` prints how")] if plan.handover else []),
    ]


def _endpoint(plan: ServingPlan) -> str:
    endpoint = plan.endpoint
    port = endpoint.port or "any free port"
    keys = "open to all who reach it" if endpoint.is_open else "with API keys"
    limits = f"{endpoint.max_waiting:,} may wait, at most {endpoint.timeout_seconds:g} s an answer"
    if endpoint.is_replicated:
        few = "" if endpoint.min_replicas == endpoint.max_replicas else f"{endpoint.min_replicas} to "
        limits += f"; {few}{counted(endpoint.max_replicas, 'replica')}"
    return f"{endpoint.name} at {endpoint.host}, port {port}, {keys}; {limits}"
