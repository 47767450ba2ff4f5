"""What follows when workers fail: a restart, a restart that costs nothing, or the end with a reason."""

from __future__ import annotations

import pytest
from ray.exceptions import RayActorError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
from ray.train.v2._internal.execution.failure_handling import FailureDecision
from ray.train.v2.api.config import FailureConfig
from ray.train.v2.api.exceptions import WorkerGroupError

from tpuctl.entrypoints.failures import ReasonedFailurePolicy, explain
from tpuctl.errors import DataError, JobFailedError
from tpuctl.train.stopping import PreemptedError


def failure(**workers: BaseException) -> WorkerGroupError:
    """A failure as Ray Train reports it; ``w1`` is the worker of rank 1."""
    wrapped = {int(name[1:]): UserExceptionWithTraceback(cause, "traceback") for name, cause in workers.items()}
    return WorkerGroupError("workers failed", wrapped)


def policy(max_failures: int) -> ReasonedFailurePolicy:
    return ReasonedFailurePolicy(FailureConfig(max_failures=max_failures))


def test_failure_policy_restarts_lost_workers_as_often_as_planned(capsys: pytest.CaptureFixture[str]) -> None:
    decide = policy(1).make_decision
    assert decide(failure(w1=RuntimeError("socket closed"))) is FailureDecision.RETRY
    assert "worker 1: RuntimeError: socket closed; restart 1 from the last checkpoint" in capsys.readouterr().out
    assert decide(failure(w1=RuntimeError("socket closed"))) is FailureDecision.RAISE


def test_failure_policy_preempted_hosts_spend_nothing_of_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    decide = policy(1).make_decision
    preempted = failure(w0=RuntimeError("a collective broke"), w1=PreemptedError(step=7))
    for restart in (1, 2, 3):
        assert decide(preempted) is FailureDecision.RETRY
        assert f"step 7 is saved; restart {restart} from there, not counted" in capsys.readouterr().out
    assert decide(failure(w0=RuntimeError("a real failure"))) is FailureDecision.RETRY
    assert decide(failure(w0=RuntimeError("a real failure"))) is FailureDecision.RAISE


def test_failure_policy_worker_lost_to_a_preemption_without_notice_spends_nothing() -> None:
    lost = RayActorError("the node was preempted")
    lost._preempted = True
    assert policy(0).make_decision(WorkerGroupError("workers failed", {0: lost})) is FailureDecision.RETRY


def test_failure_policy_error_with_a_reason_is_never_retried_and_explains_the_run() -> None:
    found = failure(w0=RuntimeError("a collective broke"), w1=DataError("no column 'text'", hint="see above"))
    assert policy(9).make_decision(found) is FailureDecision.RAISE
    reason = explain(found, start_timeout_seconds=60)
    assert (type(reason), reason.message, reason.hint) == (DataError, "no column 'text'", "see above")


def test_explain_of_an_unknown_failure_names_worker_and_error() -> None:
    reason = explain(failure(w3=ValueError("boom")), start_timeout_seconds=60)
    assert type(reason) is JobFailedError
    assert reason.message == "worker 3: ValueError: boom"
