"""Load on an endpoint: so many requests, so many at a time, and how long each thing took."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tpuctl.endpoint.client import Endpoint, RefusedError, Session
from tpuctl.errors import UsageError

_PATH = "/v1/completions"
_WORDS = ("time", "water", "house", "light", "small", "green", "stone", "river", "under", "seven", "night", "paper")
_SAMPLE_WORDS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What to ask for. Without ``prompts`` they are made of random words, about ``prompt_tokens`` long."""

    model: str
    concurrency: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    seed: int = 0
    prompts: tuple[str, ...] = ()


@dataclass(kw_only=True, slots=True)
class Timed:
    """One request: seconds to its first text and to its end, and its tokens by the endpoint's own count."""

    first_seconds: float
    total_seconds: float
    prompt_tokens: int
    output_tokens: int

    @property
    def token_seconds(self) -> float | None:
        """Seconds between tokens, the first one's wait left out."""
        return (self.total_seconds - self.first_seconds) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(kw_only=True, slots=True)
class Measured:
    """All requests of one load."""

    load: Load
    seconds: float
    timed: list[Timed]
    failed: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The figures: rates, and percentiles in seconds."""
        output = sum(item.output_tokens for item in self.timed)
        prompt = sum(item.prompt_tokens for item in self.timed)
        between = [seconds for item in self.timed if (seconds := item.token_seconds) is not None]
        return {
            "concurrency": self.load.concurrency,
            "requests": len(self.timed),
            "failed": len(self.failed),
            "seconds": self.seconds,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "requests_per_second": len(self.timed) / self.seconds,
            "output_tokens_per_second": output / self.seconds,
            "first_token_seconds": percentiles([item.first_seconds for item in self.timed]),
            "between_tokens_seconds": percentiles(between),
            "answer_seconds": percentiles([item.total_seconds for item in self.timed]),
        }


def measure(endpoint: Endpoint, load: Load) -> Measured:
    """Put a load on an endpoint.

    Raises:
        UsageError: It refuses even one request.
        ClusterError: It can't be reached.
    """
    return asyncio.run(_measure(endpoint, load))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th and 99th percentile, by the nearest rank; empty of nothing."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {f"p{p}": ordered[min(len(ordered) - 1, -(-p * len(ordered) // 100) - 1)] for p in (50, 90, 99)}


async def _measure(endpoint: Endpoint, load: Load) -> Measured:
    async with endpoint.session(connections=load.concurrency) as session:
        extras = await _extras(session, load)
        prompts = load.prompts or await _prompts(session, load, extras)
        waiting = iter([prompts[number % len(prompts)] for number in range(load.requests)])
        measured = Measured(load=load, seconds=0.0, timed=[])
        start = time.perf_counter()

        async def client() -> None:
            for prompt in waiting:
                try:
                    measured.timed.append(await _one(session, load, prompt, extras))
                except (RefusedError, httpx.HTTPError) as error:
                    measured.failed.append(str(error))

        async with asyncio.TaskGroup() as group:
            for _ in range(load.concurrency):
                group.create_task(client())
        measured.seconds = time.perf_counter() - start
    return measured


async def _extras(session: Session, load: Load) -> dict[str, Any]:
    """Fields that make every answer as long as asked, where the endpoint knows them."""
    extras = {"ignore_eos": True, "temperature": 0}
    try:
        await _one(session, load, "a", {**extras, "max_tokens": 1})
    except RefusedError as error:
        if error.param != "ignore_eos":
            raise
        return {"temperature": 0}
    except httpx.HTTPError as error:
        raise UsageError(f"the endpoint can't be reached: {error}") from error
    return extras


async def _prompts(session: Session, load: Load, extras: dict[str, Any]) -> tuple[str, ...]:
    """Random words, as many as make about the tokens wanted, by what the endpoint counts for some."""
    chance = random.Random(load.seed)

    def words(count: int) -> str:
        return " ".join(chance.choices(_WORDS, k=count))

    few = await _one(session, load, words(_SAMPLE_WORDS), {**extras, "max_tokens": 1})
    count = max(1, round(_SAMPLE_WORDS * load.prompt_tokens / few.prompt_tokens))
    return tuple(words(count) for _ in range(load.requests))


async def _one(session: Session, load: Load, prompt: str, extras: dict[str, Any]) -> Timed:
    body = {
        "model": load.model,
        "prompt": prompt,
        "max_tokens": load.output_tokens,
        "stream_options": {"include_usage": True},
        **extras,
    }
    start = time.perf_counter()
    first: float | None = None
    usage: dict[str, Any] = {}
    async for chunk in session.stream(_PATH, body):
        if first is None and chunk["choices"]:
            first = time.perf_counter() - start
        usage = chunk.get("usage") or usage
    total = time.perf_counter() - start
    return Timed(
        first_seconds=total if first is None else first,
        total_seconds=total,
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        output_tokens=int(usage.get("completion_tokens", 0)),
    )
