from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.plans import a_plan
from tpuctl.errors import StorageError
from tpuctl.runs.events import event
from tpuctl.runs.record import (
    Attempt,
    EventsWriter,
    MetricsWriter,
    begin_attempt,
    end_attempt,
    read_events,
    read_metrics,
    read_record,
)

FIRST = Attempt(number=1, submission_id="run-1", cluster="http://head:8265", tpuctl_version="1", started=100.0)


def test_record_of_two_attempts_reads_back(tmp_path: Path) -> None:
    plan = a_plan(directory=str(tmp_path))
    begin_attempt(plan, FIRST)
    end_attempt(str(tmp_path), status="failed", ended=200.0, reason="out of memory")
    written = begin_attempt(plan, replace(FIRST, number=2, submission_id="run-2", started=300.0))
    record = read_record(str(tmp_path))
    assert record == written
    assert [(a.number, a.status, a.ended, a.reason) for a in record.attempts] == [
        (1, "failed", 200.0, "out of memory"),
        (2, "running", None, None),
    ]
    assert record.latest is not None
    assert record.latest.submission_id == "run-2"


def test_record_of_an_attempt_that_never_said_how_it_ended_is_lost(tmp_path: Path) -> None:
    plan = a_plan(directory=str(tmp_path))
    begin_attempt(plan, FIRST)
    record = begin_attempt(plan, replace(FIRST, number=2, started=300.0))
    assert (record.attempts[0].status, record.attempts[0].ended) == ("lost", 300.0)
    assert "died" in (record.attempts[0].reason or "")


def test_record_begun_twice_for_one_attempt_holds_it_once(tmp_path: Path) -> None:
    plan = a_plan(directory=str(tmp_path))
    begin_attempt(plan, FIRST)
    assert begin_attempt(plan, replace(FIRST, started=150.0)).attempts == (replace(FIRST, started=150.0),)


def test_record_never_holds_a_secret(tmp_path: Path) -> None:
    begin_attempt(a_plan(directory=str(tmp_path), secrets={"HF_TOKEN": "hf_test123"}), FIRST)
    text = (tmp_path / "run.json").read_text()
    assert "hf_test123" not in text
    assert json.loads(text)["plan"]["job"]["secrets"] == {"HF_TOKEN": "***"}


def test_read_record_where_there_is_none_or_nonsense(tmp_path: Path) -> None:
    assert read_record(str(tmp_path)) is None
    (tmp_path / "run.json").write_text('{"schema": "tpuctl.run/9"}')
    with pytest.raises(StorageError, match="no run record this version can read"):
        read_record(str(tmp_path))


def test_metrics_after_a_resume_are_one_history_without_the_lost_steps(tmp_path: Path) -> None:
    first = MetricsWriter(str(tmp_path), resume_step=None)
    for step in range(1, 8):
        first.append(event("step", step=step, loss=float(step)))
    first.append(event("eval", step=5, loss=0.5))
    (tmp_path / "metrics.jsonl").open("ab").write(b'{"event":"step","st')  # killed while writing
    second = MetricsWriter(str(tmp_path), resume_step=5)
    second.append(event("step", step=6, loss=60.0))
    second.append(event("eval", step=6, loss=0.6))
    history = [(item["event"], item["step"], item["loss"]) for item in read_metrics(str(tmp_path))]
    assert history == [("step", n, float(n)) for n in range(1, 6)] + [
        ("eval", 5, 0.5),
        ("step", 6, 60.0),
        ("eval", 6, 0.6),
    ]


def test_metrics_of_a_run_begun_anew_forget_the_old(tmp_path: Path) -> None:
    MetricsWriter(str(tmp_path), resume_step=None).append(event("step", step=1, loss=1.0))
    MetricsWriter(str(tmp_path), resume_step=None).append(event("step", step=1, loss=2.0))
    assert [item["loss"] for item in read_metrics(str(tmp_path))] == [2.0]


def test_metrics_step_that_does_not_grow_is_a_fault(tmp_path: Path) -> None:
    writer = MetricsWriter(str(tmp_path), resume_step=None)
    writer.append(event("step", step=3, loss=1.0))
    with pytest.raises(ValueError, match="step 3 after step 3"):
        writer.append(event("step", step=3, loss=1.0))


def test_metrics_with_a_loss_that_is_no_number_read_back(tmp_path: Path) -> None:
    MetricsWriter(str(tmp_path), resume_step=None).append(event("step", step=1, loss=float("nan")))
    assert read_metrics(str(tmp_path))[0]["loss"] != read_metrics(str(tmp_path))[0]["loss"]


def test_events_of_several_attempts_add_up(tmp_path: Path) -> None:
    assert read_events(str(tmp_path)) == []
    items = [event("note", text="a"), event("note", text="b")]
    EventsWriter(str(tmp_path)).append(items[:1])
    EventsWriter(str(tmp_path)).append(items[1:])
    assert read_events(str(tmp_path)) == items


def test_metrics_writer_of_a_run_resumed_at_its_end_keeps_the_newer_evaluation(tmp_path: Path) -> None:
    directory = str(tmp_path)
    first = MetricsWriter(directory, resume_step=None)
    first.append(event("step", step=5, loss=2.0))
    first.append(event("eval", step=5, loss=2.5))
    MetricsWriter(directory, resume_step=5).append(event("eval", step=5, loss=2.25))
    assert [(item["event"], item["step"], item["loss"]) for item in read_metrics(directory)] == [
        ("step", 5, 2.0),
        ("eval", 5, 2.25),
    ]
