"""The loop that drives an engine, over one that says what it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tpuctl.engine.request import Output, Request
from tpuctl.infer.engine_loop import EngineLoop


class Saying:
    """An engine that says letters, some at once, until it is stopped."""

    def __init__(self, *, at_once: int) -> None:
        self.at_once = at_once
        self.said: dict[str, int] = {}

    def add_request(self, request: Request) -> None:
        self.said[request.request_id] = 0

    def abort(self, request_id: str) -> bool:
        return self.said.pop(request_id, None) is not None

    def has_work(self) -> bool:
        return bool(self.said)

    def step(self) -> list[Output]:
        outputs = []
        for name, count in self.said.items():
            self.said[name] = count + self.at_once
            outputs.append(Output(request_id=name, token_ids=tuple(range(count, count + self.at_once))))
        return outputs


class Until:
    def __init__(self, last: int) -> None:
        self.last = last

    def add(self, token_ids: Sequence[int]) -> bool:
        return self.last in token_ids


@pytest.mark.parametrize("at_once", [1, 2, 5, 9])
def test_watch_ends_a_sample_at_its_token_however_many_come_at_once(at_once: int) -> None:
    engine: Any = Saying(at_once=at_once)
    answers = EngineLoop(engine).ask([Request(request_id="r", prompt=(1,))], watches=lambda _: Until(6))
    assert [sample.token_ids for sample in answers[0].samples] == [[0, 1, 2, 3, 4, 5, 6]]
    assert answers[0].samples[0].finish_reason == "stop"
