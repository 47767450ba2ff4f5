"""The run record in a bucket: the same history, whoever writes it and whatever is lost on the way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.gcs_process import GcsService
from tests.fakes.plans import a_plan
from tpuctl.errors import RunInUseError
from tpuctl.runs import journal
from tpuctl.runs.events import event
from tpuctl.runs.journal import PartsJournal, read_journal
from tpuctl.runs.lease import LeaseLostError, acquire, current_holder
from tpuctl.runs.record import Attempt, MetricsWriter, begin_attempt, end_attempt, read_metrics, read_record
from tpuctl.storage import ChangedError

RUN = "gs://tpu-test/runs/one"
LOG = f"{RUN}/log.jsonl"

pytestmark = pytest.mark.usefixtures("gcs")


def lines(*numbers: int) -> bytes:
    return b"".join(b"%d\n" % number for number in numbers)


def test_journal_of_many_lines_is_read_back_whole_from_several_parts(
    gcs: GcsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PART_BYTES", 100)
    writer = PartsJournal(LOG)
    for start in range(0, 200, 10):
        writer.append(lines(*range(start, start + 10)))
        writer.flush()
    writer.close()
    assert read_journal(RUN, "log.jsonl") == lines(*range(200))
    assert len(gcs.buckets.of("tpu-test")) > 3


def test_journal_writes_by_itself_and_does_not_hold_up_its_caller(gcs: GcsService) -> None:
    gcs.fail(op="insert", delay_seconds=0.2, times=None)
    writer = PartsJournal(LOG, flush_seconds=0.01)
    for number in range(1000):
        writer.append(lines(number))
    writer.close()
    assert read_journal(RUN, "log.jsonl") == lines(*range(1000))
    assert gcs.requests("insert_multipart") < 100


def test_journal_gone_on_with_shuts_out_the_former_writer() -> None:
    former = PartsJournal(LOG)
    former.append(lines(1, 2))
    former.flush()
    now = PartsJournal(LOG)
    now.append(lines(3))
    former.append(lines(99))
    with pytest.raises(ChangedError):
        former.flush()
    now.close()
    assert read_journal(RUN, "log.jsonl") == lines(1, 2, 3)


def test_journal_that_loses_lines_keeps_the_others_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PART_BYTES", 20)
    writer = PartsJournal(LOG)
    for number in range(30):
        writer.append(lines(number))
        writer.flush()
    writer.keep_only(lambda line: int(line) < 17)
    writer.append(lines(17, 18))
    writer.close()
    assert read_journal(RUN, "log.jsonl") == lines(*range(19))


def test_journal_lines_wait_while_the_bucket_fails(gcs: GcsService) -> None:
    writer = PartsJournal(LOG, flush_seconds=0.01)
    fault = gcs.fail(op="insert", status=403, times=3)
    writer.append(lines(1))
    while fault.hits < 3:
        pass
    writer.append(lines(2))
    writer.close()
    assert read_journal(RUN, "log.jsonl") == lines(1, 2)


def test_metrics_after_a_resume_are_one_history_without_the_lost_steps() -> None:
    first = MetricsWriter(RUN, resume_step=None)
    for step in range(1, 8):
        first.append(event("step", step=step, loss=float(step)))
    first.append(event("eval", step=5, loss=0.5))
    first.close()
    second = MetricsWriter(RUN, resume_step=5)
    second.append(event("eval", step=5, loss=0.25))
    second.append(event("step", step=6, loss=60.0))
    second.close()
    history = [(item["event"], item["step"], item["loss"]) for item in read_metrics(RUN)]
    assert history == [*(("step", n, float(n)) for n in range(1, 6)), ("eval", 5, 0.25), ("step", 6, 60.0)]


def test_record_of_a_run_in_a_bucket_reads_back_while_answers_are_lost(gcs: GcsService) -> None:
    gcs.fail(every=3, times=None, lost_reply=True)
    plan = a_plan(directory=RUN)
    assert read_record(RUN) is None
    attempt = Attempt(number=1, submission_id="run-1", cluster="http://head:8265", tpuctl_version="1", started=100.0)
    begin_attempt(plan, attempt)
    written = end_attempt(RUN, status="failed", ended=200.0, reason="out of memory")
    assert read_record(RUN) == written


def test_lease_in_a_bucket_is_won_by_one_of_many_though_answers_are_lost(gcs: GcsService) -> None:
    gcs.fail(op="insert", every=2, times=None, lost_reply=True)

    def attempt(number: int) -> str | None:
        try:
            return acquire(RUN, job=f"run-{number}").holder.job
        except RunInUseError:
            return None

    with ThreadPoolExecutor(6) as pool:
        winners = [job for job in pool.map(attempt, range(6)) if job]
    holder = current_holder(RUN)
    assert holder is not None
    assert winners == [holder.job]


def test_lease_in_a_bucket_is_renewed_lost_and_released_by_generation(gcs: GcsService) -> None:
    old = acquire(RUN, job="run-1")
    gcs.fail(op="insert", lost_reply=True)
    old.renew()
    new = acquire(RUN, job="run-2", takeover=old.holder.token)
    with pytest.raises(LeaseLostError, match="went to job run-2"):
        old.renew()
    old.release()
    gcs.fail(op="delete", lost_reply=True)
    new.release()
    assert current_holder(RUN) is None
