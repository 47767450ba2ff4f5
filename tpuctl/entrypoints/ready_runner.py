"""A model's weights on the chips, and the step over them: on one host, or on each of those that run it together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from tpuctl.engine.lockstep import Forward
from tpuctl.engine.options import EngineOptions
from tpuctl.engine.runner import Runner, RunnerOptions
from tpuctl.entrypoints.local_model import LocalModel
from tpuctl.entrypoints.parity import plain_forward
from tpuctl.entrypoints.programs import keep_programs
from tpuctl.entrypoints.serve_adapters import load_adapters
from tpuctl.mesh import create_mesh
from tpuctl.nn.params import ParamTree, init_params, joined, param_shardings
from tpuctl.nn.quantised import quantised_tree
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import UniformPlan
from tpuctl.train.devices import verify_devices

Tell = Callable[..., None]


def take_devices(plan: UniformPlan, *, simulated: bool, tell: Tell) -> None:
    """See that these are the plan's devices, and have what is compiled for them kept.

    Raises:
        ClusterError: These are not the plan's devices.
    """
    verify_devices(plan, simulated=simulated)
    keep_programs(plan, tell=lambda text: tell("programs", detail=text))


def ready_runner(model: LocalModel, options: EngineOptions, *, tell: Tell) -> tuple[Runner, Forward]:
    """The model's weights on all devices of its mesh, and the step over them; every host of the mesh calls this.

    Raises:
        WeightsError: The folder's weights are not those of the model, or an adapter does not fit it.
    """
    mesh = create_mesh(model.mesh)
    # First, since a misfit shows in no time.
    beside = {} if options.adapters is None else load_adapters(model, options.adapters, mesh, tell=tell)
    params = joined(beside, _weights(model, mesh, tell=tell))
    run = RunnerOptions(dtype=jnp.dtype(model.dtype), quantised=model.quantised, kv_dtype=model.kv_dtype)
    runner = Runner(model.spec, params, mesh=mesh, engine=options, options=run)
    return runner, plain_forward(model.spec, params, adapters=options.adapters, kv_dtype=model.kv_dtype)


def _weights(model: LocalModel, mesh: Mesh, *, tell: Tell) -> ParamTree:
    started = time.monotonic()
    dtype, place = jnp.dtype(model.dtype), model.weights
    shardings = param_shardings(model.spec, mesh, quantised=model.quantised)
    if place is None:
        params = _drawn(model, shardings, dtype)
        detail = f"drawn from seed {model.seed}"
    else:
        loaded = load_params(model.spec, place.uri, family=place.family, shardings=shardings, dtype=dtype)
        params = loaded.params
        detail = f"{loaded.bytes_read / 2**20:,.0f} MiB from {place.uri}"
    jax.block_until_ready(params)
    tell("weights", seconds=time.monotonic() - started, detail=detail)
    return params


def _drawn(model: LocalModel, shardings: ParamTree, dtype: Any) -> ParamTree:
    def draw() -> ParamTree:
        params = init_params(model.spec, jax.random.key(model.seed))
        cast: ParamTree = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        return quantised_tree(cast) if model.quantised else cast

    drawn: ParamTree = jax.jit(draw, out_shardings=shardings)()
    return drawn
