"""What a host does in batch inference: a process that holds its chips and does the parts it is given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.emit import tell_note
from tpuctl.entrypoints.seats import is_simulated
from tpuctl.errors import ClusterError
from tpuctl.infer.output import Output
from tpuctl.infer.parts import Part
from tpuctl.infer.replica import Done, Replica
from tpuctl.infer.rows import Rows
from tpuctl.plan.schema import InferencePlan, SlicePlan, plan_from_json

if TYPE_CHECKING:
    from tpuctl.infer.language import MakeEngine

# One part is read, one worked on, one written; one call more is left for questions.
PARTS_AHEAD = 3
CALLS_AT_ONCE = PARTS_AHEAD + 1
# Bounds of the chips of one host, by their number.
_CHIP_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """What a host is, or the slice that it leads."""

    host: int
    pid: int
    ip: str
    devices: int
    platform: str


class InferHost:
    """To be made a Ray actor of ``CALLS_AT_ONCE`` threads."""

    def __init__(self, plan_document: dict[str, Any], rows: Rows, output: Output, number: int) -> None:
        plan = plan_from_json(plan_document)
        assert isinstance(plan, InferencePlan), "the infer entrypoint sends one"
        os.environ.update(plan.job.env | plan.job.secrets)
        self._plan, self._rows, self._output, self._number = plan, rows, output, number

    def join(self) -> HostFacts:
        """Take the chips, make the task ready, say what this host is. Of a constructor Ray would lose the reasons."""
        plan, simulated = self._plan, is_simulated()
        _keep_to_own_chips(plan.slice, simulated=simulated)
        # Not at the top: the driver imports this file too, and must not touch the chips.
        from tpuctl.entrypoints.programs import keep_programs

        facts = _facts(plan.slice, host=self._number, simulated=simulated)
        keep_programs(plan, tell=tell_note)
        self._begin()
        return facts

    def do(self, part: Part) -> Done:
        """Do a part; see ``Replica``."""
        return self._replica.do(part)

    def underway(self) -> int:
        """Rows that are done of parts that aren't."""
        return self._replica.underway

    def _begin(self, *, engine: MakeEngine | None = None) -> None:
        """Make the task ready, on an engine of this process or on that which ``engine`` makes."""
        from tpuctl.infer.tasks import task_of

        plan = self._plan
        model = None if plan.model is None else model_folder(plan.model.uri)
        task = task_of(plan.task, self._rows.schema, model=model, replica=plan.replica, engine=engine)
        self._replica = Replica(self._rows, self._output, task, bad_rows=plan.output.bad_rows)


def _keep_to_own_chips(plan: SlicePlan, *, simulated: bool) -> None:
    """Make libtpu see a host of a larger slice as a slice of its own: each host is a replica and waits for no other."""
    os.environ.setdefault("JAX_PLATFORMS", "tpu")
    if simulated or plan.hosts == 1:
        return
    os.environ.update(
        {
            "TPU_PROCESS_BOUNDS": "1,1,1",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": _CHIP_BOUNDS[plan.chips_per_host],
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            "CLOUD_TPU_TASK_ID": "0",
        }
    )


def _facts(plan: SlicePlan, *, host: int, simulated: bool) -> HostFacts:
    import jax

    platform, wanted = jax.default_backend(), "cpu" if simulated else "tpu"
    devices = jax.local_device_count()
    if (platform, devices) != (wanted, plan.devices_per_host):
        expected = f"{plan.devices_per_host} {wanted.upper()}"
        raise ClusterError(
            f"host {host}: expected {expected} devices, found {devices} {platform.upper()}",
            hint="is another process holding the chips? is libtpu installed (jax[tpu])?",
        )
    return this_process(host, devices=devices, platform=platform)


def this_process(number: int, *, devices: int, platform: str) -> HostFacts:
    """The facts of a replica that this process is or leads."""
    ip = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return HostFacts(host=number, pid=os.getpid(), ip=ip, devices=devices, platform=platform)
