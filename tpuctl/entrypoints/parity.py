"""The proof that a model is served right: the engine's first tokens of a prompt are those of the plain forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuctl.engine.engine import Engine
from tpuctl.engine.lockstep import Forward
from tpuctl.engine.request import Request, SamplingParams
from tpuctl.errors import JobFailedError
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.decoder import TokenRows
from tpuctl.nn.params import ParamTree, bind
from tpuctl.plan.serve_schema import ServeDtype

PROBE_TOKENS = 8
PROBE_STEPS = 4
# How far below the likeliest logit the engine's choice may lie: a rounding of the two ways to add up the same sums.
_TIES = {"float32": 1e-3, "bfloat16": 0.125}


def plain_forward(spec: ModelSpec, params: ParamTree) -> Forward:
    """The forward pass over a whole text, with neither pages nor batches. On a mesh, every host calls it."""
    whole = _everywhere(params)

    @jax.jit
    def logits(params: ParamTree, tokens: Any) -> Any:
        positions = jnp.arange(tokens.shape[0])[None]
        rows = TokenRows(tokens=tokens[None], positions=positions, segment_ids=jnp.ones_like(positions))
        found = bind(spec, params).logits(rows)[0].astype(jnp.float32)
        return found if whole is None else jax.lax.with_sharding_constraint(found, whole)

    return lambda tokens: np.asarray(logits(params, tokens))


def check_parity(engine: Engine, forward: Forward, *, dtype: ServeDtype, tell: Callable[..., None]) -> None:
    """Hold the engine's first tokens of a prompt against the plain forward pass over the whole text.

    Raises:
        JobFailedError: The engine does not say what the model says.
    """
    started = time.monotonic()
    vocab_size = engine.options.real_vocab
    assert vocab_size is not None, "a served engine knows its tokenizer"
    probe = np.random.default_rng(0).integers(0, vocab_size, PROBE_TOKENS).tolist()
    steps = min(PROBE_STEPS, engine.options.max_length - PROBE_TOKENS)
    said = _said(engine, tuple(probe), steps=steps)
    whole = np.zeros(PROBE_TOKENS + steps, np.int32)
    whole[: PROBE_TOKENS + len(said)] = [*probe, *said]
    found = forward(whole)[:, :vocab_size]
    for step, token in enumerate(said):
        row = found[PROBE_TOKENS - 1 + step]
        # Negated, so that a NaN counts as wrong.
        if not row[token] >= row.max() - _TIES[dtype]:
            raise JobFailedError(
                f"token {step + 1} of the probe is {token} from the engine and {int(row.argmax())} from the plain "
                f"forward pass ({row[token]:.3f} against {row.max():.3f})",
                hint="the model would be served wrong; please report it with the recipe",
            )
    tell("checked", seconds=time.monotonic() - started, detail=f"{len(said)} tokens as from the plain forward pass")


def _everywhere(params: ParamTree) -> Any:
    """Where each host of the parameters' mesh finds a whole copy; None on one device."""
    placed = jax.tree.leaves(params)[0].sharding
    mesh = getattr(placed, "mesh", None)
    return None if mesh is None or mesh.size == 1 else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def _said(engine: Engine, prompt: tuple[int, ...], *, steps: int) -> list[int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True)
    engine.add_request(Request(request_id="probe", prompt=prompt, sampling=sampling))
    said: list[int] = []
    while engine.has_work():
        said += [token for output in engine.step() for token in output.token_ids]
    engine.forget_prefixes()
    return said
