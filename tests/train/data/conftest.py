"""Small parquet folders and streams over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.train.data.corpus import open_corpus
from tpuctl.train.data.stream import Stream, TokenizerRef

BYTES = TokenizerRef(name="bytes", directory="/nowhere", vocab_size=257)


def write(path: Path, texts: Sequence[str | None], *, column: str = "text", rows_per_group: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({column: pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


def stream_over(folder: Path, **changes: object) -> Stream:
    stream = Stream(
        corpus=open_corpus(str(folder), text_column="text"),
        tokenizer=BYTES,
        lanes=4,
        sequence_length=16,
        packing=True,
        epochs=0,
        shuffle=True,
        seed=7,
    )
    return replace(stream, **changes)  # type: ignore[arg-type]
