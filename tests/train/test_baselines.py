from __future__ import annotations

import gzip
import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.parquet_folders import write
from tpuctl.text import ByteTokenizer
from tpuctl.train.baselines import (
    Trigrams,
    baselines,
    compressed_bits_per_byte,
    gzip_9,
    trigram_bits_per_byte,
    xz_9,
)
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import open_corpus

VOCABULARY = 7


def places(rng: np.random.Generator, count: int) -> np.ndarray:
    ids = np.minimum(rng.geometric(0.4, count + 2) - 1, VOCABULARY - 2)
    return np.lib.stride_tricks.sliding_window_view(ids, 3)


def naive_probability(grams: list[tuple[int, ...]], context: tuple[int, ...], word: int) -> float:
    """Interpolated Kneser-Ney as the textbook writes it, with dictionaries and recursion."""
    below = 1 / VOCABULARY if not context else naive_probability([g[1:] for g in set(grams)], context[1:], word)
    counts = Counter(grams)
    once, twice = (sum(1 for count in counts.values() if count == times) for times in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.5
    after = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == context}
    if not after:
        return below
    return (max(after.get(word, 0) - discount, 0) + discount * len(after) * below) / sum(after.values())


def test_trigrams_agree_with_the_textbook() -> None:
    rng = np.random.default_rng(0)
    counted, asked = places(rng, 60), places(rng, 40)
    grams = [tuple(map(int, place)) for place in counted]
    expected = [naive_probability(grams, (int(a), int(b)), int(word)) for a, b, word in asked]
    found = Trigrams(counted, vocab_size=VOCABULARY).probabilities(asked)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_trigrams_probabilities_sum_to_one_after_seen_and_unseen_contexts() -> None:
    model = Trigrams(places(np.random.default_rng(1), 60), vocab_size=VOCABULARY)
    contexts = [(a, b) for a in range(VOCABULARY) for b in range(VOCABULARY)]
    asked = np.array([(*context, word) for context in contexts for word in range(VOCABULARY)])
    sums = model.probabilities(asked).reshape(-1, VOCABULARY).sum(axis=1)
    np.testing.assert_allclose(sums, 1, rtol=1e-12)


def test_trigram_bits_per_byte_falls_with_what_was_seen() -> None:
    text = "the cat sat on the mat. " * 20
    seen = trigram_bits_per_byte([text], [text], tokenizer=ByteTokenizer())
    unseen = trigram_bits_per_byte(["0123456789" * 9], [text], tokenizer=ByteTokenizer())
    assert seen < 1 < 8 < unseen < 12


@pytest.mark.parametrize("compress", [gzip_9, xz_9])
def test_compressed_bits_per_byte_counts_bytes_of_text(compress: object) -> None:
    texts = ["naïve 漢字 🙂 " * 9, "x"]
    size = sum(len(text.encode()) for text in texts)
    joined = (texts[0] + "\0" + texts[1] + "\0").encode()
    whole = len(gzip.compress(joined, 9)) if compress is gzip_9 else len(lzma.compress(joined, preset=9))
    assert compressed_bits_per_byte(texts, compress=compress) == pytest.approx(8 * whole / size)  # type: ignore[arg-type]


def test_compressed_bits_per_byte_given_the_same_text_is_small() -> None:
    text = "".join(map(chr, np.random.default_rng(0).integers(32, 127, 5000)))
    alone = compressed_bits_per_byte([text], compress=xz_9)
    given = compressed_bits_per_byte([text], compress=xz_9, given=[text])
    assert given < 0.1 < 6 < alone


def test_baselines_name_what_each_had_seen(tmp_path: Path) -> None:
    train = open_corpus(
        str(write(tmp_path / "train.parquet", ["some text to learn from"] * 50)), columns=Columns.text("text")
    )
    held_out = open_corpus(str(write(tmp_path / "held-out.parquet", ["some text"])), columns=Columns.text("text"))
    rows = baselines(train, held_out, tokenizer=ByteTokenizer())
    assert [row.name for row in rows] == ["gzip -9", "xz -9", "trigram of bytes", "trigram of the run's tokens"]
    assert rows[0].given == rows[1].given == "nothing"
    assert rows[2].bits_per_byte == rows[3].bits_per_byte < rows[0].bits_per_byte
