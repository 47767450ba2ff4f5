"""The state API's rows, cut down to what is read of them; the shapes are those Ray 2.60 answers with."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tpuctl.cluster.inspect import Snapshot, slices, views
from tpuctl.connection import Connection, UnreachableError
from tpuctl.errors import ClusterError

Row = dict[str, Any]


def node(name: str, worker_id: str, **changes: Any) -> Row:
    labels = {
        "ray.io/tpu-slice-name": name,
        "ray.io/tpu-worker-id": worker_id,
        "ray.io/tpu-topology": "2x2x2",
        "ray.io/tpu-pod-type": "v4-16",
        "ray.io/accelerator-type": "TPU-V4",
    }
    row = {
        "node_id": f"{name}/{worker_id}",
        "node_ip": "10.0.0.1",
        "state": "ALIVE",
        "state_message": None,
        "resources_total": {"TPU": 4.0, "CPU": 4.0},
        "labels": labels,
        "end_time_ms": 0,
    }
    return {**row, **changes}


def died(name: str, worker_id: str, at_ms: int, **changes: Any) -> Row:
    return node(name, worker_id, state="DEAD", state_message="preempted", end_time_ms=at_ms, **changes)


def snapshot(nodes: list[Row], **rows: list[Row]) -> Snapshot:
    return Snapshot(nodes=nodes, **{"placement_groups": [], "actors": [], "tasks": [], "jobs": [], **rows})


SLICE = [node("a", "1"), node("a", "0")]
JOBS = [{"job_id": "02000000", "submission_id": "train-7"}, {"job_id": None, "submission_id": "done"}]


def group(resources: dict[str, float], node_id: str) -> Row:
    bundle = {"unit_resources": resources, "node_id": node_id}
    return {"creator_job_id": "02000000", "state": "CREATED", "bundles": [bundle]}


def test_views_put_hosts_in_the_order_of_their_worker_ids() -> None:
    (view,) = views(snapshot(SLICE))
    assert (view.name, view.pod_type, view.topology, view.accelerator_type) == ("a", "v4-16", "2x2x2", "TPU-V4")
    assert [host.worker_id for host in view.hosts] == [0, 1]
    assert (view.hosts_expected, view.chips_per_host, view.simulated) == (2, 4, False)
    assert not any(host.busy for host in view.hosts)


def test_views_simulated_label_marks_the_slice() -> None:
    labelled = node("a", "0")
    labelled["labels"]["tpuctl.dev/simulated"] = "true"
    assert views(snapshot([labelled]))[0].simulated


def test_views_dead_nodes_of_an_older_slice_stand_apart_from_the_live_ones() -> None:
    old = died("a", "0", 1000)
    old["labels"]["ray.io/tpu-topology"] = "2x2x4"
    (view,) = views(snapshot([old, *SLICE]))
    assert [host.node_id for host in view.hosts] == ["a/0", "a/1"]
    assert [(host.ended, host.state_message) for host in view.dead] == [(1.0, "preempted")]
    assert view.topology == "2x2x2"


def test_views_slice_with_every_host_dead_is_still_told_of() -> None:
    (view,) = views(snapshot([died("a", "0", 1000), died("a", "1", 2000)]))
    assert (view.hosts, len(view.dead), view.hosts_expected) == ((), 2, 2)


def test_views_reserved_bundle_makes_its_host_busy_with_the_submission() -> None:
    (view,) = views(snapshot(SLICE, placement_groups=[group({"TPU": 4.0, "CPU": 1.0}, "a/1")], jobs=JOBS))
    idle, busy = view.hosts
    assert (busy.chips_used, busy.holders) == (4.0, ("job train-7",))
    assert not idle.busy


def test_views_head_reservation_alone_makes_host_0_busy() -> None:
    (view,) = views(snapshot(SLICE, placement_groups=[group({"TPU-v4-16-head": 1.0}, "a/0")], jobs=JOBS))
    assert view.hosts[0].busy
    assert view.hosts[0].chips_used == 0


def test_views_actor_and_task_outside_a_group_make_their_hosts_busy() -> None:
    actor = {"node_id": "a/0", "job_id": "05000000", "required_resources": {"TPU": 4.0}}
    task = {"node_id": "a/1", "job_id": "02000000", "required_resources": {"TPU": 2.0}}
    (view,) = views(snapshot(SLICE, actors=[actor], tasks=[task], jobs=JOBS))
    assert [host.holders for host in view.hosts] == [("job 05000000",), ("job train-7",)]


def test_views_actor_in_a_group_is_not_counted_twice() -> None:
    actor = {"node_id": "a/0", "job_id": "02000000", "required_resources": {"TPU_group_12ab": 4.0}}
    (view,) = views(snapshot(SLICE, actors=[actor], placement_groups=[group({"TPU": 4.0}, "a/0")], jobs=JOBS))
    assert view.hosts[0].chips_used == 4.0


def test_views_chips_without_a_slice_name_come_last_one_by_one() -> None:
    lonely = [{**node("", ""), "node_id": name, "labels": {}} for name in ("x", "y")]
    found = views(snapshot([*lonely, *SLICE]))
    assert [view.name for view in found] == ["a", "", ""]
    assert found[1].hosts[0].worker_id is None


def test_views_nodes_without_chips_are_no_slices() -> None:
    assert views(snapshot([node("", "", labels={}, resources_total={"CPU": 8.0})])) == []


def test_views_strange_worker_id_is_no_worker_id() -> None:
    assert views(snapshot([node("a", "x")]))[0].hosts[0].worker_id is None


def answering(handler: Any) -> Connection:
    return Connection("http://head:8265", transport=httpx.MockTransport(handler))


def test_slices_asks_only_for_rows_that_matter() -> None:
    asked: dict[str, str | None] = {}

    def handler(request: httpx.Request) -> httpx.Response:
        asked[request.url.path] = request.url.params.get("filter_values")
        if request.url.path == "/api/jobs/":
            return httpx.Response(200, json=JOBS)
        rows = SLICE if request.url.path.endswith("/nodes") else []
        return httpx.Response(200, json={"result": True, "data": {"result": {"result": rows}}})

    assert [view.name for view in slices(answering(handler))] == ["a"]
    assert asked == {
        "/api/v0/nodes": None,
        "/api/v0/placement_groups": "CREATED",
        "/api/v0/actors": "ALIVE",
        "/api/v0/tasks": "RUNNING",
        "/api/jobs/": None,
    }


def test_slices_of_a_dashboard_without_state_api_says_what_is_missing() -> None:
    with pytest.raises(ClusterError, match="http://head:8265 does not tell its nodes"):
        slices(answering(lambda _: httpx.Response(200, json={"result": False, "data": None})))


def test_slices_time_limit_bounds_connecting_and_reading_together() -> None:
    limits: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        limits.append(sum(request.extensions["timeout"][part] for part in ("connect", "read")))
        raise httpx.ReadTimeout("slow")

    with pytest.raises(UnreachableError, match="in time"):
        slices(answering(handler), timeout_seconds=5)
    assert limits[0] <= 5
