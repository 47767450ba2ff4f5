"""The engine's speed on one compute thread, what its step costs over the bare matrix products, and the host's part.

    python -m tests.benchmarks.engine_step [--dtype float32] [--weights int8] [--kv fp8] [--model tiny-64m] [--parts …]

One thread: this process is pinned to one core before jax starts, and with it the host's part of the work. The model
is random, of the preset's shapes and a vocabulary of 32,000; prompts of 128 tokens, 128 tokens out, greedy, no stop.
``products`` are the matrix products of a decoding step and nothing else, over the same weights laid out the same way.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
    parser.add_argument("--weights", choices=["int8"])
    parser.add_argument("--kv", choices=["fp8"])
    parser.add_argument("--model", default="tiny-64m")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    return parser.parse_args()


def ready(options: argparse.Namespace) -> None:
    """Seconds until every shape is compiled."""
    engine, _, _ = _engine(options)
    began, cpu = time.perf_counter(), time.process_time()
    shapes = list(engine.warm_up())
    print(
        f"{options.dtype}: {len(shapes)} shapes compiled in {time.perf_counter() - began:.1f} s, "
        f"{time.process_time() - cpu:.1f} CPU seconds",
        flush=True,
    )


def serving(options: argparse.Namespace) -> None:
    """Tokens per second of the engine, and its decoding steps beside bare products made between them."""
    engine, program, params = _engine(options)
    for concurrency in options.concurrency:
        products = _products(program, params, rows=concurrency)
        _serve(engine, concurrency, out=4)  # compiles
        measured = _serve(engine, concurrency, out=OUT, probe=products)
        made, bare = concurrency * OUT, statistics.median(measured.probes)
        print(
            f"{options.dtype} concurrency {concurrency}: {made / measured.wall:.1f} tokens/s, "
            f"{made / measured.cpu:.1f} per CPU second · first token {1e3 * measured.first_token:.0f} ms · "
            f"decoding step {1e3 * statistics.median(measured.steps):.1f} ms · bare products {1e3 * bare:.1f} ms · "
            f"ratio {statistics.median(measured.steps) / bare:.2f}",
            flush=True,
        )


@dataclass(kw_only=True)
class Served:
    """Seconds: of all without the probes, of each decoding step, of each probe, to the first tokens."""

    wall: float = 0.0
    cpu: float = 0.0
    first_token: float = 0.0
    steps: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)


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
    print(
        f"host, 256 sequences: {1e3 * statistics.median(times):.3f} ms a step, least {1e3 * min(times):.3f}, "
        f"p99 {1e3 * sorted(times)[-3]:.3f}"
    )


def waiting(options: argparse.Namespace) -> None:
    """Seconds to schedule a step of 256 sequences with few and with many requests waiting."""
    from tpuctl.engine.pages import PagePool
    from tpuctl.engine.scheduler import Scheduler, SchedulerOptions
    from tpuctl.engine.sequence import Sequence

    for count in (0, 256, 4096):
        sizes = SchedulerOptions(page_size=16, max_running=256, max_step_tokens=512, max_rows=256, max_length=4096)
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
    from tpuctl.nn.quantised import quantised_tree
    from tpuctl.plan.schema import MeshPlan

    spec = PRESETS[options.model]
    spec = spec if spec.vocab_size else replace(spec, vocab_size=VOCAB)
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1), devices=jax.devices()[:1])
    most = max(options.concurrency)
    sizes = EngineOptions(
        max_length=IN + OUT,
        num_pages=most * (IN + OUT) // options.page_size + 8,
        page_size=options.page_size,
        max_running=most,
        max_step_tokens=max(128, most),
        prefix_cache=False,
    )
    run = RunnerOptions(dtype=jnp.dtype(options.dtype), quantised=options.weights, kv_dtype=options.kv)
    params = init_params(spec, jax.random.key(0))
    params = quantised_tree(params) if options.weights else params
    runner = Runner(spec, params, mesh=mesh, engine=sizes, options=run)
    return Engine(runner, sizes=runner.program.sizes, options=sizes), runner.program, runner._params


def _request(number: int, *, out: int = OUT) -> Any:
    from tpuctl.engine.request import Request, SamplingParams

    prompt = tuple((number * 7919 + i * 104729) % VOCAB for i in range(IN))
    return Request(request_id=str(number), prompt=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=out))


def _serve(engine: Any, concurrency: int, *, out: int, probe: Callable[[], Any] | None = None) -> Served:
    """All requests at once. After every eighth decoding step a probe runs, and the step after it is not counted."""
    for i in range(concurrency):
        engine.add_request(_request(i, out=out))
    measured = Served()
    firsts: dict[str, float] = {}
    while engine.has_work():
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = engine.step()
        seconds = time.perf_counter() - wall
        measured.wall += seconds
        measured.cpu += time.process_time() - cpu
        for output in outputs:
            firsts.setdefault(output.request_id, measured.wall)
        decoding = len(outputs) == concurrency and engine.stats().waiting == 0
        if decoding and probe is not None:
            measured.steps.append(seconds)
            if len(measured.steps) % 8 == 0:
                _probe(measured, engine, probe)
    measured.first_token = statistics.median(firsts.values())
    return measured


def _probe(measured: Served, engine: Any, probe: Callable[[], Any]) -> None:
    """Let the step on the device end, time the probe, and start the next step."""
    wall, cpu = time.perf_counter(), time.process_time()
    engine._in_flight.launched.tokens.block_until_ready()
    measured.wall += time.perf_counter() - wall
    measured.cpu += time.process_time() - cpu
    began = time.perf_counter()
    probe()
    measured.probes.append(time.perf_counter() - began)
    wall, cpu = time.perf_counter(), time.process_time()
    engine.step()
    measured.wall += time.perf_counter() - wall
    measured.cpu += time.process_time() - cpu


def _products(program: Any, params: Any, *, rows: int) -> Callable[[], Any]:
    """A call that makes the matrix products of one decoding step over the engine's own weights."""
    import jax
    import jax.numpy as jnp

    from tpuctl.nn.layers import project, project_back

    def products(params: Any, x: jax.Array) -> jax.Array:
        for group in params["groups"]:
            for i in range(len(group["attention"]["query"])):
                attention, mlp = group["attention"], group["mlp"]
                q, k, v = (project(x, attention[name][i]) for name in ("query", "key", "value"))
                x = project_back(q + 0 * jnp.sum(k + v), attention["out"][i])
                gate, up = (project(x, mlp[name][i]) for name in ("gate", "up"))
                x = project_back(gate * up, mlp["down"][i])
        contracted = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(x[0], params["ends"]["embedding"], contracted, preferred_element_type=jnp.float32)

    x = jnp.ones((1, rows, program.spec.hidden_size), program.options.dtype)
    run = jax.jit(products)
    run(params, x).block_until_ready()
    return lambda: run(params, x).block_until_ready()


PARTS = {"ready": ready, "serving": serving, "host": host, "waiting": waiting}

if __name__ == "__main__":
    main()
