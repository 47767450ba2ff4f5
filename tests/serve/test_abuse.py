"""Hundreds of clients at once that do whatever clients do: no page leaks, nothing hangs, no fault of theirs is ours."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.fakes.toy_engine import ToyEngine
from tests.serve.server import Running, running
from tpuctl.serve.border import HttpOptions

CONCURRENT = 64
# What hangs never ends; less than this, and a machine that others use too would be taken for a hanging server.
ANSWER_SECONDS = 300
MANY = int(os.environ.get("TPUCTL_TEST_REQUESTS", "4000"))
JSON = {"Content-Type": "application/json"}


def _fields(chance: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"max_tokens": chance.randint(1, 60), "stream": chance.random() < 0.5}
    if chance.random() < 0.3:
        fields["stop"] = chance.choice(["a", ["ab", "c"], "zzz"])
    if chance.random() < 0.3:
        fields["seed"] = chance.randrange(100)
    if chance.random() < 0.2:
        fields["n"] = chance.randint(2, 3)
    if chance.random() < 0.2:
        fields["logit_bias"] = {"256": 100}
    return fields


def _body(chance: random.Random) -> tuple[str, dict[str, Any]]:
    text = "x" * chance.randint(1, 90)
    if chance.random() < 0.5:
        logprobs = {"logprobs": 2} if chance.random() < 0.3 else {}
        return "/v1/completions", {"model": "toy", "prompt": text, **logprobs, **_fields(chance)}
    messages = [{"role": "user", "content": text}]
    return "/v1/chat/completions", {"model": "toy", "messages": messages, **_fields(chance)}


class Abuse:
    """One client of many; ``seen`` counts what became of its requests."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.seen: Counter[str] = Counter()

    async def one(self, chance: random.Random) -> None:
        kinds = (self.answered, self.left, self.cancelled, self.bad, self.huge, self.slow, self.hurried)
        kind = chance.choices(kinds, weights=(5, 2, 2, 1, 0.3, 1, 1))[0]
        await asyncio.wait_for(kind(chance), ANSWER_SECONDS)
        self.seen[kind.__name__] += 1

    async def answered(self, chance: random.Random) -> None:
        path, body = _body(chance)
        response = await self.client.post(path, json=body)
        self._status(response, 200)
        if body["stream"]:
            assert response.text.endswith("data: [DONE]\n\n")
            chunks = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
            ends = Counter(choice["index"] for c in chunks for choice in c["choices"] if choice["finish_reason"])
            assert ends == Counter(range(body.get("n", 1)))

    async def left(self, chance: random.Random) -> None:
        """Goes in the middle of a stream."""
        path, body = _body(chance)
        async with self.client.stream("POST", path, json={**body, "stream": True, "max_tokens": 60}) as response:
            self._status(response, 200)
            async for _ in response.aiter_bytes():
                if chance.random() < 0.3:
                    return

    async def cancelled(self, chance: random.Random) -> None:
        """Goes while it waits for an answer."""
        path, body = _body(chance)
        try:
            async with asyncio.timeout(chance.random() * 0.05):
                await self.client.post(path, json={**body, "max_tokens": 100})
        except TimeoutError:
            return

    async def bad(self, chance: random.Random) -> None:
        path, body = _body(chance)
        wrong = chance.choice(
            [
                b"{",
                b"[]",
                b"\xff",
                json.dumps({**body, "temperature": -1}).encode(),
                json.dumps({**body, "x": 1}).encode(),
            ]
        )
        self._status(await self.client.post(path, content=wrong, headers=JSON), 400)

    async def huge(self, chance: random.Random) -> None:
        path, _ = _body(chance)
        try:
            response = await self.client.post(path, content=b'"' + b"x" * 300_000, headers=JSON)
        except (httpx.WriteError, httpx.ReadError):
            return  # the answer came, and the connection went, before all was sent: the reset may take the answer along
        self._status(response, 413)

    async def slow(self, chance: random.Random) -> None:
        """Reads little by little at first; all of it so would take this machine, not the server, a minute."""
        pauses = 50
        path, body = _body(chance)
        async with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            self._status(response, 200)
            async for _ in response.aiter_bytes(64):
                if pauses:
                    pauses -= 1
                    await asyncio.sleep(0.001)

    async def hurried(self, chance: random.Random) -> None:
        """Gives it too little time."""
        path, body = _body(chance)
        header = {"X-Request-Timeout-Seconds": "0.005"}
        response = await self.client.post(path, json={**body, "stream": False, "max_tokens": 100}, headers=header)
        self._status(response, 200, 408)

    def _status(self, response: httpx.Response, *expected: int) -> None:
        self.seen[str(response.status_code)] += 1
        assert response.status_code in (*expected, 429), response.status_code


async def abuse(served: Running, *, requests: int) -> Counter[str]:
    chance = random.Random(0)
    turns = asyncio.Semaphore(CONCURRENT)
    limits = httpx.Limits(max_connections=CONCURRENT)
    async with httpx.AsyncClient(base_url=served.url, timeout=ANSWER_SECONDS, limits=limits) as client:
        abuser = Abuse(client)

        async def one(seed: int) -> None:
            async with turns:
                await abuser.one(random.Random(seed))

        async with asyncio.TaskGroup() as group:
            for _ in range(requests):
                group.create_task(one(chance.randrange(2**32)))
    return abuser.seen


@pytest.mark.parametrize("requests", [500, pytest.param(MANY, marks=pytest.mark.slow)])
def test_abuse_leaks_nothing_and_hangs_nothing(requests: int) -> None:
    engine = ToyEngine(max_running=16, num_pages=2048, step_seconds=0.0005)
    with running(engine, http=HttpOptions(max_body_bytes=100_000)) as served:
        seen = asyncio.run(abuse(served, requests=requests))
        served.wait_until_idle()
        sys.stdout.write(f"{requests} requests: {dict(seen)}\n")
        assert not [status for status in seen if status.startswith("5")]
        assert seen["200"] > requests / 3
        assert all(seen[kind] for kind in ("answered", "left", "cancelled", "bad", "slow", "hurried"))
        assert served.client.post("/v1/completions", json={"model": "toy", "prompt": "x"}).status_code == 200
