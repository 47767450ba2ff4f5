"""A recipe of serving handed over to vLLM: the config that Ray Serve LLM takes. Pure; imports no ray.

Ray checks neither the value of a topology nor how a key of ``accelerator_config`` is spelt, and with more or fewer
workers than chips a slice is reserved and used in part. So what goes there is made and checked here.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from typing import Any

from tpuctl.plan.schema import ServingPlan
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import ServingRecipe

IMPORT_PATH = "ray.serve.llm:build_openai_app"
TENSOR, PIPELINE = "tensor_parallel_size", "pipeline_parallel_size"
# What the plan sets itself, and the recipe's keys for it.
_OURS = {
    "model": "model.source",
    "tokenizer": "model.tokenizer",
    "dtype": "engine.dtype",
    "max_model_len": "engine.max_length",
    "max_num_seqs": "engine.max_sequences",
    "max_num_batched_tokens": "engine.max_step_tokens",
    "enable_prefix_caching": "engine.prefix_cache",
    "gpu_memory_utilization": "engine.memory_share",
    "seed": "engine.seed",
    "distributed_executor_backend": "",
}
# Arguments that are often given; one nearly like them is a slip, any other is vLLM's own business.
_KNOWN = (
    TENSOR,
    PIPELINE,
    "block_size",
    "chat_template",
    "enable_auto_tool_choice",
    "enable_chunked_prefill",
    "enforce_eager",
    "hf_overrides",
    "kv_cache_dtype",
    "limit_mm_per_prompt",
    "load_format",
    "quantization",
    "reasoning_parser",
    "speculative_config",
    "tool_call_parser",
    "trust_remote_code",
)


def check_handover(recipe: ServingRecipe, *, chips: int, findings: Findings) -> None:
    """Refuse what vLLM behind Ray Serve LLM would not do as the recipe says."""
    if recipe.serve.engine != "vllm":
        if recipe.serve.engine_args:
            hint = 'see the [engine] table, or set serve.engine = "vllm"'
            findings.refuse("serve.engine_args", "tpuctl's own engine takes none", hint)
        return
    for key in ("api_key_env", "api_key_file", "tls_cert"):
        if getattr(recipe.serve, key) is not None:
            message = "Ray Serve LLM knows neither API keys nor TLS, so the endpoint would be open"
            findings.refuse(f"serve.{key}", message, "put a proxy that does in front, and leave it out here")
    if recipe.model.checkpoint is not None:
        hint = "`tpuctl export` makes one of a run"
        findings.refuse("model.checkpoint", "vLLM loads a model folder or a name on the hub", hint)
    if recipe.serve.adapters:
        hint = "serve them with tpuctl's own engine, or merge one into weights"
        findings.refuse("serve.adapters", "vLLM is handed a model alone", hint)
    if recipe.serve.port == 0:
        findings.refuse("serve.port", "Ray Serve can't take any free port", "name one, such as 8000")
    if recipe.model.preset is not None or (recipe.model.source or "").startswith("builtin:"):
        findings.refuse("model.source", "vLLM loads a model folder or a name on the hub", "name a folder or gs:// URI")
    if recipe.model.chat_template is not None:
        hint = "put the template into the model's folder"
        findings.refuse("model.chat_template", "Ray Serve LLM does not hand it to vLLM", hint)
    if recipe.engine.num_pages is not None:
        findings.refuse("engine.num_pages", "vLLM on TPU counts its pages itself", "use engine.memory_share")
    if recipe.engine.weights is not None:
        hint = "use serve.engine_args.quantization"
        findings.refuse("engine.weights", "vLLM quantises in ways of its own", hint)
    if recipe.engine.speculate:
        hint = "use serve.engine_args.speculative_config"
        findings.refuse("engine.speculate", "vLLM speculates in ways of its own", hint)
    if recipe.engine.kv_dtype is not None:
        findings.refuse("engine.kv_dtype", "vLLM keeps pages in its own way", "use serve.engine_args.kv_cache_dtype")
    _check_args(engine_args(recipe), chips=chips, findings=findings)


def serve_config(recipe: ServingRecipe, plan: ServingPlan) -> dict[str, Any]:
    """What ``serve deploy`` and KubeRay's ``serveConfigV2`` take."""
    endpoint = plan.endpoint
    app = {
        "name": plan.run.name,
        "route_prefix": "/",
        "import_path": IMPORT_PATH,
        "args": {"llm_configs": [_llm_config(recipe, plan)]},
    }
    return {"http_options": {"host": endpoint.host, "port": endpoint.port}, "applications": [app]}


def engine_args(recipe: ServingRecipe) -> dict[str, Any]:
    """The recipe's further arguments for vLLM: texts, read as JSON where they are JSON."""
    return {name: _value(text) for name, text in recipe.serve.engine_args.items()}


def _llm_config(recipe: ServingRecipe, plan: ServingPlan) -> dict[str, Any]:
    engine, endpoint, slices = plan.engine, plan.endpoint, plan.slice
    args = engine_args(recipe)
    pipeline = args.pop(PIPELINE, 1)
    kwargs = {
        "dtype": engine.dtype,
        "max_model_len": engine.max_length,
        "max_num_seqs": engine.max_sequences,
        "max_num_batched_tokens": engine.max_step_tokens,
        "enable_prefix_caching": engine.prefix_cache,
        "gpu_memory_utilization": recipe.engine.memory_share,
        "seed": engine.seed,
        TENSOR: slices.chips // pipeline,
        PIPELINE: pipeline,
        # One worker per host of the slice; vLLM's own default knows nothing of Ray's reservation.
        "distributed_executor_backend": "ray",
        **args,
    }
    assert plan.weights is not None, "a preset is refused"
    uri = plan.weights.uri
    source = {"bucket_uri": uri} if uri.startswith("gs://") else uri
    return {
        "model_loading_config": {"model_id": endpoint.name, "model_source": source},
        "accelerator_type": slices.accelerator_type,
        "accelerator_config": {"kind": "tpu", "topology": slices.topology},
        "engine_kwargs": kwargs,
        "deployment_config": _scaling(plan),
        "runtime_env": {"env_vars": plan.job.env},
    }


def _scaling(plan: ServingPlan) -> dict[str, Any]:
    endpoint = plan.endpoint
    limits: dict[str, Any] = {
        "max_ongoing_requests": plan.engine.max_sequences,
        "max_queued_requests": endpoint.max_waiting,
        "graceful_shutdown_timeout_s": endpoint.drain_seconds,
    }
    if endpoint.min_replicas == endpoint.max_replicas:
        return limits | {"num_replicas": endpoint.max_replicas}
    scaling = {
        "min_replicas": endpoint.min_replicas,
        "max_replicas": endpoint.max_replicas,
        "target_ongoing_requests": max(1, plan.engine.max_sequences // 2),
        "downscale_delay_s": endpoint.idle_seconds,
    }
    return limits | {"autoscaling_config": scaling}


def _check_args(args: Mapping[str, Any], *, chips: int, findings: Findings) -> None:
    for name in args:
        if name in _OURS:
            hint = f"use {_OURS[name]}" if _OURS[name] else "leave it out"
            findings.refuse("serve.engine_args", f"{name} is set by the plan", hint)
        elif name not in _KNOWN:
            near = difflib.get_close_matches(name.lower().replace("-", "_"), (*_KNOWN, *_OURS), n=1, cutoff=0.8)
            if near:
                findings.refuse("serve.engine_args", f"vLLM has no {name}", f"did you mean {near[0]}?")
            else:
                findings.notes.append(f"serve.engine_args.{name} goes to vLLM unchecked")
    parts = {name: args[name] for name in (TENSOR, PIPELINE) if name in args}
    odd = [name for name, value in parts.items() if type(value) is not int or value < 1]
    for name in odd:
        findings.refuse("serve.engine_args", f"{name}: expected a number, got {parts[name]!r}", "use one from 1 on")
    if odd:
        return
    pipeline = parts.get(PIPELINE, 1)
    product = math.prod((parts.get(TENSOR, chips // pipeline), pipeline))
    if product != chips:
        says = f"{TENSOR} × {PIPELINE} is {product}, and the slice has {chips} chips"
        findings.refuse("serve.engine_args", says, f"leave out {TENSOR}, and let {PIPELINE} divide {chips}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
