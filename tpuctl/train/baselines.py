"""What any language model should beat: bits per byte of gzip, xz and a trigram model on the same held-out text.

NumPy only, and quick: on the built-in dataset all of it takes some seconds. The trigram model is interpolated
Kneser-Ney (Ney, Essen, Kneser 1994; discounts by Chen and Goodman 1999, equation 15), without cut-offs.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from tpuctl.text import ByteTokenizer, Tokenizer
from tpuctl.train.data.corpus import Corpus, iter_texts

# Counting more than this takes long and changes little; a report on a larger corpus says that it was cut here.
MAX_TRAIN_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """One row of the comparison. ``given`` says what it had seen before the held-out text."""

    name: str
    given: str
    bits_per_byte: float


def baselines(train: Corpus, held_out: Corpus, *, tokenizer: Tokenizer) -> tuple[Baseline, ...]:
    """gzip -9 and xz -9 of the held-out text alone, and trigram models of the training text, on bytes and on tokens.

    Every one has to tell where each document ends, as the decoder has: compressors by a zero byte, trigram models by
    the separator.
    """
    texts = list(iter_texts(held_out))
    seen = list(_up_to(iter_texts(train), max_bytes=MAX_TRAIN_BYTES))
    given = f"{sum(map(len, seen)) / 1e6:.1f} million characters of training text"
    return (
        Baseline(name="gzip -9", given="nothing", bits_per_byte=compressed_bits_per_byte(texts, compress=gzip_9)),
        Baseline(name="xz -9", given="nothing", bits_per_byte=compressed_bits_per_byte(texts, compress=xz_9)),
        Baseline(
            name="trigram of bytes",
            given=given,
            bits_per_byte=trigram_bits_per_byte(seen, texts, tokenizer=ByteTokenizer()),
        ),
        Baseline(
            name="trigram of the run's tokens",
            given=given,
            bits_per_byte=trigram_bits_per_byte(seen, texts, tokenizer=tokenizer),
        ),
    )


def gzip_9(data: bytes) -> int:
    """Bytes of the data after ``gzip -9``."""
    return len(gzip.compress(data, compresslevel=9))


def xz_9(data: bytes) -> int:
    """Bytes of the data after ``xz -9``, whose window of 64 MiB sees all of a small corpus."""
    return len(lzma.compress(data, preset=9))


def compressed_bits_per_byte(
    texts: Sequence[str], *, compress: Callable[[bytes], int], given: Sequence[str] = ()
) -> float:
    """Bits per byte of the texts, joined by zero bytes. ``given`` is compressed before them and its size taken off."""
    before = _joined(given)
    size = compress(before + _joined(texts)) - (compress(before) if before else 0)
    return 8 * size / _num_bytes(texts)


def trigram_bits_per_byte(train: Sequence[str], held_out: Sequence[str], *, tokenizer: Tokenizer) -> float:
    """Bits per byte of the held-out texts under a trigram model of the training texts, over the tokenizer's ids."""
    model = Trigrams(_places(train, tokenizer=tokenizer), vocab_size=tokenizer.vocab_size)
    probabilities = model.probabilities(_places(held_out, tokenizer=tokenizer))
    return float(-np.log2(probabilities).sum() / _num_bytes(held_out))


class Trigrams:
    """An interpolated Kneser-Ney model of ids given the two before them.

    ``places`` has a row for each id to be counted or predicted: the two before it, and itself.
    """

    def __init__(self, places: Int64[np.ndarray, "places 3"], *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        codes = places[:, 0] * vocab_size**2 + places[:, 1] * vocab_size + places[:, 2]
        trigrams, counts = np.unique(codes, return_counts=True)
        self._trigrams = _Order(trigrams, counts, vocab_size=vocab_size)
        # Below the highest order what counts is in how many contexts an id was seen, not how often.
        bigrams, contexts = np.unique(trigrams % vocab_size**2, return_counts=True)
        self._bigrams = _Order(bigrams, contexts, vocab_size=vocab_size)
        unigrams, contexts = np.unique(bigrams % vocab_size, return_counts=True)
        self._unigrams = _Order(unigrams, contexts, vocab_size=vocab_size)

    def probabilities(self, places: Int64[np.ndarray, "places 3"]) -> Float64[np.ndarray, " places"]:
        """The probability of each id after the two before it."""
        uniform = np.full(len(places), 1 / self._vocab_size)
        unigram = self._unigrams.interpolated(np.zeros_like(places[:, 0]), places[:, 2], below=uniform)
        bigram = self._bigrams.interpolated(places[:, 1], places[:, 2], below=unigram)
        context = places[:, 0] * self._vocab_size + places[:, 1]
        return self._trigrams.interpolated(context, places[:, 2], below=bigram)


class _Order:
    """Counts of one length of context. A code is context x vocabulary + id; codes are sorted."""

    def __init__(self, codes: np.ndarray, counts: np.ndarray, *, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._codes = codes
        self._counts = counts
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        self._discount = once / (once + 2 * twice) if once else 0.5
        self._contexts, first, self._kinds = np.unique(codes // vocab_size, return_index=True, return_counts=True)
        self._totals = np.add.reduceat(counts, first)

    def interpolated(self, context: np.ndarray, ids: np.ndarray, *, below: np.ndarray) -> np.ndarray:
        """Discounted counts, and what they give up spread as the order ``below`` says; unseen contexts are as below."""
        counts = _look_up(self._codes, self._counts, context * self._vocab_size + ids)
        totals = _look_up(self._contexts, self._totals, context)
        kinds = _look_up(self._contexts, self._kinds, context)
        kept = np.maximum(counts - self._discount, 0)
        return np.where(totals > 0, (kept + self._discount * kinds * below) / np.maximum(totals, 1), below)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


def _places(texts: Iterable[str], *, tokenizer: Tokenizer) -> Int64[np.ndarray, "places 3"]:
    """Every id of every text, and its end, each with the two before it; a text begins after two separators."""
    end = tokenizer.separator_id
    documents = [np.concatenate([[end, end], tokenizer.encode(text).ids, [end]]).astype(np.int64) for text in texts]
    return np.concatenate([np.lib.stride_tricks.sliding_window_view(ids, 3) for ids in documents])


def _up_to(texts: Iterable[str], *, max_bytes: int) -> Iterator[str]:
    left = max_bytes
    for text in texts:
        yield text
        left -= len(text)
        if left <= 0:
            return


def _joined(texts: Sequence[str]) -> bytes:
    return b"".join(text.encode() + b"\0" for text in texts)


def _num_bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)
