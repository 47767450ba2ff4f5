from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tpuctl.errors import ExitCode, RunInUseError, StorageError
from tpuctl.runs.lease import LeaseLostError, acquire, current_holder, is_gone


class Now:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


def test_acquire_of_a_free_directory_names_the_holder(tmp_path: Path, now: Now) -> None:
    lease = acquire(str(tmp_path / "run"), job="run-1", ttl_seconds=60, clock=now)
    holder = current_holder(str(tmp_path / "run"))
    assert holder == lease.holder
    assert (holder.job, holder.since, holder.expires) == ("run-1", now.seconds, now.seconds + 60)


def test_acquire_of_a_held_directory_says_who_since_when_and_what_to_do(tmp_path: Path, now: Now) -> None:
    acquire(str(tmp_path), job="run-1", ttl_seconds=60, clock=now)
    now.seconds += 59
    with pytest.raises(RunInUseError, match=r"in use by job run-1 \(host .*, pid \d+\) since .* runs until") as caught:
        acquire(str(tmp_path), job="run-2", ttl_seconds=60, clock=now)
    assert "tpuctl stop run-1" in (caught.value.hint or "")
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


def test_renew_holds_the_lease_beyond_its_first_time_to_live(tmp_path: Path, now: Now) -> None:
    lease = acquire(str(tmp_path), job="run-1", ttl_seconds=60, clock=now)
    now.seconds += 50
    lease.renew()
    now.seconds += 50
    with pytest.raises(RunInUseError):
        acquire(str(tmp_path), job="run-2", ttl_seconds=60, clock=now)


def test_acquire_after_the_lease_ran_out_takes_it_and_the_old_holder_learns(tmp_path: Path, now: Now) -> None:
    old = acquire(str(tmp_path), job="run-1", ttl_seconds=60, clock=now)
    now.seconds += 60
    new = acquire(str(tmp_path), job="run-2", ttl_seconds=60, clock=now)
    with pytest.raises(LeaseLostError, match="lease of job run-1 went to job run-2"):
        old.renew()
    old.release()
    assert current_holder(str(tmp_path)) == new.holder


def test_acquire_with_the_token_of_a_dead_holder_takes_over_at_once(tmp_path: Path, now: Now) -> None:
    old = acquire(str(tmp_path), job="run-1", ttl_seconds=60, clock=now)
    new = acquire(str(tmp_path), job="run-2", ttl_seconds=60, takeover=old.holder.token, clock=now)
    assert current_holder(str(tmp_path)) == new.holder
    with pytest.raises(RunInUseError):
        acquire(str(tmp_path), job="run-3", ttl_seconds=60, takeover=old.holder.token, clock=now)


def test_release_lets_the_next_one_in(tmp_path: Path, now: Now) -> None:
    acquire(str(tmp_path), job="run-1", clock=now).release()
    assert current_holder(str(tmp_path)) is None
    acquire(str(tmp_path), job="run-2", clock=now)


@pytest.mark.parametrize("expired", [False, True])
def test_acquire_by_many_at_once_is_won_by_one(tmp_path: Path, now: Now, expired: bool) -> None:
    if expired:
        acquire(str(tmp_path), job="old", ttl_seconds=60, clock=now)
        now.seconds += 61
    start = threading.Barrier(6)

    def attempt(number: int) -> str | None:
        start.wait(10)
        try:
            return acquire(str(tmp_path), job=f"run-{number}", clock=now).holder.job
        except RunInUseError:
            return None

    with ThreadPoolExecutor(6) as pool:
        winners = [job for job in pool.map(attempt, range(6)) if job]
    holder = current_holder(str(tmp_path))
    assert holder is not None
    assert winners == [holder.job]


def test_is_gone_tells_a_dead_process_from_a_living_one_and_from_a_stranger(tmp_path: Path) -> None:
    living = acquire(str(tmp_path), job="run-1").holder
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert not is_gone(living)
    assert is_gone(replace(living, pid=int(child.stdout)))
    assert is_gone(replace(living, born="1"))  # the pid is taken by another process now
    assert not is_gone(replace(living, pid=int(child.stdout), machine="another"))


def test_current_holder_of_a_file_that_is_no_lease_says_so(tmp_path: Path) -> None:
    for text in ("{}", "[]", "nonsense", json.dumps({"schema": "tpuctl.lease/9"})):
        (tmp_path / "lease.json").write_text(text)
        with pytest.raises(StorageError, match="no lease this version can read"):
            current_holder(str(tmp_path))
