from __future__ import annotations

import pytest

from tpuctl.train.meter import Meter


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_report_counts_only_time_that_is_training() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    for _ in range(4):
        clock.now += 2
        meter.count(tokens=50)
    with meter.aside():
        clock.now += 1000

    speed = meter.report()

    assert speed.step_seconds == pytest.approx(2)
    assert speed.tokens_per_second == pytest.approx(25)
    assert speed.data_stall == 0


def test_report_gives_the_share_of_time_spent_waiting() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    with meter.waiting():
        clock.now += 1
    clock.now += 3
    meter.count(tokens=1)

    assert meter.report().data_stall == pytest.approx(0.25)


def test_report_begins_anew_each_time() -> None:
    clock = FakeClock()
    meter = Meter(clock)
    clock.now += 10
    meter.count(tokens=10)
    meter.report()
    clock.now += 1
    meter.count(tokens=10)

    assert meter.report().tokens_per_second == pytest.approx(10)
