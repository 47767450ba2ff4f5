"""The model of an endpoint made ready on this host's chips: weights, tokenizer, engine, and the proof that it is right.

Ready means: every shape is compiled, and the engine says what the plain forward pass says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.engine.engine import Engine
from tpuctl.engine.lockstep import Forward
from tpuctl.engine.options import EngineOptions, buckets
from tpuctl.engine.runner import Runner, RunnerOptions
from tpuctl.entrypoints.parity import check_parity, plain_forward
from tpuctl.entrypoints.programs import keep_programs
from tpuctl.entrypoints.serve_adapters import exported_adapters, held_adapters, load_adapters
from tpuctl.entrypoints.serve_checkpoint import exported_checkpoint
from tpuctl.entrypoints.serve_text import load_text
from tpuctl.mesh import create_mesh
from tpuctl.nn.params import ParamTree, init_params, joined, param_shardings
from tpuctl.nn.quantised import quantised_tree
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import ServingPlan
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.served import Served
from tpuctl.serve.server import Loaded
from tpuctl.text import Tokenizer
from tpuctl.text.chat import Chat
from tpuctl.train.devices import verify_devices

Tell = Callable[..., None]
Text = tuple[Tokenizer, Chat | None, MakeGrammar]


def load_model(plan: ServingPlan, *, simulated: bool, tell: Tell) -> Loaded:
    """The plan's model, ready to be served. ``tell`` takes a phase's name and its fields.

    Raises:
        ClusterError: These are not the plan's devices.
        WeightsError: The folder's weights are not those of the plan's model; or a built-in model can't be fetched.
        DataError: The tokenizer can't be read, or has more ids than the model has rows.
        JobFailedError: The engine does not say what the model says.
    """
    with local_plan(plan, tell=tell) as found:
        text = load_text(found)
        options = engine_options(found, text[0])
        runner, forward = ready_runner(found, options, simulated=simulated, tell=tell)
    engine = Engine(runner, sizes=runner.program.sizes, options=options)
    return proven(plan, engine, forward, text, tell=tell)


@contextmanager
def local_plan(plan: ServingPlan, *, tell: Tell) -> Iterator[ServingPlan]:
    """The plan with folders of this host in place of runs and of built-in models, for loading from.

    Raises:
        WeightsError: There is no such checkpoint; or a built-in model can't be fetched.
    """
    # Adapters first: they are held against the model folder of the plan, which an exported checkpoint is not.
    with exported_adapters(plan, tell=tell) as adapted, exported_checkpoint(adapted, tell=tell) as found:
        yield with_local_folders(found, tell=tell)


def ready_runner(plan: ServingPlan, options: EngineOptions, *, simulated: bool, tell: Tell) -> tuple[Runner, Forward]:
    """The plan's weights on all devices of its mesh, and the step over them; every host of the mesh calls this.

    Raises:
        ClusterError: These are not the plan's devices.
        WeightsError: The folder's weights are not those of the plan's model, or an adapter does not fit it.
    """
    verify_devices(plan, simulated=simulated)
    keep_programs(plan, tell=lambda text: tell("programs", detail=text))
    mesh = create_mesh(plan.mesh)
    # First, since a misfit shows in no time.
    beside = {} if options.adapters is None else load_adapters(plan, options.adapters, mesh, tell=tell)
    params = joined(beside, _weights(plan, mesh, tell=tell))
    table = plan.engine
    run = RunnerOptions(dtype=jnp.dtype(table.dtype), quantised=table.weights, kv_dtype=table.kv_dtype)
    runner = Runner(plan.model, params, mesh=mesh, engine=options, options=run)
    return runner, plain_forward(plan.model, params, adapters=options.adapters, kv_dtype=table.kv_dtype)


def proven(plan: ServingPlan, engine: Engine, forward: Forward, text: Text, *, tell: Tell) -> Loaded:
    """An engine compiled, checked and given its text.

    Raises:
        JobFailedError: The engine does not say what the model says.
    """
    _warm_up(engine, tell=tell)
    check_parity(engine, forward, dtype=plan.engine.dtype, tell=tell)
    tokenizer, chat, make_grammar = text
    served = Served(
        name=plan.endpoint.name,
        tokenizer=tokenizer,
        chat=chat,
        max_length=plan.engine.max_length,
        vocab_size=tokenizer.vocab_size,
        created=int(time.time()),
        adapters={adapter.name: adapter.uri for adapter in plan.adapters},
    )
    return Loaded(engine=engine, served=served, make_grammar=make_grammar)


def with_local_folders(plan: ServingPlan, *, tell: Tell) -> ServingPlan:
    """The plan with a folder of this host in place of each built-in model, fetched if need be.

    Raises:
        WeightsError: It can't be.
    """
    weights = plan.weights and replace(plan.weights, uri=model_folder(plan.weights.uri, tell=tell))
    text = replace(plan.text, tokenizer=model_folder(plan.text.tokenizer, tell=tell))
    return replace(plan, weights=weights, text=text)


def _weights(plan: ServingPlan, mesh: Mesh, *, tell: Tell) -> ParamTree:
    started = time.monotonic()
    spec, dtype = plan.model, jnp.dtype(plan.engine.dtype)
    shardings = param_shardings(spec, mesh, quantised=plan.engine.weights)
    if plan.weights is None:
        params = _drawn(plan, shardings, dtype)
        detail = f"drawn from seed {plan.engine.seed}"
    else:
        loaded = load_params(spec, plan.weights.uri, family=plan.weights.family, shardings=shardings, dtype=dtype)
        params = loaded.params
        detail = f"{loaded.bytes_read / 2**20:,.0f} MiB from {plan.weights.uri}"
    jax.block_until_ready(params)
    tell("weights", seconds=time.monotonic() - started, detail=detail)
    return params


def _drawn(plan: ServingPlan, shardings: ParamTree, dtype: Any) -> ParamTree:
    def draw() -> ParamTree:
        params = init_params(plan.model, jax.random.key(plan.engine.seed))
        cast: ParamTree = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        return quantised_tree(cast) if plan.engine.weights else cast

    drawn: ParamTree = jax.jit(draw, out_shardings=shardings)()
    return drawn


def engine_options(plan: ServingPlan, tokenizer: Tokenizer) -> EngineOptions:
    """What the plan says of the engine."""
    table = plan.engine
    return EngineOptions(
        max_length=table.max_length,
        num_pages=table.num_pages,
        page_size=table.page_size,
        max_running=table.max_sequences,
        max_step_tokens=table.max_step_tokens,
        speculate=table.speculate,
        # Each device of the mesh draws its share of the rows.
        min_step_tokens=plan.mesh.tensor,
        prefix_cache=table.prefix_cache,
        eos_ids=tokenizer.special.eos_ids,
        real_vocab=tokenizer.vocab_size,
        # Unseeded requests must not say the same after every start; seeded ones don't depend on it.
        seed=time.time_ns() % 2**31,
        adapters=held_adapters(plan),
    )


def _warm_up(engine: Engine, *, tell: Tell) -> None:
    count = len(buckets(engine.options))
    for number, shape in enumerate(engine.warm_up(), start=1):
        bucket = shape.bucket
        detail = f"{number} of {count} shapes: {bucket.tokens} tokens, {bucket.rows} rows"
        tell("compiled", seconds=shape.seconds, detail=detail)
