"""The model of an endpoint made ready on this host's chips: weights, tokenizer, engine, and the proof that it is right.

Ready means: every shape is compiled, and the engine says what the plain forward pass says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.engine.engine import Engine
from tpuctl.engine.lockstep import Forward
from tpuctl.engine.options import EngineOptions
from tpuctl.entrypoints.local_model import LocalModel
from tpuctl.entrypoints.parity import check_parity
from tpuctl.entrypoints.ready_runner import ready_runner, take_devices
from tpuctl.entrypoints.serve_adapters import exported_adapters, held_adapters
from tpuctl.entrypoints.serve_checkpoint import exported_checkpoint
from tpuctl.entrypoints.serve_text import load_text
from tpuctl.entrypoints.warm_up import warm_up
from tpuctl.plan.schema import ServingPlan
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.served import Served
from tpuctl.serve.server import Loaded
from tpuctl.text import Tokenizer
from tpuctl.text.chat import Chat

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
        take_devices(plan, simulated=simulated, tell=tell)
        runner, forward = ready_runner(LocalModel.served(found), options, tell=tell)
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


def proven(plan: ServingPlan, engine: Engine, forward: Forward, text: Text, *, tell: Tell) -> Loaded:
    """An engine compiled, checked and given its text.

    Raises:
        JobFailedError: The engine does not say what the model says.
    """
    warm_up(engine, tell=tell)
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
