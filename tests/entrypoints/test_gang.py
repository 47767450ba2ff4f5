"""Dealing ranks: a host's number is its TPU worker id, and a gang with a hole is refused before it can hang."""

import os
from dataclasses import dataclass, replace

import pytest
from ray.exceptions import ActorDiedError
from ray.util.placement_group import PlacementGroup

from tests.fakes.plans import a_plan
from tpuctl.entrypoints import gang
from tpuctl.entrypoints.gang import GangBackend, GangConfig, _Joining, point_the_way
from tpuctl.entrypoints.reservation import Reservation
from tpuctl.entrypoints.seats import Seat, deal_ranks
from tpuctl.errors import ClusterError


def seat(slice_name: str, worker_id: int) -> Seat:
    return Seat(slice_name=slice_name, worker_id=worker_id, node=f"10.0.0.{worker_id}")


def test_deal_ranks_shuffled_workers_follow_worker_ids() -> None:
    seats = [seat("a", 1), seat("a", 2), seat("a", 3), seat("a", 0)]
    assert deal_ranks(seats, slices=1, hosts=4) == [1, 2, 3, 0]


def test_deal_ranks_two_slices_number_slice_by_slice() -> None:
    seats = [seat("b", 1), seat("a", 0), seat("b", 0), seat("a", 1)]
    assert deal_ranks(seats, slices=2, hosts=2) == [3, 0, 2, 1]


def test_deal_ranks_doubled_worker_id_names_the_node() -> None:
    with pytest.raises(ClusterError, match=r"slice a .* 1 on 10\.0\.0\.1, 1 on 10\.0\.0\.1"):
        deal_ranks([seat("a", 1), seat("a", 1)], slices=1, hosts=2)


def test_deal_ranks_id_that_drifted_on_one_host_is_refused() -> None:
    with pytest.raises(ClusterError, match="worker ids 0 to 0, but has 1 on"):
        deal_ranks([seat("a", 1)], slices=1, hosts=1)


def test_deal_ranks_workers_of_two_slices_for_one_are_refused() -> None:
    with pytest.raises(ClusterError, match="landed on 2 slices"):
        deal_ranks([seat("a", 0), seat("b", 1)], slices=1, hosts=2)


def test_slice_of_a_reservation_has_its_own_hosts_bundles_and_room_for_its_leader() -> None:
    two = Reservation(group=PlacementGroup.empty(), plan=replace(a_plan().slice, slices=2, hosts=4))
    second = two.of_slice(1)
    places = [second.options(host)["scheduling_strategy"].placement_group_bundle_index for host in range(4)]
    assert (places, second.plan.total_hosts) == ([4, 5, 6, 7], 4)
    leader = second.beside(0)
    assert leader["scheduling_strategy"].placement_group_bundle_index == 4
    assert (leader["num_cpus"], "resources" in leader) == (0, False)


def test_point_the_way_leaves_in_the_environment_what_a_command_needs_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"JAX_PLATFORMS": "cpu"})
    point_the_way(_Joining.of(3, 4, "10.0.0.1", 8476, GangConfig(slices=2, hosts=2, joins=False)))
    found = dict(os.environ)
    assert (found["JAX_COORDINATOR_ADDRESS"], found["JAX_NUM_PROCESSES"]) == ("10.0.0.1:8476", "4")
    assert (found["JAX_PROCESS_ID"], found["JAX_PLATFORMS"]) == ("3", "cpu")
    assert (found["MEGASCALE_NUM_SLICES"], found["MEGASCALE_SLICE_ID"]) == ("2", "1")


@dataclass(frozen=True)
class FakeRay:
    """Calls on workers, by what became of them: ``left``, ``dead``, or ``waits`` for ever."""

    def execute_async(self, _: object) -> list[str]:
        return ["waits", "dead", "left"]

    def wait(self, refs: list[str], *, timeout: float) -> tuple[list[str], list[str]]:
        ended = [ref for ref in refs if ref != "waits"][-1:]
        assert ended or not timeout, "waits for one that never ends"
        return ended, [ref for ref in refs if ref not in ended]

    def get(self, refs: list[str]) -> list[str]:
        if refs == ["dead"]:
            raise ActorDiedError
        return refs


def test_shutdown_does_not_wait_for_hosts_that_wait_for_a_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = FakeRay()
    monkeypatch.setattr(gang, "ray", workers)
    GangBackend().on_shutdown(workers, GangConfig())  # type: ignore[arg-type]
