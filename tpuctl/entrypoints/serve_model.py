"""The model of an endpoint made ready on this host's chips: weights, tokenizer, engine, and the proof that it is right.

Ready means: every shape is compiled, and the engine says what the plain forward pass says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.engine.engine import Engine, create_engine
from tpuctl.engine.options import EngineOptions, buckets
from tpuctl.engine.request import Request, SamplingParams
from tpuctl.engine.runner import RunnerOptions
from tpuctl.entrypoints.programs import keep_programs
from tpuctl.entrypoints.serve_checkpoint import exported_checkpoint
from tpuctl.errors import DataError, JobFailedError
from tpuctl.mesh import create_mesh
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import ParamTree, bind, init_params, param_shardings
from tpuctl.nn.weights import load_params
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.serve_schema import TextPlan
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.grammars import grammar_maker
from tpuctl.serve.served import Served
from tpuctl.serve.server import Loaded
from tpuctl.text import TOKENIZER_FILE, Tokenizer
from tpuctl.text.chat import Chat, load_chat
from tpuctl.text.place import TokenizerRef
from tpuctl.text.template_files import find_templates
from tpuctl.train.devices import verify_devices

PROBE_TOKENS = 8
PROBE_STEPS = 4
# How far below the likeliest logit the engine's choice may lie: a rounding of the two ways to add up the same sums.
_TIES = {"float32": 1e-3, "bfloat16": 0.125}

Tell = Callable[..., None]


def load_model(plan: ServingPlan, *, simulated: bool, tell: Tell) -> Loaded:
    """The plan's model, ready to be served. ``tell`` takes a phase's name and its fields.

    Raises:
        ClusterError: These are not the plan's devices.
        WeightsError: The folder's weights are not those of the plan's model; or a built-in model can't be fetched.
        DataError: The tokenizer can't be read, or has more ids than the model has rows.
        JobFailedError: The engine does not say what the model says.
    """
    verify_devices(plan, simulated=simulated)
    with exported_checkpoint(plan, tell=tell) as found:
        return _loaded(with_local_folders(found, tell=tell), tell=tell)


def _loaded(plan: ServingPlan, *, tell: Tell) -> Loaded:
    keep_programs(plan, tell=lambda text: tell("programs", detail=text))
    mesh = create_mesh(plan.mesh)
    tokenizer, chat, make_grammar = _text(plan)
    params = _params(plan, mesh, tell=tell)
    engine = _engine(plan, params, mesh, tokenizer)
    _warm_up(engine, tell=tell)
    _check_parity(plan, params, engine, tell=tell)
    served = Served(
        name=plan.endpoint.name,
        tokenizer=tokenizer,
        chat=chat,
        max_length=plan.engine.max_length,
        vocab_size=tokenizer.vocab_size,
        created=int(time.time()),
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


def _params(plan: ServingPlan, mesh: Mesh, *, tell: Tell) -> ParamTree:
    started = time.monotonic()
    spec, dtype = plan.model, jnp.dtype(plan.engine.dtype)
    shardings = param_shardings(spec, mesh)
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
        return cast

    drawn: ParamTree = jax.jit(draw, out_shardings=shardings)()
    return drawn


def _engine(plan: ServingPlan, params: ParamTree, mesh: Mesh, tokenizer: Tokenizer) -> Engine:
    table = plan.engine
    options = EngineOptions(
        max_length=table.max_length,
        num_pages=table.num_pages,
        page_size=table.page_size,
        max_running=table.max_sequences,
        max_step_tokens=table.max_step_tokens,
        prefix_cache=table.prefix_cache,
        eos_ids=tokenizer.special.eos_ids,
        real_vocab=tokenizer.vocab_size,
        # Unseeded requests must not say the same after every start; seeded ones don't depend on it.
        seed=time.time_ns() % 2**31,
    )
    run = RunnerOptions(dtype=jnp.dtype(table.dtype))
    return create_engine(plan.model, params, mesh=mesh, options=options, run=run)


def _warm_up(engine: Engine, *, tell: Tell) -> None:
    count = len(buckets(engine.options))
    for number, shape in enumerate(engine.warm_up(), start=1):
        bucket = shape.bucket
        detail = f"{number} of {count} shapes: {bucket.tokens} tokens, {bucket.rows} rows"
        tell("compiled", seconds=shape.seconds, detail=detail)


def _check_parity(plan: ServingPlan, params: ParamTree, engine: Engine, *, tell: Tell) -> None:
    """Hold the engine's first tokens of a prompt against the plain forward pass over the whole text."""
    started = time.monotonic()
    spec = plan.model
    probe = np.random.default_rng(0).integers(0, engine.options.real_vocab or spec.vocab_size, PROBE_TOKENS).tolist()
    steps = min(PROBE_STEPS, engine.options.max_length - PROBE_TOKENS)
    said = _said(engine, tuple(probe), steps=steps)
    length = PROBE_TOKENS + steps

    @jax.jit
    def logits(params: ParamTree, tokens: Any) -> Any:
        positions = jnp.arange(length)[None]
        rows = TokenRows(tokens=tokens, positions=positions, segment_ids=jnp.ones_like(positions))
        return bind(spec, params).logits(rows)[0]

    whole = np.zeros((1, length), np.int32)
    whole[0, : PROBE_TOKENS + len(said)] = [*probe, *said]
    found = np.asarray(logits(params, whole), np.float32)[:, : engine.options.real_vocab]
    for step, token in enumerate(said):
        row = found[PROBE_TOKENS - 1 + step]
        # Negated, so that a NaN counts as wrong.
        if not row[token] >= row.max() - _TIES[plan.engine.dtype]:
            raise JobFailedError(
                f"token {step + 1} of the probe is {token} from the engine and {int(row.argmax())} from the plain "
                f"forward pass ({row[token]:.3f} against {row.max():.3f})",
                hint="the model would be served wrong; please report it with the recipe",
            )
    tell("checked", seconds=time.monotonic() - started, detail=f"{len(said)} tokens as from the plain forward pass")


def _said(engine: Engine, prompt: tuple[int, ...], *, steps: int) -> list[int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True)
    engine.add_request(Request(request_id="probe", prompt=prompt, sampling=sampling))
    said: list[int] = []
    while engine.has_work():
        said += [token for output in engine.step() for token in output.token_ids]
    engine.forget_prefixes()
    return said


def _text(plan: ServingPlan) -> tuple[Tokenizer, Chat | None, MakeGrammar]:
    place = TokenizerRef(name=plan.text.tokenizer, directory=plan.run.directory, vocab_size=plan.model.vocab_size)
    tokenizer, folder = place.load(), place.folder()
    source = _template_source(plan.text)
    chat = None
    if source is not None or (folder is not None and find_templates(folder)):
        chat = load_chat(tokenizer, folder=folder, source=source)
    file = folder and folder / TOKENIZER_FILE
    text = file.read_text("utf-8") if file and file.is_file() else None
    return tokenizer, chat, grammar_maker(text, tokenizer=tokenizer)


def _template_source(text: TextPlan) -> str | None:
    if text.chat_template is None:
        return None
    try:
        return Path(text.chat_template).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{text.chat_template} can't be read: {error}", hint="is it on this host?") from error
