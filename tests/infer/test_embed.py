"""Embeddings against transformers' own, and that a text's vector does not depend on what shares its batch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.infer.plans import task_plan
from tpuctl.infer.embed import EmbedTask

TINY = Path(__file__).parent / "tiny_bert"
TOLERANCE = 1e-5


def vectors(folder: Path, texts: list[str | None], **changes) -> tuple[np.ndarray, dict[int, str]]:
    plan = task_plan(kind="embed", text_column="text", batch_rows=8, **changes)
    worked = EmbedTask.of(plan, str(folder)).work(pa.table({"text": pa.array(texts, pa.string())}))
    size = worked.columns.schema.field("embedding").type.list_size
    return worked.columns["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, size), dict(worked.bad)


def reference(folder: Path) -> dict:
    return json.loads((folder / "reference.json").read_text())


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_embed_of_a_tiny_bert_is_that_of_transformers(pooling) -> None:
    wanted = reference(TINY)
    found, bad = vectors(TINY, wanted["texts"], pooling=pooling)
    assert bad == {}
    np.testing.assert_allclose(found, np.array(wanted[pooling]), atol=TOLERANCE, rtol=0)


def test_embed_alone_or_in_company_is_the_same_bit_for_bit() -> None:
    texts = reference(TINY)["texts"]
    together, _ = vectors(TINY, texts)
    alone = np.concatenate([vectors(TINY, [text])[0] for text in texts])
    np.testing.assert_array_equal(together, alone)


def test_embed_of_a_text_that_is_null_or_too_long_is_a_bad_row() -> None:
    texts = ["a b", None, "a " * 100]
    found, bad = vectors(TINY, texts)
    assert (len(found), set(bad)) == (1, {1, 2})
    assert (bad[1], bad[2]) == ("column 'text' is null", "102 tokens are more than 32")
    found, bad = vectors(TINY, texts, too_long="truncate")
    assert (len(found), set(bad)) == (2, {1})
    np.testing.assert_array_equal(found[1], vectors(TINY, ["a " * 30])[0][0])


def test_embed_of_no_text_still_has_its_column() -> None:
    found, _ = vectors(TINY, [None])
    assert found.shape == (0, 16)


@pytest.mark.skipif("TPUCTL_TEST_MINILM" not in os.environ, reason="TPUCTL_TEST_MINILM names no folder of MiniLM")
def test_embed_of_minilm_is_that_of_transformers() -> None:
    wanted = reference(Path(__file__).parent / "minilm")
    found, bad = vectors(Path(os.environ["TPUCTL_TEST_MINILM"]), wanted["texts"], too_long="truncate")
    assert bad == {}
    np.testing.assert_allclose(found, np.array(wanted["mean"]), atol=TOLERANCE, rtol=0)
