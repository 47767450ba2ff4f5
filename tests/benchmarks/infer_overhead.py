"""Reading and writing of batch inference for a task that does nothing, beside plain pyarrow copying the same rows.

    python -m tests.benchmarks.infer_overhead

Both read every column of a parquet file and write it anew with pyarrow's defaults, in turns, in one process each time
over. Ours also gives every row its id, checks pages, writes whole parts under their final names, syncs them to disk and
makes their digests; it reads, works and writes in as many threads as a host of a job has calls. MB are of the input
file as it lies on disk.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.measuring import pairs, report
from tpuctl.entrypoints.infer_host import PARTS_AHEAD
from tpuctl.infer.folder import finish, take_folder
from tpuctl.infer.output import Output
from tpuctl.infer.parts import cut
from tpuctl.infer.replica import Replica
from tpuctl.infer.rows import open_rows
from tpuctl.infer.task import Worked
from tpuctl.infer.work import Work
from tpuctl.plan.infer_schema import InferDataPlan

ROWS = 400_000
GROUP_ROWS = 50_000
PART_ROWS = 16_384
COUNT = 7


class Nothing:
    """A task whose new column is there at once."""

    def work(self, rows: pa.Table) -> Worked:
        count = rows.num_rows
        return Worked(columns=pa.table({"y": np.zeros(count, np.float32)}), good=np.arange(count), bad=())


def write_input(path: Path) -> float:
    """Text, numbers and vectors, hard to compress as embeddings are; its size in MB."""
    chance = np.random.default_rng(0)
    words = [f"word{n}" for n in range(5000)]
    texts = [" ".join(words[i] for i in row) for row in chance.integers(0, 5000, (ROWS, 12))]
    vectors = chance.standard_normal(ROWS * 32).astype(np.float32)
    table = pa.table(
        {"id": np.arange(ROWS), "text": texts, "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 32)}
    )
    pq.write_table(table, path, row_group_size=GROUP_ROWS)
    return path.stat().st_size / 1e6


def copy(source: Path, target: Path) -> None:
    """Plain pyarrow: a batch read, a batch written."""
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches(batch_size=PART_ROWS):
            writer.write_batch(batch)


def infer(source: Path, target: Path) -> None:
    """The path of a job's host, without Ray between it and its driver."""
    rows = open_rows(InferDataPlan(uri=str(source), columns=(), limit=None))
    work = Work(
        uri=rows.uri,
        fingerprint=rows.fingerprint,
        columns=rows.carried,
        rows=rows.num_rows,
        dropped=0,
        task={},
        part_rows=PART_ROWS,
    )
    folder = take_folder(str(target), work, mode="error")
    replica = Replica(rows, Output(str(target), key=work.key), Nothing(), bad_rows="fail")
    with ThreadPoolExecutor(PARTS_AHEAD) as pool:
        done = list(pool.map(replica.do, cut(work.rows, part_rows=PART_ROWS)))
    finish(folder, [part.record for part in done])


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as root:
        source = Path(root, "in.parquet")
        megabytes = write_input(source)
        turns = iter(range(10_000))

        def speed(what, name: str) -> float:
            began = time.perf_counter()
            what(source, Path(root, f"{name}{next(turns)}"))
            return megabytes / (time.perf_counter() - began)

        print(f"{ROWS:,} rows, {megabytes:.0f} MB")
        measured = pairs(lambda: speed(infer, "out"), lambda: speed(copy, "copy"), count=COUNT)
        report("no-op task", ("tpuctl infer", "pyarrow copy"), measured, unit="MB/s")


if __name__ == "__main__":
    main()
