"""The proof that a model is served right: the engine's first tokens of a prompt are those of the plain forward pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpuctl.engine.adapters import Adapters
from tpuctl.engine.engine import Engine
from tpuctl.engine.kept import as_kept
from tpuctl.engine.lockstep import Forward, PlainLogits
from tpuctl.engine.request import Request, SamplingParams
from tpuctl.engine.step import own_ranks
from tpuctl.errors import JobFailedError
from tpuctl.modelspec import ModelSpec
from tpuctl.nn.decoder import ForwardOptions, TokenRows
from tpuctl.nn.params import ParamTree, bind
from tpuctl.plan.serve_schema import ServeDtype
from tpuctl.plan.weights_schema import KvDtype

PROBE_TOKENS = 8
PROBE_STEPS = 4
# How far below the likeliest logit the engine's choice may lie: a rounding of the two ways to add up the same sums.
_TIES = {"float32": 1e-3, "bfloat16": 0.125}
# Where pages round more, a key on the edge of two steps falls to the other if it was added up the other way. That is
# a part of what all rounding does; in 768 tokens of a model of 135M parameters never more than this many deviations.
_DEVIATIONS = 2.0


def plain_forward(
    spec: ModelSpec, params: ParamTree, *, adapters: Adapters | None = None, kv_dtype: KvDtype | None = None
) -> Forward:
    """The forward pass over a whole text, with neither pages nor batches. On a mesh, every host calls it.

    With ``kv_dtype`` attention sees keys and values as an engine's pages keep them.
    """
    whole = _everywhere(params)
    lora = None if adapters is None else adapters.lora

    def logits(params: ParamTree, tokens: Any, adapter: Any, *, kept_as: KvDtype | None) -> Any:
        positions = jnp.arange(tokens.shape[0])[None]
        rows = TokenRows(tokens=tokens[None], positions=positions, segment_ids=jnp.ones_like(positions))
        ranks = None if adapters is None else own_ranks(adapters, jnp.full_like(positions, adapter))
        decoder, options = bind(spec, params, lora=lora), ForwardOptions(adapter_ranks=ranks)
        attend = as_kept(decoder.row_attention(rows, options=options), kept_as)
        hidden, _ = decoder.run(rows.tokens, rows.positions, attend=attend, state=(), options=options)
        return decoder.project_to_vocab(hidden)[0].astype(jnp.float32)

    @jax.jit
    def told(params: ParamTree, tokens: Any, adapter: Any) -> Any:
        found = logits(params, tokens, adapter, kept_as=kv_dtype)
        exact = found if kv_dtype is None else logits(params, tokens, adapter, kept_as=None)
        both = {"logits": found, "moved": jnp.std(found - exact, axis=-1)}
        return both if whole is None else jax.lax.with_sharding_constraint(both, whole)

    def forward(tokens: np.ndarray, adapter: int) -> PlainLogits:
        return PlainLogits(**jax.tree.map(np.asarray, told(params, tokens, np.int32(adapter))))

    return forward


def check_parity(engine: Engine, forward: Forward, *, dtype: ServeDtype, tell: Callable[..., None]) -> None:
    """Hold the engine's first tokens of a prompt against the plain forward pass over the whole text.

    The model itself and each of its adapters are asked at once, so that they share a batch.

    Raises:
        JobFailedError: The engine does not say what the model says.
    """
    started = time.monotonic()
    vocab_size = engine.options.real_vocab
    assert vocab_size is not None, "a served engine knows its tokenizer"
    probe = np.random.default_rng(0).integers(0, vocab_size, PROBE_TOKENS).tolist()
    steps = min(PROBE_STEPS, engine.options.max_length - PROBE_TOKENS)
    all_said = _said(engine, tuple(probe), steps=steps)
    for index, (name, said) in enumerate(all_said.items()):
        whole = np.zeros(PROBE_TOKENS + steps, np.int32)
        whole[: PROBE_TOKENS + len(said)] = [*probe, *said]
        plain = forward(whole, index)
        ties = np.maximum(_TIES[dtype], _DEVIATIONS * plain.moved)
        _compare(said, plain.logits[PROBE_TOKENS - 1 :, :vocab_size], ties=ties[PROBE_TOKENS - 1 :], of=name)
    beside = f", with each of {len(all_said) - 1} adapters, too" * (len(all_said) > 1)
    detail = f"{len(all_said[None])} tokens as from the plain forward pass{beside}"
    tell("checked", seconds=time.monotonic() - started, detail=detail)


def _compare(said: list[int], rows: np.ndarray, *, ties: np.ndarray, of: str | None) -> None:
    for step, token in enumerate(said):
        row = rows[step]
        # Negated, so that a NaN counts as wrong.
        if not row[token] >= row.max() - ties[step]:
            raise JobFailedError(
                f"token {step + 1} of the probe{f' of adapter {of}' if of else ''} is {token} from the engine and "
                f"{int(row.argmax())} from the plain forward pass ({row[token]:.3f} against {row.max():.3f})",
                hint="the model would be served wrong; please report it with the recipe",
            )


def _everywhere(params: ParamTree) -> Any:
    """Where each host of the parameters' mesh finds a whole copy; None on one device."""
    placed = jax.tree.leaves(params)[0].sharding
    mesh = getattr(placed, "mesh", None)
    return None if mesh is None or mesh.size == 1 else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def _said(engine: Engine, prompt: tuple[int, ...], *, steps: int) -> dict[str | None, list[int]]:
    """By adapter, in the order of their indices; ``None`` is the model itself."""
    sampling = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True)
    names = (None, *engine.options.adapter_names)
    for index, name in enumerate(names):
        engine.add_request(Request(request_id=f"probe {index}", prompt=prompt, sampling=sampling, adapter=name))
    said: dict[str, list[int]] = {f"probe {index}": [] for index in range(len(names))}
    while engine.has_work():
        for output in engine.step():
            said[output.request_id] += output.token_ids
    engine.forget_prefixes()
    return dict(zip(names, said.values(), strict=True))
