"""A random decoder small enough for tests, engines over it, and what they must give: the plain forward pass."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tpuctl.engine.adapters import Adapters, side_by_side
from tpuctl.engine.attention import PagedKernel
from tpuctl.engine.engine import Engine
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.request import Output, Request, SamplingParams
from tpuctl.engine.runner import Runner, RunnerOptions
from tpuctl.mesh import create_mesh
from tpuctl.modelspec import ModelSpec
from tpuctl.modelspec.adapters import BACK, TARGETS, adapter_parameters, adapter_path
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import ParamTree, bind, init_params, joined, logical_axes, split_adapters
from tpuctl.nn.quantised import quantised_tree
from tpuctl.plan.schema import MeshPlan
from tpuctl.plan.weights_schema import KvDtype, LoraPlan, QuantisedDtype

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


LORAS = {
    "poet": LoraPlan(rank=3, alpha=6.0, targets=tuple(TARGETS), dropout=0.0, adapter=None),
    "clerk": LoraPlan(rank=2, alpha=1.0, targets=("v_proj", "down_proj"), dropout=0.0, adapter=None),
}
ADAPTERS = Adapters(names=tuple(LORAS), ranks=tuple(lora.rank for lora in LORAS.values()), targets=tuple(TARGETS))


@functools.cache
def tiny_factors(name: str, spec: ModelSpec = SPEC) -> dict[str, np.ndarray]:
    """An adapter's factors, large enough to change what is said."""
    lora, random = LORAS[name], np.random.default_rng(list(LORAS).index(name))
    known = adapter_parameters(spec, rank=lora.rank, targets=lora.targets)
    return {path: random.normal(size=item.stacked_shape).astype(np.float32) for path, item in known.items()}


def adapted_params(spec: ModelSpec = SPEC) -> ParamTree:
    """The weights, and beside them the adapters of ``ADAPTERS``."""
    arrays = side_by_side(spec, ADAPTERS, [(LORAS[name], tiny_factors(name, spec)) for name in ADAPTERS.names])
    places, _ = split_adapters(logical_axes(spec, lora=ADAPTERS.lora))
    tree = jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.asarray(arrays[jax.tree_util.keystr(path, simple=True, separator="/")]),
        places,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    return joined(tree, tiny_params(spec))


@functools.cache
def merged_params(name: str | None, spec: ModelSpec = SPEC) -> ParamTree:
    """The weights with an adapter's share added to them, as if there had never been one."""
    if name is None:
        return tiny_params(spec)
    lora, factors = LORAS[name], tiny_factors(name, spec)
    params = jax.tree.map(np.asarray, tiny_params(spec))
    for target in lora.targets:
        a, b = (factors[f"{adapter_path(target)}/{factor}"] for factor in ("a", "b"))
        residual, other = (b, a) if target in BACK else (a, b)
        change = np.einsum("lrd,lre->lde", residual, other.reshape(*other.shape[:2], -1))
        group, leaf = TARGETS[target].split("/")
        weights = params["layers"][group]
        weights[leaf] = weights[leaf] + lora.alpha / lora.rank * change.reshape(weights[leaf].shape)
    return params


def tensor_mesh(*, tensor: int = 1) -> Mesh:
    shape = MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=tensor)
    return create_mesh(shape, devices=jax.devices()[:tensor])


def tiny_engine(
    spec: ModelSpec = SPEC,
    *,
    tensor: int = 1,
    kernel: PagedKernel = "blocks",
    real_vocab: int | None = None,
    adapted: bool = False,
    quantised: QuantisedDtype | None = None,
    kv_dtype: KvDtype | None = None,
    **sizes: Any,
) -> Engine:
    """An engine of its own over a runner that is shared, since that compiles; ``num_pages`` may only be fewer.

    With ``adapted`` it holds the adapters of ``tiny_adapters``.
    """
    runner = _runner(spec, tensor, kernel, real_vocab, adapted, quantised, kv_dtype)
    options = EngineOptions(**{**SIZES, **sizes}, real_vocab=real_vocab, adapters=ADAPTERS if adapted else None)
    return Engine(runner, sizes=runner.program.sizes, options=options)


@functools.cache
def _runner(
    spec: ModelSpec,
    tensor: int,
    kernel: PagedKernel,
    real_vocab: int | None,
    adapted: bool,
    quantised: QuantisedDtype | None,
    kv_dtype: KvDtype | None,
) -> Runner:
    params = tiny_params(spec)
    if quantised:
        params = quantised_tree(params)
    elif adapted:
        params = adapted_params(spec)
    return Runner(
        spec,
        params,
        mesh=tensor_mesh(tensor=tensor),
        engine=EngineOptions(**SIZES, real_vocab=real_vocab, adapters=ADAPTERS if adapted else None),
        options=RunnerOptions(dtype=jnp.float32, kernel=kernel, quantised=quantised, kv_dtype=kv_dtype),
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


def naive_logits(
    tokens: list[int], spec: ModelSpec = SPEC, *, adapter: str | None = None, params: ParamTree | None = None
) -> np.ndarray:
    """Of every token, by the whole forward pass; padded to one length so that it compiles once.

    ``adapter`` is merged into the weights, in whose place ``params`` may stand.
    """
    padded = jnp.asarray(tokens + [0] * (SIZES["max_length"] - len(tokens)))
    return np.asarray(_forward(spec)(params or merged_params(adapter, spec), padded))[: len(tokens)]


def naive_greedy(
    prompt: list[int],
    count: int,
    spec: ModelSpec = SPEC,
    *,
    real_vocab: int | None = None,
    adapter: str | None = None,
    params: ParamTree | None = None,
) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        logits = naive_logits(tokens, spec, adapter=adapter, params=params)
        tokens.append(int(logits[-1][:real_vocab].argmax()))
    return tokens[len(prompt) :]
