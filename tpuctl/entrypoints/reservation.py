"""The plan's slices, reserved whole: one bundle for each host, in the order of slices and of hosts in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.tpu import SlicePlacementGroup

from tpuctl.errors import CapacityError
from tpuctl.plan.schema import SlicePlan

_HINT = "`tpuctl cluster status` says why a slice is not free; [job] start_timeout waits longer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Slices that are ours. Host ``number`` counts over all of them; ``first`` is that of their host 0 in the group."""

    group: PlacementGroup
    plan: SlicePlan
    first: int = 0

    def options(self, number: int) -> dict[str, Any]:
        """The options of an actor that has a host to itself."""
        return {**self.beside(number), "num_cpus": 1, "resources": {"TPU": self.plan.chips_per_host}}

    def beside(self, number: int) -> dict[str, Any]:
        """The options of an actor on a host, with nothing of what another one has there to itself."""
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=self.first + number
        )
        return {"num_cpus": 0, "scheduling_strategy": strategy}

    def of_slice(self, number: int) -> Reservation:
        """One of the slices by itself."""
        return replace(self, plan=replace(self.plan, slices=1), first=self.first + number * self.plan.hosts)


@contextmanager
def reserved(plan: SlicePlan, *, timeout_seconds: float) -> Iterator[Reservation]:
    """The slices of a plan for the length of the block.

    Raises:
        CapacityError: they are not all ours in time.
    """
    slices = _reserve(plan, timeout_seconds)
    try:
        group = slices.slice_placement_group
        assert group is not None, "not reserved slice by slice"
        ready, _ = ray.wait([group.ready()], timeout=timeout_seconds)
        if not ready:
            raise _not_in_time(plan, timeout_seconds)
        yield Reservation(group=group, plan=plan)
    finally:
        slices.shutdown()  # type: ignore[no-untyped-call]


def host_resources(plan: SlicePlan) -> dict[str, float]:
    """What a job takes of each host of its slices, so that no other can.

    Of a slice of one host Ray itself asks for nothing but so many chips, which a host of a larger slice or of another
    generation has, too. What the first host of each slice of that kind has tells them apart.
    """
    head = {f"TPU-{plan.pod_type}-head": 1.0} if plan.hosts == 1 else {}
    return {"TPU": plan.chips_per_host, "CPU": 1, **head}


def _reserve(plan: SlicePlan, timeout_seconds: float) -> SlicePlacementGroup:
    workers = [{"ray.io/tpu-worker-id": str(host)} for _ in range(plan.slices) for host in range(plan.hosts)]
    try:
        return SlicePlacementGroup(
            topology=plan.topology,
            accelerator_version=plan.accelerator_type,
            num_slices=plan.slices,
            chips_per_vm=plan.chips_per_host,
            resources_per_bundle=host_resources(plan),
            head_reservation_timeout_s=timeout_seconds,
            # Ray numbers the bundles as it pleases; a host of ours is the one with that TPU worker id.
            bundle_label_selector=workers if plan.hosts > 1 else None,
        )
    except RuntimeError as error:
        raise _not_in_time(plan, timeout_seconds) from error


def _not_in_time(plan: SlicePlan, timeout_seconds: float) -> CapacityError:
    hosts = f"{plan.total_hosts} host{'s' * (plan.total_hosts > 1)}"
    return CapacityError(f"the {hosts} of the slice did not all come within {timeout_seconds:.0f} s", hint=_HINT)
