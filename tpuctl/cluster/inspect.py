"""The TPU slices of a cluster, as its dashboard tells: which hosts are there, which live, and who holds them.

Plain HTTP to Ray's state API; works on any cluster, simulated or not, within a bounded time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tpuctl.cluster.capacity import HostView, SliceView
from tpuctl.cluster.shape import SIMULATED_LABEL
from tpuctl.connection import Connection
from tpuctl.errors import ClusterError

TIMEOUT_SECONDS = 9.0

# The most rows that Ray's state API gives at once.
_LIMIT = 10_000
_CONNECT_SECONDS = 3.0
_LABEL = "ray.io/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What the dashboard says at one moment, row for row: Ray's nodes, placement groups, actors, tasks and jobs."""

    nodes: list[dict[str, Any]]
    placement_groups: list[dict[str, Any]]
    actors: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    jobs: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hold:
    """A hold of one job on one node. The head resource of a slice counts as a hold of no chips."""

    node_id: str
    job_id: str
    chips: float


def slices(connection: Connection, *, timeout_seconds: float = TIMEOUT_SECONDS) -> list[SliceView]:
    """Every slice of the cluster, by name; hosts in no slice come last.

    Raises:
        ClusterError: no answer, no access, or no Ray dashboard there; one line says which.
    """
    return views(read_snapshot(connection, timeout_seconds=timeout_seconds))


def read_snapshot(connection: Connection, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Snapshot:
    """Ask for all that ``views`` needs; errors as ``slices``."""
    deadline = time.monotonic() + timeout_seconds
    return Snapshot(
        nodes=_rows(connection, "nodes", deadline),
        placement_groups=_rows(connection, "placement_groups", deadline, state="CREATED"),
        actors=_rows(connection, "actors", deadline, state="ALIVE"),
        tasks=_rows(connection, "tasks", deadline, state="RUNNING"),
        jobs=connection.get_json("/api/jobs/", timeout=_patience(deadline)),
    )


def views(snapshot: Snapshot) -> list[SliceView]:
    """The slices that a snapshot shows. Pure."""
    holds = _holds_by_node(snapshot)
    names = _job_names(snapshot.jobs)
    nodes_by_slice: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for node in snapshot.nodes:
        name = _label(node, "tpu-slice-name")
        if name:
            nodes_by_slice[name].append(node)
        elif _chips(node) and _is_alive(node):
            nodes_by_slice[f"\uffff{node['node_id']}"].append(node)
    return [_slice_view(nodes, holds, names) for _, nodes in sorted(nodes_by_slice.items())]


def _slice_view(nodes: list[dict[str, Any]], holds: Mapping[str, list[_Hold]], names: Mapping[str, str]) -> SliceView:
    hosts = [_host_view(node, holds.get(node["node_id"], []), names) for node in nodes]
    hosts.sort(key=lambda host: (host.worker_id is None, host.worker_id, host.node_id))
    # A slice that was made anew under its old name is what its live nodes say.
    told = next((node for node in nodes if _is_alive(node)), max(nodes, key=_ended))
    return SliceView(
        name=_label(told, "tpu-slice-name"),
        accelerator_type=_label(told, "accelerator-type"),
        pod_type=_label(told, "tpu-pod-type"),
        topology=_label(told, "tpu-topology"),
        hosts=tuple(host for host in hosts if host.alive),
        dead=tuple(host for host in hosts if not host.alive),
    )


def _host_view(node: dict[str, Any], holds: list[_Hold], names: Mapping[str, str]) -> HostView:
    worker_id = _label(node, "tpu-worker-id")
    return HostView(
        node_id=node["node_id"],
        ip=node.get("node_ip") or "",
        worker_id=int(worker_id) if worker_id.isdecimal() else None,
        alive=_is_alive(node),
        chips=_chips(node),
        chips_used=sum(hold.chips for hold in holds),
        holders=tuple(sorted({names.get(hold.job_id, f"job {hold.job_id}") for hold in holds})),
        simulated=(node.get("labels") or {}).get(SIMULATED_LABEL) == "true",
        ended=_ended(node) or None,
        state_message=node.get("state_message") or "",
    )


def _holds_by_node(snapshot: Snapshot) -> dict[str, list[_Hold]]:
    holds: dict[str, list[_Hold]] = defaultdict(list)
    for hold in (*_reserved(snapshot.placement_groups), *_occupied(snapshot.actors), *_occupied(snapshot.tasks)):
        holds[hold.node_id].append(hold)
    return holds


def _reserved(placement_groups: Iterable[dict[str, Any]]) -> Iterable[_Hold]:
    for group in placement_groups:
        for bundle in group.get("bundles") or ():
            yield from _hold(bundle, bundle.get("unit_resources"), group.get("creator_job_id"))


def _occupied(workers: Iterable[dict[str, Any]]) -> Iterable[_Hold]:
    """Actors and tasks outside placement groups: inside one, their resources have other names."""
    for worker in workers:
        yield from _hold(worker, worker.get("required_resources"), worker.get("job_id"))


def _hold(row: dict[str, Any], resources: Mapping[str, float] | None, job_id: str | None) -> Iterable[_Hold]:
    chips = (resources or {}).get("TPU", 0.0)
    is_head = any(name.startswith("TPU-") and name.endswith("-head") for name in resources or ())
    if row.get("node_id") and (chips or is_head):
        yield _Hold(node_id=row["node_id"], job_id=job_id or "?", chips=chips)


def _job_names(jobs: Iterable[dict[str, Any]]) -> dict[str, str]:
    """What to call a job, by Ray's id of its driver: by the submission id where it has one."""
    return {job["job_id"]: f"job {job.get('submission_id') or job['job_id']}" for job in jobs if job.get("job_id")}


def _rows(connection: Connection, kind: str, deadline: float, *, state: str | None = None) -> list[dict[str, Any]]:
    params: dict[str, Any] = {"detail": 1, "limit": _LIMIT, "timeout": int(TIMEOUT_SECONDS)}
    if state is not None:
        params |= {"filter_keys": "state", "filter_predicates": "=", "filter_values": state}
    answer = connection.get_json(f"/api/v0/{kind}", params=params, timeout=_patience(deadline))
    try:
        rows: list[dict[str, Any]] = answer["data"]["result"]["result"]
    except (KeyError, TypeError):
        raise ClusterError(f"{connection.address} does not tell its {kind}: {str(answer)[:200]}") from None
    return rows


def _patience(deadline: float) -> httpx.Timeout:
    """Time-outs that together keep one request within the deadline."""
    left = max(0.1, deadline - time.monotonic())
    connect = min(_CONNECT_SECONDS, left / 3)
    return httpx.Timeout(left - connect, connect=connect)


def _label(node: dict[str, Any], name: str) -> str:
    return str((node.get("labels") or {}).get(_LABEL + name, ""))


def _chips(node: dict[str, Any]) -> int:
    return int((node.get("resources_total") or {}).get("TPU", 0))


def _is_alive(node: dict[str, Any]) -> bool:
    return node.get("state") == "ALIVE"


def _ended(node: dict[str, Any]) -> float:
    return (node.get("end_time_ms") or 0) / 1000
