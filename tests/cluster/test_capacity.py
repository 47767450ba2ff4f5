from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.plans import a_plan
from tpuctl.cluster.capacity import HostView, SliceView, condition, find, why_none, why_not
from tpuctl.errors import CapacityError, ExitCode
from tpuctl.plan.schema import SlicePlan

WANT: SlicePlan = replace(
    a_plan().slice,
    generation="v6e",
    accelerator_type="TPU-V6E",
    pod_type="v6e-16",
    topology="4x4",
    slices=1,
    hosts=4,
    chips=16,
    chips_per_host=4,
    devices_per_chip=1,
)


def host(worker_id: int | None, node: str = "", **changes: object) -> HostView:
    view = HostView(node_id=node or f"node-{worker_id}", ip="10.0.0.1", worker_id=worker_id, alive=True, chips=4)
    return replace(view, **changes)  # type: ignore[arg-type]


def dead(worker_id: int, node: str, ended: float) -> HostView:
    return host(worker_id, node, alive=False, ended=ended, state_message="missed heartbeats")


def a_slice(name: str = "slice-a", **changes: object) -> SliceView:
    view = SliceView(
        name=name,
        accelerator_type="TPU-V6E",
        pod_type="v6e-16",
        topology="4x4",
        hosts=tuple(host(number) for number in range(4)),
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def test_why_not_of_an_intact_idle_slice_is_empty() -> None:
    assert why_not(a_slice(), WANT) == []
    assert condition(a_slice()) == []


def test_why_not_with_a_dead_host_names_it_and_since_when() -> None:
    view = a_slice(hosts=(host(0), host(1), host(3)), dead=(dead(2, "0123456789abcdef", 1_700_000_000.0),))
    assert why_not(view, WANT) == [
        "3 of 4 hosts alive (worker 2 missing: node 0123456789ab DEAD since 2023-11-14 22:13:20 UTC, missed heartbeats)"
    ]


def test_why_not_with_hosts_never_seen_counts_them() -> None:
    assert why_not(a_slice(hosts=(host(0), host(3))), WANT) == [
        "2 of 4 hosts alive (worker 1 missing; worker 2 missing)"
    ]


def test_why_not_dead_hosts_of_an_older_slice_of_that_name_are_ignored() -> None:
    older = tuple(dead(number, f"old-{number}", 100.0) for number in range(4))
    assert why_not(a_slice(dead=older), WANT) == []


def test_why_not_of_several_deaths_of_one_worker_names_the_last() -> None:
    view = a_slice(hosts=(host(1), host(2), host(3)), dead=(dead(0, "first", 100.0), dead(0, "second", 200.0)))
    assert "node second DEAD" in why_not(view, WANT)[0]


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"topology": "2x4"}, ["topology 2x4 ≠ 4x4"]),
        ({"accelerator_type": "TPU-V5LITEPOD", "pod_type": "v5litepod-16"}, ["accelerator v5e ≠ v6e"]),
        ({"topology": "2x8"}, ["topology 2x8 ≠ 4x4"]),
        ({"topology": ""}, ["topology unknown ≠ 4x4"]),
        ({"pod_type": "v6e-8"}, ["pod type v6e-8 ≠ v6e-16"]),
        ({"hosts": (host(0, chips=8), host(1, chips=8))}, ["its hosts have 8 chips each, not 4"]),
    ],
)
def test_why_not_of_another_kind_says_what_differs(changes: dict[str, object], reasons: list[str]) -> None:
    assert why_not(a_slice(**changes), WANT)[: len(reasons)] == reasons


def test_why_not_of_another_kind_says_nothing_of_its_health() -> None:
    assert why_not(a_slice(topology="2x4", hosts=(host(0),)), WANT) == ["topology 2x4 ≠ 4x4"]


def test_why_not_busy_names_the_jobs() -> None:
    busy = host(1, holders=("job train-7",), chips_used=4.0)
    head = host(0, holders=("job other",))
    assert why_not(a_slice(hosts=(head, busy, host(2), host(3))), WANT) == ["busy with job other and job train-7"]


def test_why_not_worker_ids_doubled_or_too_high_are_named() -> None:
    doubled = a_slice(hosts=(host(0), host(1, "a"), host(1, "b"), host(2), host(3)))
    assert why_not(doubled, WANT) == ["duplicate worker id 1 (nodes a, b)"]
    drifted = a_slice(hosts=(host(0), host(1), host(2), host(4)))
    assert why_not(drifted, WANT) == ["3 of 4 hosts alive (worker 3 missing)", "worker id 4 ≥ 4 hosts"]


def test_why_not_worker_id_missing_names_the_node() -> None:
    view = a_slice(hosts=(host(0), host(1), host(2), host(None, "odd")))
    assert "node odd has no worker id" in why_not(view, WANT)


def test_why_not_single_host_with_a_drifted_worker_id_is_refused() -> None:
    want = replace(WANT, topology="2x2", pod_type="v6e-4", hosts=1, chips=4)
    view = a_slice(topology="2x2", pod_type="v6e-4", hosts=(host(1),))
    assert why_not(view, want) == ["0 of 1 hosts alive (worker 0 missing)", "worker id 1 ≥ 1 hosts"]


def test_why_not_host_without_slice_name_points_to_tpu_name() -> None:
    view = a_slice(name="", hosts=(host(None, "lonely"),))
    assert why_not(view, WANT) == [
        "node lonely (10.0.0.1) has 4 TPU chips but no slice name: TPU_NAME is not set there "
        "(on GKE the Ray webhook sets it)"
    ]


def test_find_takes_the_intact_idle_slice_among_others() -> None:
    busy = a_slice("slice-a", hosts=(host(0, holders=("job x",)), host(1), host(2), host(3)))
    assert [view.name for view in find([busy, a_slice("slice-b")], {"": WANT})[""]] == ["slice-b"]


def test_find_two_slices_needs_two_and_counts_what_it_found() -> None:
    two = replace(WANT, slices=2)
    assert len(find([a_slice("a"), a_slice("b"), a_slice("c")], {"": two})[""]) == 2
    with pytest.raises(CapacityError, match=r"v6e 4x4 \(found 1 of 2\)"):
        find([a_slice("a"), a_slice("b", hosts=(host(0),))], {"": two})


def test_find_for_several_gives_each_its_own_and_says_who_lacks_which() -> None:
    small_slice = replace(WANT, topology="2x2", pod_type="v6e-4", hosts=1, chips=4)
    wants = {"small": small_slice, "big": WANT, "more": small_slice}
    small = [a_slice(name, topology="2x2", pod_type="v6e-4", hosts=(host(0),)) for name in ("s", "t")]
    found = find([a_slice("a"), *small], wants)
    assert {name: [view.name for view in views] for name, views in found.items()} == {
        "small": ["s"],
        "big": ["a"],
        "more": ["t"],
    }
    with pytest.raises(CapacityError) as error:
        find([*small[:1], a_slice("a", hosts=(host(0),))], wants)
    assert error.value.message.splitlines() == [
        "no intact, idle slice of v6e 4x4 for big:",
        "  s: topology 2x2 ≠ 4x4; pod type v6e-4 ≠ v6e-16",
        "  a: 1 of 4 hosts alive (worker 1 missing; worker 2 missing; worker 3 missing)",
        "no intact, idle slice of v6e 2x2 for more:",
        "  s: for small",
        "  a: topology 4x4 ≠ 2x2; pod type v6e-16 ≠ v6e-4",
    ]


def test_find_nothing_lists_every_candidate_with_its_reason() -> None:
    views = [
        a_slice("gone", hosts=(), dead=(dead(0, "x", 1.0),)),
        a_slice("small", topology="2x2", pod_type="v6e-4"),
        a_slice("taken", hosts=tuple(host(n, holders=("job j",)) for n in range(4))),
    ]
    with pytest.raises(CapacityError) as caught:
        find(views, {"": WANT})
    assert caught.value.message.splitlines() == [
        "no intact, idle slice of v6e 4x4:",
        "  small: topology 2x2 ≠ 4x4; pod type v6e-4 ≠ v6e-16",
        "  taken: busy with job j",
        "  all hosts dead: gone",
    ]
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


def test_find_in_an_empty_cluster_says_so() -> None:
    with pytest.raises(CapacityError, match="the cluster has no TPU slice"):
        find([], {"": WANT})


def test_why_none_of_fitting_slices_only_is_empty() -> None:
    assert why_none([a_slice("a"), a_slice("b")], WANT) == []
