from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.gcs_process import GcsService
from tests.fakes.jobs_server import JobsServer
from tests.fakes.plans import a_plan
from tpuctl.connection import AuthError, Connection, ResponseError, UnreachableError
from tpuctl.entrypoints.attempt import Identity
from tpuctl.errors import RunInUseError
from tpuctl.plan.schema import Plan
from tpuctl.runs.lease import acquire, current_holder
from tpuctl.runs.record import Attempt, begin_attempt
from tpuctl.storage import BucketMissingError
from tpuctl.submit.follow import Clock
from tpuctl.submit.jobs import NotReadyError
from tpuctl.submit.launch import ENTRYPOINT, Launch, LaunchOptions, launch
from tpuctl.submit.ray_jobs import RayJobs

AGENT_MISSING = "No available agent to submit job, please try again later."
EVIL = "`touch /tmp/x` $HOME 'quoted \"twice\"'\nand a line"


@pytest.fixture
def server() -> Iterator[JobsServer]:
    with JobsServer() as running:
        yield running


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return a_plan(name="run", directory=str(tmp_path / "run"))


def standing_clock() -> tuple[Clock, list[float]]:
    now = [0.0]
    return Clock(now=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)), now


def jobs_of(server: JobsServer, **options: float) -> RayJobs:
    return RayJobs(Connection(server.url, **options))


def test_launch_of_a_new_run_submits_attempt_1_with_its_package(server: JobsServer, plan: Plan) -> None:
    assert launch(jobs_of(server), plan) == Launch(submission_id="run-1", attached=False)
    job = server.jobs["run-1"]
    assert job.entrypoint == ENTRYPOINT == "python -m tpuctl.entrypoints plan.json"
    assert list(server.packages) == [job.runtime_env["working_dir"]]
    assert job.metadata["tpuctl_run"] == "run"
    assert job.metadata["tpuctl_directory"] == plan.run.directory
    env = job.runtime_env["env_vars"]
    assert {k: env[k] for k in ("PYTHONUNBUFFERED", "RAY_DEDUP_LOGS", "RAY_JOB_STOP_WAIT_TIME_S")} == {
        "PYTHONUNBUFFERED": "1", "RAY_DEDUP_LOGS": "0", "RAY_JOB_STOP_WAIT_TIME_S": "30",
    }  # fmt: skip
    assert "JAX_PLATFORMS" not in env
    assert Identity.from_environ(env) == Identity(submission_id="run-1", attempt=1, cluster=server.url, takeover=None)


def test_launch_keeps_secrets_and_recipe_values_out_of_all_that_ray_shows(server: JobsServer, plan: Plan) -> None:
    plan = replace(plan, job=replace(plan.job, secrets={"HF_TOKEN": "hf_test123"}, env={"NOTE": EVIL}, pip=("einops",)))
    plan = replace(plan, data=replace(plan.data, uri=EVIL))
    launch(jobs_of(server), plan)
    job = server.jobs["run-1"]
    shown = json.dumps([job.entrypoint, job.metadata, job.runtime_env])
    assert "hf_test123" not in shown
    assert job.entrypoint == ENTRYPOINT
    assert job.runtime_env["env_vars"]["NOTE"] == EVIL
    assert job.runtime_env["pip"] == ["einops"]
    package = zipfile.ZipFile(io.BytesIO(next(iter(server.packages.values()))))
    sent = json.loads(package.read("plan.json"))
    assert sent["job"]["secrets"] == {"HF_TOKEN": "hf_test123"}
    assert sent["data"]["uri"] == EVIL


def test_launch_of_a_run_at_work_attaches(server: JobsServer, plan: Plan) -> None:
    launch(jobs_of(server), plan)
    server.jobs["run-1"].status = "RUNNING"
    again = replace(plan, tpuctl_version="another", notes=("a note",))
    assert launch(jobs_of(server), again) == Launch(submission_id="run-1", attached=True)
    assert list(server.jobs) == ["run-1"]


def test_launch_of_another_recipe_on_a_run_at_work_is_refused(server: JobsServer, plan: Plan) -> None:
    launch(jobs_of(server), plan)
    other = replace(plan, train=replace(plan.train, steps=plan.train.steps + 1))
    with pytest.raises(RunInUseError, match="job run-1 is at work there, from another recipe") as caught:
        launch(jobs_of(server), other)
    assert "tpuctl stop run-1" in (caught.value.hint or "")
    assert list(server.jobs) == ["run-1"]


@pytest.mark.parametrize("status", ["FAILED", "STOPPED", "SUCCEEDED"])
def test_launch_of_an_ended_run_makes_the_next_attempt_and_takes_the_lease(
    server: JobsServer, plan: Plan, status: str
) -> None:
    launch(jobs_of(server), plan)
    lease = acquire(plan.run.directory, job="run-1")  # its driver was killed and released nothing
    begin_attempt(plan, Attempt(number=1, submission_id="run-1", cluster="x", tpuctl_version="1", started=1.0))
    server.jobs["run-1"].end(status)
    assert launch(jobs_of(server), plan) == Launch(submission_id="run-2", attached=False)
    identity = Identity.from_environ(server.jobs["run-2"].runtime_env["env_vars"])
    assert (identity.attempt, identity.takeover) == (2, lease.holder.token)


def test_launch_while_a_job_elsewhere_holds_the_lease_is_refused(server: JobsServer, plan: Plan) -> None:
    acquire(plan.run.directory, job="run-7")
    with pytest.raises(RunInUseError, match="in use by job run-7"):
        launch(jobs_of(server), plan)
    assert server.jobs == {}


def test_launch_after_the_lease_ran_out_goes_on(server: JobsServer, plan: Plan) -> None:
    acquire(plan.run.directory, job="run-7", clock=lambda: 1_000.0)
    begin_attempt(plan, Attempt(number=7, submission_id="run-7", cluster="x", tpuctl_version="1", started=1.0))
    assert launch(jobs_of(server), plan).submission_id == "run-8"


def test_launch_after_the_holders_process_died_on_this_machine_goes_on(server: JobsServer, plan: Plan) -> None:
    lease = acquire(plan.run.directory, job="run-7")
    file = Path(plan.run.directory) / "lease.json"
    file.write_text(file.read_text().replace(f'"born": "{lease.holder.born}"', '"born": "1"'))
    assert current_holder(plan.run.directory) is not None
    assert launch(jobs_of(server), plan).submission_id == "run-1"


def test_launch_of_a_namesake_in_another_directory_gets_another_id(server: JobsServer, plan: Plan) -> None:
    launch(jobs_of(server), plan)
    other = replace(plan, run=replace(plan.run, directory=plan.run.directory + "-other"))
    assert launch(jobs_of(server), other) == Launch(submission_id="run-2", attached=False)


def test_launch_by_two_at_once_starts_one_job_and_the_other_attaches(server: JobsServer, plan: Plan) -> None:
    both_have_looked = threading.Barrier(2)

    class Looking(RayJobs):
        def list(self):  # type: ignore[no-untyped-def]
            found = super().list()
            if not found:
                both_have_looked.wait(10)
            return found

    with ThreadPoolExecutor(2) as pool:
        launches = list(pool.map(lambda _: launch(Looking(Connection(server.url)), plan), range(2)))
    assert sorted(found.attached for found in launches) == [False, True]
    assert {found.submission_id for found in launches} == {"run-1"}
    assert list(server.jobs) == ["run-1"]


def test_launch_whose_answer_is_lost_does_not_start_a_second_job(server: JobsServer, plan: Plan) -> None:
    answer = JobsServer.submit

    def accept_and_cut(document: dict[str, object]) -> object:
        server.submit = lambda document: answer(server, document)  # type: ignore[method-assign]
        answer(server, document)  # type: ignore[arg-type]
        server.stop()
        server.start()
        raise ConnectionError

    server.submit = accept_and_cut  # type: ignore[method-assign,assignment]
    clock, _ = standing_clock()
    assert launch(jobs_of(server), plan, options=LaunchOptions(clock=clock)) == Launch(
        submission_id="run-1", attached=False
    )
    assert list(server.jobs) == ["run-1"]


def test_launch_on_a_cluster_just_started_waits_for_its_agent(server: JobsServer, plan: Plan) -> None:
    server.fail("submit", status=500, body=AGENT_MISSING, times=3)
    clock, now = standing_clock()
    notices: list[str] = []
    launch(jobs_of(server), plan, options=LaunchOptions(clock=clock, notice=notices.append))
    assert list(server.jobs) == ["run-1"]
    assert 0 < now[0] < 10
    assert len(notices) == 1


def test_launch_on_a_cluster_without_an_agent_gives_up_in_one_clear_line(server: JobsServer, plan: Plan) -> None:
    server.fail("submit", status=500, body=AGENT_MISSING, times=10**9)
    clock, now = standing_clock()
    with pytest.raises(NotReadyError, match="no job agent to take the job for 60 s") as caught:
        launch(jobs_of(server), plan, options=LaunchOptions(clock=clock))
    assert "52365" in (caught.value.hint or "")
    assert "\n" not in caught.value.message
    assert now[0] >= 60


def test_launch_that_ray_refuses_is_not_tried_again(server: JobsServer, plan: Plan) -> None:
    server.fail("submit", status=500, body="Traceback (most recent call last):\nValueError: bad runtime env", times=2)
    with pytest.raises(ResponseError, match="ValueError: bad runtime env"):
        launch(jobs_of(server), plan)
    assert len(server.faults) == 1


def test_launch_without_a_token_or_a_cluster_is_said_at_once(plan: Plan) -> None:
    with JobsServer(token="secret") as guarded, pytest.raises(AuthError, match="wants a token"):
        launch(jobs_of(guarded), plan)
    with pytest.raises(UnreachableError):
        launch(jobs_of(guarded), plan)


def test_launch_into_a_bucket_that_is_not_there_sends_nothing(server: JobsServer, gcs: GcsService) -> None:
    with pytest.raises(BucketMissingError, match="there is no bucket 'no-such'"):
        launch(jobs_of(server), a_plan(directory="gs://no-such/run"))
    assert server.jobs == {}


def test_launch_into_a_bucket_this_machine_may_not_read_leaves_the_look_to_the_job(
    server: JobsServer, gcs: GcsService
) -> None:
    gcs.fail(op="read", status=403, message="denied: storage.objects.get", times=None)
    said: list[str] = []
    launched = launch(jobs_of(server), a_plan(directory="gs://tpu-test/run"), options=LaunchOptions(notice=said.append))
    assert launched.submission_id == "run-1"
    assert "the right storage.objects.get is missing" in said[0]
    assert "the job will look there with the cluster's own rights" in said[0]


def test_launch_after_a_run_in_a_bucket_ended_makes_the_next_attempt(server: JobsServer, gcs: GcsService) -> None:
    plan = a_plan(directory="gs://tpu-test/run")
    begin_attempt(
        plan, Attempt(number=4, submission_id="run-4", cluster="", tpuctl_version="1", started=1.0, ended=2.0)
    )
    assert launch(jobs_of(server), plan).submission_id == "run-5"
