"""Tokens per second of an endpoint beside other servers: the same model folder, the same load, one core for each.

    python -m tests.benchmarks.serve_peers FOLDER [--rounds 5] [--concurrency 1 8 32] [--peer NAME=COMMAND]…

``COMMAND`` starts a server of OpenAI's API, the placeholders are ``{folder}`` and ``{port}``. The model is ``m``.
In each round every server is started, asked until it answers, put under each load and ended, one server after another.
All of a server's threads share the first core, the load is made on the second. Prompts are random words of about
``--prompt`` tokens; every answer is ``--output`` tokens long, streamed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.serve.serve_here import served_here
from tpuctl.endpoint.client import Endpoint
from tpuctl.endpoint.load import Load, measure

SERVER_CORE, LOAD_CORE = 0, 1
READY_SECONDS = 600.0
REQUESTS_PER_CLIENT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Up:
    """A server that answers: where, after how many seconds, and its processes' parent."""

    url: str
    ready_seconds: float
    parent: psutil.Process

    def cpu_seconds(self) -> float:
        """Of all its processes so far."""
        family = [self.parent, *self.parent.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in family)


@contextmanager
def ours(options: argparse.Namespace) -> Iterator[Up]:
    """The quickstart's endpoint with another model, in this checkout."""
    overrides = [f"model.source={options.folder}", "serve.name=m", "engine.max_sequences=32", *options.set]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as cwd, on_core(SERVER_CORE):
        before = set(psutil.Process().children())
        with served_here("serve-quickstart.toml", *overrides, cwd=Path(cwd)) as url:
            (parent,) = set(psutil.Process().children()) - before
            yield Up(url=url, ready_seconds=time.monotonic() - began, parent=parent)


@contextmanager
def peer(command: str, options: argparse.Namespace, *, port: int) -> Iterator[Up]:
    """Another server, once it answers a request."""
    url, began = f"http://127.0.0.1:{port}", time.monotonic()
    words = shlex.split(command.format(folder=options.folder, port=port))
    with tempfile.TemporaryFile() as log, on_core(SERVER_CORE):
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            while not answers(url):
                if process.poll() is not None or time.monotonic() - began > READY_SECONDS:
                    log.seek(0)
                    raise SystemExit(f"{command}: no answer\n{log.read()[-3000:].decode(errors='replace')}")
                time.sleep(0.5)
            yield Up(url=url, ready_seconds=time.monotonic() - began, parent=psutil.Process(process.pid))
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def answers(url: str) -> bool:
    """Whether a completion of a few tokens comes back."""
    try:
        return httpx.post(f"{url}/v1/completions", json=asked(4), timeout=300).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def asked(tokens: int) -> dict[str, Any]:
    """A small request."""
    return {"model": "m", "prompt": "import os", "max_tokens": tokens, "temperature": 0}


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started in the block stays on one core; this process is on the load's before and after."""
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, {LOAD_CORE})


def under_load(up: Up, options: argparse.Namespace, *, concurrency: int, seed: int) -> dict[str, float]:
    """The figures of one load on one server."""
    os.sched_setaffinity(0, {LOAD_CORE})
    load = Load(
        model="m",
        concurrency=concurrency,
        requests=REQUESTS_PER_CLIENT * concurrency,
        prompt_tokens=options.prompt,
        output_tokens=options.output,
        seed=seed,
    )
    cpu = up.cpu_seconds()
    found = measure(Endpoint(up.url, key=None), load).document()
    spent = up.cpu_seconds() - cpu
    if found["failed"] or found["output_tokens"] != load.requests * load.output_tokens:
        raise SystemExit(f"{up.url}: {found}")
    first, between = found["first_token_seconds"], found["between_tokens_seconds"]
    return {
        "tokens/s": found["output_tokens_per_second"],
        "tokens per CPU s": found["output_tokens"] / spent,
        "first token p50, ms": 1e3 * first["p50"],
        "first token p99, ms": 1e3 * first["p99"],
        "between tokens p50, ms": 1e3 * between["p50"],
        "between tokens p99, ms": 1e3 * between["p99"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of our own recipe")
    options = parser.parse_args()
    peers = dict(text.split("=", 1) for text in options.peer)
    figures: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    ready: dict[str, list[float]] = defaultdict(list)
    for round_ in range(options.rounds):
        servers = {"tpuctl": ours(options)}
        servers |= {
            name: peer(command, options, port=31_000 + 10 * round_ + place)
            for place, (name, command) in enumerate(peers.items())
        }
        for name, server in servers.items():
            with server as up:
                ready[name].append(up.ready_seconds)
                for concurrency in options.concurrency:
                    found = under_load(up, options, concurrency=concurrency, seed=round_)
                    figures[name, concurrency].append(found)
                    print(f"# {name} at {concurrency}: {found['tokens/s']:.1f} tokens/s", flush=True)
    for name, seconds in ready.items():
        print(f"{name}: ready after {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")
    for (name, concurrency), rounds in figures.items():
        row = {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}
        speeds = [item["tokens/s"] for item in rounds]
        spread = f"({min(speeds):.1f} to {max(speeds):.1f})"
        print(f"{name} at {concurrency} {spread}: " + " · ".join(f"{key} {value:.1f}" for key, value in row.items()))
        if name != "tpuctl":
            own = [item["tokens/s"] for item in figures["tpuctl", concurrency]]
            ratios = [mine / theirs for mine, theirs in zip(own, speeds, strict=True)]
            print(f"  tpuctl to {name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
