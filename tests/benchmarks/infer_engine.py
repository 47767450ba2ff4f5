"""Rows per second of batch inference beside the engine driven directly, in one process on the same prompts, in turns.

    python -m tests.benchmarks.infer_engine [--rows 128] [--dtype float32] [--pairs 3]

Directly: token ids in, token ids out, all prompts given at once. Batch inference on top of that reads parquet, makes
token ids and text, and writes parts, digests and manifest. Weights, engine and compiled programs are the same, the
prefix cache is emptied before each run. ``busy`` is the share of the seconds in which the engine stepped.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.benchmarks.infer_work import Host, arguments, write_prompts
from tests.benchmarks.measuring import pairs, report
from tpuctl.engine.request import Request


def requests_of(host: Host) -> list[Request]:
    """What the job's rows ask of the engine, made ahead."""
    asked: list[Request] = []
    ask = host.task.language.loop.ask

    def noted(requests, **more):  # type: ignore[no-untyped-def]
        asked.extend(requests)
        return ask(requests, **more)

    host.task.language.loop.ask = noted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        host.run(Path(folder, "out"))
    host.task.language.loop.ask = ask  # type: ignore[method-assign]
    return asked


def direct(host: Host, requests: list[Request]) -> float:
    """Rows per second of the engine alone; the loop's thread waits meanwhile."""
    engine = host.task.language.loop.engine
    engine.forget_prefixes()
    began = time.perf_counter()
    for number, request in enumerate(requests):
        engine.add_request(Request(request_id=f"d{number}", prompt=request.prompt, sampling=request.sampling))
    while engine.has_work():
        engine.step()
    return len(requests) / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        write_prompts(Path(root, "in", "0.parquet"), options.rows)
        began = time.perf_counter()
        host = Host.of(options, Path(root))
        requests = requests_of(host)
        lengths = [len(request.prompt) for request in requests]
        print(
            f"{len(requests)} prompts of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all; ready after "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
        busy, turns = [], iter(range(1000))

        def job() -> float:
            ran = host.run(Path(root, f"out{next(turns)}"))
            busy.append(ran.busy)
            return ran.rows / ran.seconds

        measured = pairs(job, lambda: direct(host, requests), count=options.pairs)
        report("generate", ("tpuctl infer", "engine alone"), measured, unit="rows/s")
        print(f"busy {100 * statistics.median(busy):.1f} % ({100 * min(busy):.1f} to {100 * max(busy):.1f})")


if __name__ == "__main__":
    main()
