"""What serving costs over the engine, and what a cached prefix saves: the same model folder, one core for each.

    python -m tests.benchmarks.serve_overhead FOLDER [--rounds 5] [--concurrency 8 32] [--set KEY=VALUE]…

``http``: tokens per second of the endpoint under the load of so many clients, streamed, beside those of the engine
driven directly with the same prompts and as many requests at once, in turns; the aim is a ratio of at least 0.95. Each
has the first core, the clients the second. ``prefix``: time to the first token of a prompt of ``--prefix`` tokens that
none has begun with before, and of another that begins with the same; the aim is a ratio of at most 0.2.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.benchmarks.measuring import pairs, report
from tests.serve.serve_here import served_here
from tpuctl.endpoint.client import Endpoint
from tpuctl.endpoint.load import Load, measure
from tpuctl.engine.request import Request, SamplingParams
from tpuctl.entrypoints.serve_model import load_model
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ServingPlan
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import load_recipe
from tpuctl.serve.server import Loaded

RECIPE = Path(__file__).parents[2] / "recipes" / "serve-quickstart.toml"
SERVER_CORE, LOAD_CORE = 0, 1
OUTPUT = 128
REQUESTS_PER_CLIENT = 2
WORDS = ("time", "water", "house", "light", "small", "green", "stone", "river", "under", "seven", "night", "paper")


def loaded_here(overrides: Sequence[str], cwd: Path) -> Loaded:
    """What the endpoint loads, in this process."""
    recipe = load_recipe(RECIPE, overrides=overrides)
    plan = resolve(recipe, environ={}, cwd=cwd, source=read_source(recipe, environ={}, cwd=cwd))
    assert isinstance(plan, ServingPlan)
    loaded = load_model(plan, simulated=True, tell=lambda *_, **__: None)
    assert isinstance(loaded, Loaded)
    return loaded


def some_prompts(count: int, *, words: int, seed: int) -> tuple[str, ...]:
    """Texts of random words."""
    chance = random.Random(seed)
    return tuple(" ".join(chance.choices(WORDS, k=words)) for _ in range(count))


def alone(loaded: Loaded, prompts: Sequence[str], *, concurrency: int) -> float:
    """Tokens per second of the engine, given the next prompt as soon as one is done."""
    engine, tokenizer = loaded.engine, loaded.served.tokenizer
    engine.forget_prefixes()
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    waiting = [
        Request(request_id=str(number), prompt=tuple(tokenizer.encode(prompt).ids), sampling=sampling)
        for number, prompt in enumerate(prompts)
    ]
    began = time.perf_counter()
    for _ in range(concurrency):
        engine.add_request(waiting.pop())
    while engine.has_work():
        for output in engine.step():
            if output.finish_reason is not None and waiting:
                engine.add_request(waiting.pop())
    return len(prompts) * OUTPUT / (time.perf_counter() - began)


def over_http(url: str, prompts: Sequence[str], *, concurrency: int, output: int = OUTPUT) -> dict[str, float]:
    """Tokens per second of the endpoint, and seconds to the first token."""
    os.sched_setaffinity(0, {LOAD_CORE})
    load = Load(
        model="m",
        concurrency=concurrency,
        requests=len(prompts),
        prompt_tokens=0,
        output_tokens=output,
        prompts=tuple(prompts),
    )
    found = measure(Endpoint(url, key=None), load).document()
    os.sched_setaffinity(0, {SERVER_CORE})
    if found["failed"] or found["output_tokens"] != len(prompts) * output:
        raise SystemExit(f"{url}: {found}")
    return {"speed": found["output_tokens_per_second"], "first": found["first_token_seconds"]["p50"]}


def http(loaded: Loaded, url: str, options: argparse.Namespace) -> None:
    """The endpoint beside its engine."""
    for concurrency in options.concurrency:
        seeds = iter(range(10_000))

        def prompts(many: int = REQUESTS_PER_CLIENT * concurrency, seeds=seeds) -> tuple[str, ...]:  # type: ignore[no-untyped-def]
            return some_prompts(many, words=options.words, seed=next(seeds))

        measured = pairs(
            lambda many=concurrency, prompts=prompts: over_http(url, prompts(), concurrency=many)["speed"],
            lambda many=concurrency, prompts=prompts: alone(loaded, prompts(), concurrency=many),
            count=options.rounds,
        )
        report(f"{concurrency} at once", ("endpoint", "engine alone"), measured, unit="tokens/s")


def prefix(url: str, options: argparse.Namespace) -> None:
    """A prompt's beginning computed, and found in the cache."""

    def first_token(prompt: str) -> float:
        return over_http(url, [prompt], concurrency=1, output=1)["first"]

    measured = []
    for number in range(options.rounds + 1):
        (beginning,) = some_prompts(1, words=options.prefix, seed=1_000_000 + number)
        cold, cached = first_token(f"{beginning} one"), first_token(f"{beginning} other")
        measured.append((cached, cold))
    title = f"first token after {options.prefix} words"
    report(title, ("with the prefix cached", "without"), measured[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--words", type=int, default=100, help="of a prompt")
    parser.add_argument("--prefix", type=int, default=1000, help="words of the shared beginning")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    options = parser.parse_args()
    # XLA's threads stay where the first of them is made.
    os.sched_setaffinity(0, {SERVER_CORE})
    sizes = ["engine.max_sequences=32", "engine.max_length=2048"]
    overrides = [f"model.source={options.folder}", "serve.name=m", *sizes, *options.set]
    with tempfile.TemporaryDirectory() as folder, served_here(RECIPE.name, *overrides, cwd=Path(folder)) as url:
        prefix(url, options)
        if options.concurrency:
            http(loaded_here(overrides, Path(folder)), url, options)


if __name__ == "__main__":
    main()
