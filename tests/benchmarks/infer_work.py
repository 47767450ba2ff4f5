"""A job of generating that benchmarks share: prompts of many lengths, a small real model, and a host's path through it.

The prompts are pieces of the Python standard library's own sources, short and long in turns.
"""

from __future__ import annotations

import argparse
import random
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import pyarrow as pa
import pyarrow.parquet as pq

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.infer_host import PARTS_AHEAD
from tpuctl.infer.folder import finish, take_folder
from tpuctl.infer.generate import GenerateTask
from tpuctl.infer.parts import cut
from tpuctl.infer.replica import Replica
from tpuctl.infer.rows import Rows, open_rows
from tpuctl.infer.work import work_of
from tpuctl.plan.onsite import look_here
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import InferencePlan
from tpuctl.recipe.load import Source, build_recipe

SHORTEST, LONGEST = 40, 600


def arguments(doc: str) -> argparse.ArgumentParser:
    """What all of them can be told."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--model", default="builtin:smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--batch-rows", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--min-step-tokens", type=int, default=16, help="fewer shapes to compile")
    parser.add_argument("--programs", help="a folder to keep compiled programs in")
    return parser


def write_prompts(path: Path, count: int) -> None:
    """A parquet file of so many prompts."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chance = random.Random(0)
    prompts = []
    for number in range(count):
        text = sources[number % len(sources)].read_text("utf-8", errors="replace")
        length = chance.randint(SHORTEST, LONGEST)
        start = chance.randrange(max(1, len(text) - length))
        prompts.append(text[start : start + length])
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(range(count)), "prompt": prompts}), path, row_group_size=64)


def plan_of(options: argparse.Namespace, root: Path) -> InferencePlan:
    """The plan of a job on the prompts in ``root/in``, on a host of one chip."""
    values = {
        "kind": "infer",
        "run": {"name": "benchmark"},
        "slice": {"accelerator": "v6e", "topology": "1x1"},
        "data": {"uri": str(root / "in")},
        "model": {"source": options.model},
        "task": {
            "kind": "generate",
            "text_column": "prompt",
            "batch_rows": options.batch_rows,
            "max_length": 512,
            "dtype": options.dtype,
        },
        "sampling": {"max_tokens": options.max_tokens},
        "output": {"uri": str(root / "out"), "rows_per_part": options.batch_rows},
    }
    recipe = build_recipe(Source(file="benchmark", values=values, lines={}), overrides=())
    plan = look_here(resolve(recipe, environ={}, cwd=root, source=None), recipe, home=None)
    assert isinstance(plan, InferencePlan)
    assert plan.replica is not None
    return replace(plan, replica=replace(plan.replica, min_step_tokens=options.min_step_tokens))


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A host's task made ready: weights there, every shape compiled."""

    plan: InferencePlan
    task: GenerateTask
    rows: Rows

    @classmethod
    def of(cls, options: argparse.Namespace, root: Path) -> Host:
        """The host of a job on the prompts in ``root/in``."""
        if options.programs:
            jax.config.update("jax_compilation_cache_dir", options.programs)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        plan = plan_of(options, root)
        assert plan.model is not None
        assert plan.replica is not None
        task = GenerateTask.of(plan.task, model_folder(plan.model.uri), plan.replica)
        for _ in task.language.loop.engine.warm_up():
            pass
        return cls(plan=plan, task=task, rows=open_rows(plan.data))

    def run(self, output: Path) -> Ran:
        """The path of a job's host from first row to manifest, without Ray between it and its driver."""
        plan = replace(self.plan, output=replace(self.plan.output, uri=str(output)))
        self.task.language.loop.engine.forget_prefixes()
        began = time.perf_counter()
        work = work_of(plan, self.rows)
        folder = take_folder(plan.output.uri, work, mode="error")
        replica = Replica(self.rows, folder.output, self.task, bad_rows="quarantine")
        with ThreadPoolExecutor(PARTS_AHEAD) as pool:
            done = list(pool.map(replica.do, cut(work.rows, part_rows=work.part_rows)))
        finish(folder, [part.record for part in done])
        seconds = time.perf_counter() - began
        return Ran(
            rows=sum(part.record.rows for part in done),
            made=sum(_made(output)),
            seconds=seconds,
            busy=sum(part.busy_seconds for part in done) / seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a run did: rows, tokens made, the share of its seconds in which the engine stepped."""

    rows: int
    made: int
    seconds: float
    busy: float


def _made(output: Path) -> Iterator[int]:
    for path in output.glob("part-*.parquet"):
        yield sum(pq.read_table(path, columns=["output_tokens"])["output_tokens"].to_pylist())
