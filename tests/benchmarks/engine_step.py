"""The engine's speed on one compute thread, what its step costs over the bare matrix products, and the host's part.

    python -m tests.benchmarks.engine_step [--dtype float32] [--model tiny-64m] [--parts products serving host waiting]

One thread: this process is pinned to one core before jax starts, and with it the host's part of the work. The model
is random, of the preset's shapes and a vocabulary of 32,000; prompts of 128 tokens, 128 tokens out, greedy, no stop.
``products`` are the matrix products of a decoding step and nothing else, over the same weights laid out the same way.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

CORE = max(os.sched_getaffinity(0))
IN, OUT, VOCAB = 128, 128, 32_000


def main() -> None:
    """Pins, measures, prints."""
    options = _options()
    os.sched_setaffinity(0, {CORE})
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["JAX_PLATFORMS"] = "cpu"
    for part in options.parts:
        PARTS[part](options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model", default="tiny-64m")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    return parser.parse_args()


def serving(options: argparse.Namespace) -> None:
    """Tokens per second of the engine, beside those that the bare products alone would allow."""
    engine, program, params = _engine(options)
    began = time.perf_counter()
    shapes = list(engine.warm_up())
    print(f"ready: {len(shapes)} shapes in {time.perf_counter() - began:.1f} s", flush=True)
    for concurrency in options.concurrency:
        bare = _products_seconds(program, params, rows=concurrency)
        seconds, cpu, first, gaps = _serve(engine, concurrency)
        made = concurrency * OUT
        print(
            f"{options.dtype} concurrency {concurrency}: {made / seconds:.1f} tokens/s, {made / cpu:.1f} per CPU second"
            f" · first token {1e3 * first:.0f} ms · between tokens p50 {1e3 * statistics.median(gaps):.1f} ms"
            f" · bare products {1e3 * bare:.1f} ms a step, {concurrency / bare:.1f} tokens/s"
            f" · step over products {statistics.median(gaps) / bare:.2f}",
            flush=True,
        )


def host(options: argparse.Namespace) -> None:
    """Seconds of the host per step with 256 decoding sequences: all but the device's work, which is a stub."""
    import numpy as np

    from tpuctl.engine.batch import BatchSizes, StepBatch, StepResult
    from tpuctl.engine.engine import Engine
    from tpuctl.engine.options import EngineOptions

    class Instant:
        def warm_up(self) -> Any:
            return iter(())

        def launch(self, batch: StepBatch) -> int:
            return batch.bucket.rows

        def fetch(self, launched: int, *, explained: bool) -> StepResult:
            return StepResult(tokens=np.full(launched, 7, np.int32))

        def explain(self, launched: Any, *, places: Any, targets: Any) -> StepResult:
            raise NotImplementedError

    sizes = EngineOptions(max_length=4096, num_pages=16384, page_size=16, max_running=256, max_step_tokens=512)
    shape = BatchSizes(
        max_running=256, pages_per_sequence=256, page_size=16, scratch_page=16384, query_block=32, vocab_size=VOCAB
    )
    engine = Engine(Instant(), sizes=shape, options=sizes)
    for i in range(256):
        engine.add_request(_request(i, out=700))
    while engine.stats().waiting or engine.stats().output_tokens < 256 * 4:
        engine.step()
    times = []
    for _ in range(300):
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    print(f"host, 256 sequences: {1e3 * statistics.median(times):.3f} ms a step, p99 {1e3 * sorted(times)[-3]:.3f} ms")


def waiting(options: argparse.Namespace) -> None:
    """Seconds to schedule a step of 256 sequences with few and with many requests waiting."""
    from tpuctl.engine.pages import PagePool
    from tpuctl.engine.scheduler import Scheduler, SchedulerOptions, Sequence

    for count in (0, 256, 4096):
        sizes = SchedulerOptions(page_size=16, max_running=256, max_step_tokens=512, max_length=4096)
        scheduler = Scheduler(sizes, pool=PagePool(8192))
        for i in range(256 + count):
            scheduler.add(Sequence(_request(i, out=400), index=0, arrival=i, max_length=4096))
        times = []
        for _ in range(300):
            began = time.perf_counter()
            work = scheduler.schedule()
            times.append(time.perf_counter() - began)
            for item in work:
                if item.draws:
                    item.sequence.num_pending -= 1
                    item.sequence.tokens.append(5)
        print(f"scheduling with {count} waiting: {1e3 * statistics.median(times[100:]):.3f} ms a step")


def _engine(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    import jax
    import jax.numpy as jnp

    from tpuctl.engine.engine import Engine
    from tpuctl.engine.options import EngineOptions
    from tpuctl.engine.runner import Runner, RunnerOptions
    from tpuctl.mesh import create_mesh
    from tpuctl.modelspec import PRESETS
    from tpuctl.nn.params import init_params
    from tpuctl.plan.schema import MeshPlan

    spec = PRESETS[options.model]
    spec = spec if spec.vocab_size else replace(spec, vocab_size=VOCAB)
    most = max(options.concurrency)
    sizes = EngineOptions(
        max_length=IN + OUT,
        num_pages=most * (IN + OUT) // options.page_size + 8,
        page_size=options.page_size,
        max_running=most,
        max_step_tokens=max(128, most),
        prefix_cache=False,
        min_step_tokens=1 if options.dtype == "float32" else 2,
    )
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=1, tensor=1), devices=jax.devices()[:1])
    run = RunnerOptions(dtype=jnp.dtype(options.dtype))
    params = init_params(spec, jax.random.key(0))
    runner = Runner(spec, params, mesh=mesh, engine=sizes, options=run)
    return Engine(runner, sizes=runner.program.sizes, options=sizes), runner.program, runner._params


def _request(number: int, *, out: int = OUT) -> Any:
    from tpuctl.engine.request import Request, SamplingParams

    prompt = tuple((number * 7919 + i * 104729) % VOCAB for i in range(IN))
    return Request(request_id=str(number), prompt=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=out))


def _serve(engine: Any, concurrency: int) -> tuple[float, float, float, list[float]]:
    for i in range(concurrency):
        engine.add_request(_request(i))
    began, cpu = time.perf_counter(), time.process_time()
    seen: dict[str, list[float]] = {}
    while engine.has_work():
        for output in engine.step():
            seen.setdefault(output.request_id, []).append(time.perf_counter())
    seconds = time.perf_counter() - began
    gaps = [b - a for times in seen.values() for a, b in itertools.pairwise(times)]
    first = statistics.median(times[0] - began for times in seen.values())
    return seconds, time.process_time() - cpu, first, gaps


def _products_seconds(program: Any, params: Any, *, rows: int) -> float:
    """The matrix products of one decoding step over the engine's own weights."""
    import jax
    import jax.numpy as jnp

    from tpuctl.engine.placement import param_shapes, stacked
    from tpuctl.nn.layers import project, project_back

    def products(params: Any, x: jax.Array) -> jax.Array:
        tree = stacked(params, like=param_shapes(program.spec))
        layers = tree["layers"]

        def layer(x: jax.Array, this: Any) -> tuple[jax.Array, None]:
            q, k, v = (project(x, this["attention"][name]) for name in ("query", "key", "value"))
            x = project_back(q + 0 * jnp.sum(k + v), this["attention"]["out"])
            gate, up = (project(x, this["mlp"][name]) for name in ("gate", "up"))
            return project_back(gate * up, this["mlp"]["down"]), None

        x, _ = jax.lax.scan(layer, x, layers, unroll=True)
        return jnp.dot(x[0], tree["embedding"].T, preferred_element_type=jnp.float32)

    x = jnp.ones((1, rows, program.spec.hidden_size), program.options.dtype)
    run = jax.jit(products)
    return _median_seconds(lambda: run(params, x).block_until_ready())


def _median_seconds(call: Callable[[], Any], *, count: int = 15) -> float:
    call()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


PARTS = {"serving": serving, "host": host, "waiting": waiting}

if __name__ == "__main__":
    main()
