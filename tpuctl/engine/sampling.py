"""Drawing the next token on the device: pure functions of logits, one row per sequence, no jit and no mesh.

Each row is drawn from its own logits, parameters, seed and position, and from nothing else: so what shares the batch
does not matter. One pass over the vocabulary per question instead of sorting it: a cut (top-k, top-p) is the
threshold that a bisection over the bits of the probabilities finds exactly, and a token is drawn by two uniform
numbers, one for a block of the vocabulary and one within it. Tokens that tie at a cut all stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int, Int32, UInt32

from tpuctl.engine.bounds import EXCLUDED
from tpuctl.engine.request import MAX_LOGPROBS

_BLOCK = 128  # tokens: the lanes of a TPU
_BITS_PER_PASS = 3
_PROBABILITY_BITS = 30  # probabilities are at most 1.0, whose bits are 0x3f800000


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingRows:
    """How each row of a step is drawn; the fields are those of ``SamplingParams``, one value per row.

    Attributes:
        seed: Two words: the key of the request's sample.
        position: Of the token to draw: with the seed it decides the draw.
        bias_ids: Tokens whose logits change, padded with ids beyond the vocabulary.
        bias: What is added to them; ``EXCLUDED`` forbids a token.
        allowed: Bit ``i % 32`` of word ``i // 32`` says whether token ``i`` may be drawn.
        drawn: Any of the rows does not take the likeliest. These flags let a step leave out what no row needs.
        cut: Any has top_k, top_p or min_p.
        penalised: Any has penalties.
        biased: Any has a bias.
        masked: Any is bound by ``allowed``.
        explained: Any wants log probabilities.
    """

    temperature: Float32[Array, " r"]
    top_k: Int32[Array, " r"]
    top_p: Float32[Array, " r"]
    min_p: Float32[Array, " r"]
    repetition_penalty: Float32[Array, " r"]
    frequency_penalty: Float32[Array, " r"]
    presence_penalty: Float32[Array, " r"]
    seed: UInt32[Array, "r 2"]
    position: Int32[Array, " r"]
    bias_ids: Int32[Array, "r b"]
    bias: Float32[Array, "r b"]
    allowed: Int32[Array, "r words"]
    drawn: Bool[Array, ""]
    cut: Bool[Array, ""]
    penalised: Bool[Array, ""]
    biased: Bool[Array, ""]
    masked: Bool[Array, ""]
    explained: Bool[Array, ""]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """Log probabilities of each row's own distribution: the drawn token's, its rank from 1, and the likeliest."""

    logprob: Float32[Array, " r"]
    rank: Int32[Array, " r"]
    top_ids: Int32[Array, "r top"]
    top_logprobs: Float32[Array, "r top"]


for _node in (SamplingRows, Explained):
    jax.tree_util.register_dataclass(_node)


def shape(
    logits: Float32[Array, "r v"], rows: SamplingRows, counts: Int32[Array, "r v"], *, first_token: Array | int = 0
) -> Float32[Array, "r v"]:
    """Logits after penalties, bias and mask. Works on any part of the vocabulary, the one from ``first_token``.

    ``counts`` is of each token twice how often it is in the output, and one more if it is in the prompt.
    """
    logits = _if(rows.penalised, lambda x: _penalised(x, rows, counts), logits)
    logits = _if(rows.biased, lambda x: _biased(x, rows, first_token), logits)
    return _if(rows.masked, lambda x: _masked(x, rows, first_token), logits)


def draw(logits: Float32[Array, "r v"], rows: SamplingRows) -> Int32[Array, " r"]:
    """A token per row, from whole rows of shaped logits; excluded ones are never drawn."""
    likeliest = _argmax(logits)
    return _if(rows.drawn, lambda token: jnp.where(rows.temperature == 0, token, _drawn(logits, rows)), likeliest)


def explain(logits: Float32[Array, "r v"], tokens: Int32[Array, " r"], *, top: int = MAX_LOGPROBS) -> Explained:
    """Log probabilities of tokens under the logits as they are."""
    norm = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)
    best, ids = lax.top_k(logits, min(top, logits.shape[-1]))
    return Explained(
        logprob=chosen[:, 0] - norm,
        rank=1 + jnp.sum(logits > chosen, axis=-1, dtype=jnp.int32),
        top_ids=ids.astype(jnp.int32),
        top_logprobs=best - norm[:, None],
    )


def count(counts: Int32[Array, "r v"], tokens: Int32[Array, " r"], *, first_token: Array | int = 0) -> Array:
    """``counts`` after each row's token was made."""
    here = lax.broadcasted_iota(jnp.int32, counts.shape, 1) + first_token == tokens[:, None]
    return counts + 2 * here


def _if(flag: Bool[Array, ""], change: Callable[[Array], Array], x: Array) -> Array:
    changed: Array = lax.cond(flag, change, lambda same: same, x)
    return changed


def _penalised(logits: Array, rows: SamplingRows, counts: Array) -> Array:
    repetition = rows.repetition_penalty[:, None]
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(counts > 0, repeated, logits)
    made = counts >> 1
    logits -= rows.frequency_penalty[:, None] * made
    return logits - rows.presence_penalty[:, None] * (made > 0)


def _biased(logits: Array, rows: SamplingRows, first_token: Array | int) -> Array:
    place = rows.bias_ids - first_token
    place = jnp.where(place < 0, logits.shape[1], place)  # else it would count from the end
    row = lax.broadcasted_iota(jnp.int32, place.shape, 0)
    changed = logits.at[row, place].add(rows.bias, mode="drop")
    return jnp.maximum(changed, EXCLUDED)


def _masked(logits: Array, rows: SamplingRows, first_token: Array | int) -> Array:
    token = lax.iota(jnp.int32, logits.shape[1]) + first_token
    words = jnp.take(rows.allowed, token >> 5, axis=1, mode="fill", fill_value=0)
    return jnp.where((words >> (token & 31)) & 1, logits, EXCLUDED)


def _argmax(logits: Float32[Array, "r v"]) -> Int32[Array, " r"]:
    """The first of the largest. In two plain reductions: XLA's CPU compiler does not vectorise the one with pairs."""
    largest = _over_vocabulary(jnp.max, logits, EXCLUDED)
    token = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    places = jnp.where(logits >= largest[:, None], token, logits.shape[1] - 1)
    return _over_vocabulary(jnp.min, places, logits.shape[1] - 1)


def _drawn(logits: Array, rows: SamplingRows) -> Int32[Array, " r"]:
    largest = _over_vocabulary(jnp.max, logits, EXCLUDED)[:, None]
    # Never divides by zero, and a tiny temperature leaves the likeliest with 1 and the others with 0.
    share = jnp.exp((logits - largest) / jnp.where(rows.temperature == 0, 1.0, rows.temperature)[:, None])
    share = jnp.where(logits <= EXCLUDED, 0.0, share)
    share = _if(rows.cut, lambda x: _cut(x, rows), share)
    return _pick(share, _uniforms(rows))


def _cut(share: Float32[Array, "r v"], rows: SamplingRows) -> Float32[Array, "r v"]:
    """``share``, relative to the likeliest, with what min_p, top_k and top_p leave out set to 0."""
    share = jnp.where(share >= rows.min_p[:, None], share, 0.0)
    wanted = jnp.where(rows.top_k == 0, jnp.inf, rows.top_k.astype(jnp.float32))
    share = _at_least(share, lambda stays: stays.astype(jnp.float32), wanted)
    mass = jnp.where(rows.top_p >= 1.0, jnp.inf, rows.top_p * _over_vocabulary(jnp.sum, share, 0.0))
    return _at_least(share, lambda stays: jnp.where(stays, share, 0.0), mass)


def _at_least(share: Array, weigh: Callable[[Array], Array], wanted: Float32[Array, " r"]) -> Array:
    """``share`` above the highest threshold at which what stays still weighs ``wanted``; all if nothing does.

    The bits of floats that are not negative are in the order of the floats.
    """
    bits = lax.bitcast_convert_type(share, jnp.int32)

    def narrow(i: Array, low: Int32[Array, " r"]) -> Int32[Array, " r"]:
        step = jnp.left_shift(1, _PROBABILITY_BITS - _BITS_PER_PASS * (i + 1))
        enough = [
            _over_vocabulary(jnp.sum, weigh(bits >= (low + n * step)[:, None]), 0.0) >= wanted
            for n in range(1, 1 << _BITS_PER_PASS)
        ]
        return low + step * sum(x.astype(jnp.int32) for x in enough)

    passes = _PROBABILITY_BITS // _BITS_PER_PASS
    threshold = lax.fori_loop(0, passes, narrow, jnp.zeros(share.shape[0], jnp.int32))
    return jnp.where(bits >= threshold[:, None], share, 0.0)


def _uniforms(rows: SamplingRows) -> Float32[Array, "r 2"]:
    def one(seed: Array, position: Array) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)
        return jax.random.uniform(key, (2,))

    numbers: Array = jax.vmap(one)(rows.seed, rows.position)
    return numbers


def _pick(share: Float32[Array, "r v"], uniforms: Float32[Array, "r 2"]) -> Int32[Array, " r"]:
    blocks = _blocks(share, 0.0)
    block = _first_above(blocks.sum(axis=2), uniforms[:, 0])
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * _BLOCK + _first_above(inside, uniforms[:, 1])


def _first_above(weights: Float32[Array, "r n"], uniform: Float32[Array, " r"]) -> Int32[Array, " r"]:
    """Index drawn with these weights: where their running sum first exceeds the uniform number's share of it all."""
    sums = jnp.cumsum(weights, axis=1)
    index = jnp.sum(sums <= uniform[:, None] * sums[:, -1:], axis=1, dtype=jnp.int32)
    last = weights.shape[1] - 1 - jnp.argmax(weights[:, ::-1] > 0, axis=1).astype(jnp.int32)
    return jnp.minimum(index, last)  # rounding may carry the product to the sum itself


def _over_vocabulary(reduce: Callable[..., Array], x: Int[Array, "r v"] | Float[Array, "r v"], filler: float) -> Array:
    """A reduction of each row, across blocks first: that is whole vectors at a time, on any hardware."""
    return reduce(reduce(_blocks(x, filler), axis=1), axis=1)


def _blocks(x: Array, filler: float) -> Array:
    padded = jnp.pad(x, ((0, 0), (0, -x.shape[1] % _BLOCK)), constant_values=filler)
    return padded.reshape(x.shape[0], -1, _BLOCK)
