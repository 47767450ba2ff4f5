"""What the command line costs beside Ray's own: ``--help``, and submitting the same job.

    python -m tests.benchmarks.command_line [--pairs 5]

Starts a simulated slice of its own and ends it. Every submitted job is stopped before the next is submitted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import uuid
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.benchmarks.measuring import pairs, report, run
from tpuctl.cluster.registry import Cluster, Registry
from tpuctl.cluster.shape import SimulatedShape
from tpuctl.cluster.simulated import down, up
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import Plan
from tpuctl.recipe.load import load_recipe
from tpuctl.submit.jobs import JobStatus
from tpuctl.submit.package import job_package
from tpuctl.submit.ray_jobs import RayJobs

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).with_name("ray"))
TPUCTL = [sys.executable, "-m", "tpuctl"]


def main() -> None:
    """Print the two rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    count = parser.parse_args().pairs
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TPUCTL_"))}
    environ["PYTHONPATH"] = str(ROOT)

    def cpu(command: list[str]) -> float:
        return run(command, environ=environ, cwd=str(ROOT))[0].cpu

    measured = pairs(lambda: cpu([*TPUCTL, "--help"]), lambda: cpu([RAY, "job", "--help"]), count=count)
    report("--help, CPU seconds", ("tpuctl", "ray job"), measured)
    with tempfile.TemporaryDirectory() as folder:
        environ["TPUCTL_STATE_DIR"] = folder
        registry = Registry.at_home(environ)
        recipe = ROOT / "recipes" / "smoke.toml"
        overrides = [f"run.directory={folder}/run"]
        plan = resolve(load_recipe(recipe, overrides=overrides), environ={}, cwd=folder)
        cluster = up(SimulatedShape.from_slice(plan.slice), registry=registry)
        try:
            bench = Submission(plan=plan, cluster=cluster, environ=environ, folder=folder)
            report("to a job id, wall seconds", ("tpuctl", "ray job"), pairs(bench.ours, bench.rays, count=count))
        finally:
            down(cluster.name, registry=registry)


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """One job, handed over by either command."""

    plan: Plan
    cluster: Cluster
    environ: dict[str, str]
    folder: str

    def ours(self) -> float:
        """``tpuctl train --detach``."""
        name = f"ours-{uuid.uuid4().hex[:8]}"
        command = [*TPUCTL, "train", str(ROOT / "recipes" / "smoke.toml"), "--detach"]
        command += ["--set", f"run.directory={self.folder}/{name}", "--set", f"run.name={name}"]
        cost, out = run(command, environ=self.environ, cwd=self.folder)
        self._end(out.strip())
        return cost.wall

    def rays(self) -> float:
        """``ray job submit --no-wait`` of the same package and entrypoint."""
        job = f"rays-{uuid.uuid4().hex[:8]}"
        content = Path(self.folder) / job
        zipfile.ZipFile(BytesIO(job_package(self.plan).content)).extractall(content)
        command = [RAY, "job", "submit", "--no-wait", "--address", self.cluster.address, "--submission-id", job]
        command += ["--working-dir", str(content), "--", "python", "-m", "tpuctl.entrypoints", "plan.json"]
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.cluster.token}
        cost, _ = run(command, environ={**self.environ, **token}, cwd=self.folder)
        self._end(job)
        return cost.wall

    def _end(self, job: str) -> None:
        with self.cluster.connect() as connection:
            jobs = RayJobs(connection)
            jobs.stop(job)
            while jobs.info(job).status in (JobStatus.PENDING, JobStatus.RUNNING):
                pass


if __name__ == "__main__":
    main()
