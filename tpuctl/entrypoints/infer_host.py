"""What a host does in batch inference: a process that holds its chips and does the parts it is given."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from tpuctl.entrypoints.builtin_models import model_folder
from tpuctl.errors import ClusterError
from tpuctl.infer.output import Output
from tpuctl.infer.parts import Part
from tpuctl.infer.replica import Done, Replica
from tpuctl.infer.rows import Rows
from tpuctl.plan.schema import SlicePlan, plan_from_json

if TYPE_CHECKING:
    from tpuctl.plan.schema import InferencePlan

# One part is read, one worked on, one written; one call more is left for questions.
PARTS_AHEAD = 3
CALLS_AT_ONCE = PARTS_AHEAD + 1
# Bounds of the chips of one host, by their number.
_CHIP_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """What a host is."""

    host: int
    pid: int
    ip: str
    devices: int
    platform: str


class InferHost:
    """To be made a Ray actor of ``CALLS_AT_ONCE`` threads."""

    def __init__(self, plan_document: dict[str, Any], rows: Rows, output: Output, host: int) -> None:
        plan = plan_from_json(plan_document)
        os.environ.update(plan.job.env | plan.job.secrets)
        simulated = os.environ.get("TPUCTL_SIMULATED") == "1"
        _keep_to_own_chips(plan.slice, simulated=simulated)
        # Not at the top: the driver imports this file too, and must not touch the chips.
        from tpuctl.infer.tasks import task_of

        job: InferencePlan = plan  # type: ignore[assignment]
        self._facts = _facts(job.slice, host=host, simulated=simulated)
        model = None if job.model is None else model_folder(job.model.uri)
        self._replica = Replica(rows, output, task_of(job.task, rows.schema, model=model), bad_rows=job.output.bad_rows)

    def facts(self) -> HostFacts:
        """What this host is; answers once it can work."""
        return self._facts

    def do(self, part: Part) -> Done:
        """Do a part; see ``Replica``."""
        return self._replica.do(part)


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
    ip = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return HostFacts(host=host, pid=os.getpid(), ip=ip, devices=devices, platform=platform)
