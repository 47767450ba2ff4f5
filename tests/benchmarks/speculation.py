"""Drafts by lookup on the real model: steps for each token and tokens per second, with and without.

    python -m tests.benchmarks.speculation [FOLDER] [--dtype float32] [--drafts 4] [--concurrency 1 8] [--rounds 5]

One thread, pinned to one core before jax starts. Three kinds of answers of 128 tokens: a copy of a function, the same
with a name replaced, both as likely as can be; and a story drawn at temperature 1. Engines with and without drafts take
turns over one set of weights and programs; what is measured begins when all prompts are computed. The last column says
how many answers are the same, token by token: all, unless two tokens are as near to each other as rounding.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics
import textwrap
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

CORE = max(os.sched_getaffinity(0))
OUT = 128
HEAD = "answers  at once  steps a token  drafts right   tokens/s        ratio (least to most)   the same"
FUNCTIONS = (
    textwrap.dedent,
    inspect.getmodule,
    inspect.getdoc,
    argparse.ArgumentParser.error,
    textwrap.shorten,
    inspect.unwrap,
    inspect.getclosurevars,
    statistics.median_grouped,
)
STORIES = ("a lighthouse", "two brothers", "the last train", "a clock", "the harbour", "a letter", "snow", "the market")


def main() -> None:
    """Pins, measures, prints a table."""
    options = _options()
    os.sched_setaffinity(0, {CORE})
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["JAX_PLATFORMS"] = "cpu"
    plain, drafting, encode = _engines(options)
    print(HEAD, flush=True)
    for kind in ("copy", "edit", "story"):
        for count in options.concurrency:
            prompts = [encode(_prompt(kind, number)) for number in range(count)]
            _run(drafting, kind, prompts)  # compiles
            pairs = [(_run(plain, kind, prompts), _run(drafting, kind, prompts)) for _ in range(options.rounds)]
            print(_row(kind, count, pairs), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="builtin:smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    # In float32 a step of a single token took seconds with as many pages as here, of eight a tenth of a second.
    return parser.parse_args()


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run of an engine: all after the prompts, but for the tokens, which are all."""

    seconds: float
    made: int
    steps: int
    drafted: int
    right: int
    tokens: dict[str, tuple[int, ...]]


def _engines(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """One without drafts and one with, over the same runner, and how a text is cut into tokens."""
    from dataclasses import replace

    import jax
    import jax.numpy as jnp

    from tpuctl.builtin_models.fetch import model_folder
    from tpuctl.engine.engine import Engine
    from tpuctl.engine.options import EngineOptions
    from tpuctl.engine.runner import Runner, RunnerOptions
    from tpuctl.mesh import create_mesh
    from tpuctl.model_folder import read_config
    from tpuctl.modelspec.huggingface import spec_from_config
    from tpuctl.nn.params import param_shardings
    from tpuctl.nn.weights import load_params
    from tpuctl.plan.schema import MeshPlan
    from tpuctl.text.place import TokenizerRef

    folder, dtype = model_folder(options.folder), jnp.dtype(options.dtype)
    config = read_config(folder)
    spec = spec_from_config(config)
    mesh = create_mesh(MeshPlan(slice=1, data=1, fsdp=1, expert=1, tensor=1), devices=jax.devices()[:1])
    shardings = param_shardings(spec, mesh)
    params = load_params(spec, folder, family=config["model_type"], shardings=shardings, dtype=dtype).params
    most = max(options.concurrency)
    sizes = EngineOptions(
        max_length=1024,
        num_pages=most * 16,
        max_running=most,
        max_step_tokens=max(128, most),
        prefix_cache=False,
        speculate=options.drafts,
    )
    runner = Runner(spec, params, mesh=mesh, engine=sizes, options=RunnerOptions(dtype=dtype))
    plain, drafting = (
        Engine(runner, sizes=runner.program.sizes, options=replace(sizes, speculate=count))
        for count in (0, options.drafts)
    )
    tokenizer = TokenizerRef(name=folder, directory=folder, vocab_size=spec.vocab_size).load()
    return plain, drafting, lambda text: tuple(int(token) for token in tokenizer.encode(text).ids)


def _prompt(kind: str, number: int) -> str:
    if kind == "story":
        return f"Here is a story about {STORIES[number % len(STORIES)]}.\n\n"
    code = textwrap.dedent(inspect.getsource(FUNCTIONS[number % len(FUNCTIONS)]))[:1200]
    head = code.partition("\n")[0]
    if kind == "copy":
        return f"# The code:\n\n{code}\n\n# The same code once more, unchanged:\n\n{head}\n"
    name = head.partition("(")[2].partition(",")[0].partition(")")[0].partition("=")[0]
    renamed = head.replace(f"({name}", "(thing")
    return f"# The code:\n\n{code}\n\n# The same code, {name} renamed to thing:\n\n{renamed}\n"


def _run(engine: Any, kind: str, prompts: list[tuple[int, ...]]) -> Ran:
    from tpuctl.engine.request import Request, SamplingParams

    for i, prompt in enumerate(prompts):
        drawing = {"temperature": 1.0, "top_p": 0.95, "seed": i} if kind == "story" else {"temperature": 0.0}
        sampling = SamplingParams(max_tokens=OUT, ignore_eos=True, **drawing)
        engine.add_request(Request(request_id=str(i), prompt=prompt, sampling=sampling))
    tokens: dict[str, list[int]] = defaultdict(list)
    while len(tokens) < len(prompts):
        _step(engine, tokens)
    before, began = engine.stats(), time.perf_counter()
    while engine.has_work():
        _step(engine, tokens)
    seconds, after = time.perf_counter() - began, engine.stats()
    return Ran(
        seconds=seconds,
        made=after.output_tokens - before.output_tokens,
        steps=after.steps - before.steps,
        drafted=after.draft_tokens - before.draft_tokens,
        right=after.accepted_tokens - before.accepted_tokens,
        tokens={name: tuple(made) for name, made in tokens.items()},
    )


def _step(engine: Any, tokens: dict[str, list[int]]) -> None:
    for output in engine.step():
        tokens[output.request_id] += output.token_ids


def _row(kind: str, count: int, pairs: list[tuple[Ran, Ran]]) -> str:
    speeds = [tuple(ran.made / ran.seconds for ran in pair) for pair in pairs]
    ratios = [drafting / plain for plain, drafting in speeds]
    slow, fast = (statistics.median(column) for column in zip(*speeds, strict=True))
    plain, drafting = pairs[0]
    steps = " → ".join(f"{ran.steps * count / ran.made:.2f}" for ran in pairs[0])
    same = sum(plain.tokens[name] == drafting.tokens[name] for name in plain.tokens)
    return (
        f"{kind:<8}{count:>7}   {steps:<13}{f'{drafting.right} of {drafting.drafted}':>14}   "
        f"{f'{slow:.1f} → {fast:.1f}':<16}{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})   "
        f"{same} of {count}"
    )


if __name__ == "__main__":
    main()
