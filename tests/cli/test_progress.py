"""The phase line in a pipe and for programs."""

import json

import pytest

from tpuctl.cli.progress import JsonView, PlainView, seconds, summary
from tpuctl.runs.events import event


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def step(number: int, steps: int = 100) -> dict:
    return event(
        "step", step=number, steps=steps, loss=2.5, tokens_per_second=1234.5, data_stall=0.013, eta_seconds=61.0
    )


def test_plain_view_steps_every_moment_prints_one_line_per_interval(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    view = PlainView(clock=clock, interval_seconds=5)
    for number in range(1, 13):
        view.event(step(number))
        clock.now += 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("step ")[1].split(" of")[0] for line in lines] == ["1", "6", "11"]
    assert "loss 2.5000  1,234 tokens/s  data stall 1.3 %  ETA 1 min 01 s" in lines[0]


def test_plain_view_last_step_is_always_printed(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(clock=FakeClock(), interval_seconds=5)
    view.event(step(99))
    view.event(step(100))
    assert "step 100 of 100" in capsys.readouterr().out


def test_plain_view_hosts_says_joined_once_when_all_are_in(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView(clock=FakeClock())
    for host in (1, 0, 1):
        view.event(event("host", host=host, hosts=2, devices=4, platform="cpu", simulated=True))
        if host == 1 and not capsys.readouterr().out:
            continue
    view.event(step(1))
    assert "(simulated)" in capsys.readouterr().out


def test_plain_view_unknown_event_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    PlainView(clock=FakeClock()).event(event("of-a-later-version", x=1))
    assert capsys.readouterr().out == ""


def test_json_view_every_line_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    view.event(step(3))
    view.line("plain words")
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [d["schema"] for d in documents] == ["tpuctl.event/1", "tpuctl.event/1"]
    assert documents[0]["step"] == 3
    assert documents[1]["text"] == "plain words"


@pytest.mark.parametrize(
    ("duration", "words"), [(4.21, "4.2 s"), (200, "3 min 20 s"), (59.99, "60.0 s"), (7500, "2 h 05 min")]
)
def test_seconds_durations_are_said_as_people_do(duration: float, words: str) -> None:
    assert seconds(duration) == words


def test_summary_holds_loss_baselines_and_checkpoints() -> None:
    done = event("done", step=20, seconds=61, eval_loss=2.0, bits_per_byte=1.5, checkpoints=["/r/10", "/r/20"])
    lines = summary(
        done,
        event("baselines", rows=[{"name": "gzip -9", "bits_per_byte": 2.1}, {"name": "trigram", "bits_per_byte": 2.4}]),
    )
    assert lines[1] == "held-out loss  2.0000 nats per token  1.500 bits per byte"
    assert "gzip -9 2.100 · trigram 2.400" in lines[2]
    assert lines[3].endswith("/r/10, /r/20")
