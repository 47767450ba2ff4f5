"""SIGTERM at a worker is a notice while it trains, whoever wanted the signal before, and its end afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import jax
import pytest
from ray.train.v2.api.preemption import PreemptionInfo

from tpuctl.entrypoints import preemption
from tpuctl.entrypoints.gang import GangConfig, _Joining, join, leave


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def notice(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Where Ray Train's watcher leaves its word for this worker."""
    found = SimpleNamespace(preemption_info=None)
    monkeypatch.setattr(preemption, "get_train_context", lambda: SimpleNamespace(preemption_context=found))
    return found


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_after_joining_is_a_notice_although_jax_wants_it_too(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    taken: list[int] = []

    def initialize(*_: object, **__: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _frame: taken.append(number))

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    join(_Joining.of(0, processes, "127.0.0.1", 1, GangConfig(hosts=processes)))
    assert not preemption.noticed()
    os.kill(os.getpid(), signal.SIGTERM)
    assert preemption.noticed()
    assert not taken


def test_sigterm_after_leaving_ends_the_worker_again() -> None:
    preemption.heed_sigterm()
    leave()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_word_of_a_drained_node_is_a_notice(notice: SimpleNamespace) -> None:
    preemption.heed_sigterm()
    assert not preemption.noticed()
    notice.preemption_info = PreemptionInfo(deadline_ms=None, preempted_node_to_ranks={"node": [1]})
    assert preemption.noticed()
