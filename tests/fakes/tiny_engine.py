"""A random decoder small enough for tests, engines over it, and what they must give: the plain forward pass."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tpuctl.engine.attention import PagedKernel
from tpuctl.engine.engine import Engine
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.request import Output, Request, SamplingParams
from tpuctl.engine.runner import Runner, RunnerOptions
from tpuctl.mesh import create_mesh
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import ParamTree, bind, init_params
from tpuctl.nn.quantised import quantised_tree
from tpuctl.plan.schema import MeshPlan
from tpuctl.plan.weights_schema import QuantisedDtype

VOCAB = 160
SPEC = ModelSpec(
    name="tiny", vocab_size=VOCAB, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_size=48
)
SIZES: dict[str, Any] = {
    "max_length": 96,
    "num_pages": 64,
    "page_size": 4,
    "max_running": 8,
    "max_step_tokens": 16,
    "min_step_tokens": 16,
}


@functools.cache
def tiny_params(spec: ModelSpec = SPEC) -> ParamTree:
    """Weights ten times as large as at the start of training: logits far enough apart that none tie."""
    return jax.tree.map(lambda x: x * 10.0 if x.ndim > 2 else x * 3.0, init_params(spec, jax.random.key(5)))


def tensor_mesh(*, tensor: int = 1) -> Mesh:
    shape = MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=tensor)
    return create_mesh(shape, devices=jax.devices()[:tensor])


def tiny_engine(
    spec: ModelSpec = SPEC,
    *,
    tensor: int = 1,
    kernel: PagedKernel = "blocks",
    real_vocab: int | None = None,
    quantised: QuantisedDtype | None = None,
    **sizes: Any,
) -> Engine:
    """An engine of its own over a runner that is shared, since that compiles; ``num_pages`` may only be fewer."""
    runner = _runner(spec, tensor, kernel, real_vocab, quantised)
    options = EngineOptions(**{**SIZES, **sizes}, real_vocab=real_vocab)
    return Engine(runner, sizes=runner.program.sizes, options=options)


@functools.cache
def _runner(
    spec: ModelSpec, tensor: int, kernel: PagedKernel, real_vocab: int | None, quantised: QuantisedDtype | None
) -> Runner:
    return Runner(
        spec,
        quantised_tree(tiny_params(spec)) if quantised else tiny_params(spec),
        mesh=tensor_mesh(tensor=tensor),
        engine=EngineOptions(**SIZES, real_vocab=real_vocab),
        options=RunnerOptions(dtype=jnp.float32, kernel=kernel, quantised=quantised),
    )


def ask(prompt: list[int], *, name: str = "r", **sampling: Any) -> Request:
    return Request(
        request_id=name,
        prompt=tuple(prompt),
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8} | sampling),
    )


def run(engine: Engine, *requests: Request, limit: int = 2000) -> dict[str, list[Output]]:
    """Outputs by request, after all are done."""
    for request in requests:
        engine.add_request(request)
    outputs: dict[str, list[Output]] = {request.request_id: [] for request in requests}
    for _ in range(limit):
        if not engine.has_work():
            return outputs
        for output in engine.step():
            outputs[output.request_id].append(output)
    raise AssertionError("the engine does not come to an end")


def tokens_of(outputs: list[Output], *, index: int = 0) -> list[int]:
    return [token for output in outputs if output.index == index for token in output.token_ids]


@functools.cache
def _forward(spec: ModelSpec) -> Any:
    def logits(params: ParamTree, tokens: jax.Array) -> jax.Array:
        positions = jnp.arange(tokens.shape[0])[None]
        rows = TokenRows(tokens=tokens[None], positions=positions, segment_ids=jnp.ones_like(positions))
        return bind(spec, params).logits(rows)[0]

    return jax.jit(logits)


def naive_logits(tokens: list[int], spec: ModelSpec = SPEC, *, params: ParamTree | None = None) -> np.ndarray:
    """Of every token, by the whole forward pass; padded to one length so that it compiles once."""
    padded = jnp.asarray(tokens + [0] * (SIZES["max_length"] - len(tokens)))
    return np.asarray(_forward(spec)(params or tiny_params(spec), padded))[: len(tokens)]


def naive_greedy(
    prompt: list[int],
    count: int,
    spec: ModelSpec = SPEC,
    *,
    real_vocab: int | None = None,
    params: ParamTree | None = None,
) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(naive_logits(tokens, spec, params=params)[-1][:real_vocab].argmax()))
    return tokens[len(prompt) :]
