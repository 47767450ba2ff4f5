"""Which host of a slice a process sits on: a host's number is its TPU worker id, never the order of its start."""

from __future__ import annotations

import os
from dataclasses import dataclass

import ray

from tpuctl.errors import ClusterError


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """What one worker finds in its environment: which slice it sits on, and as which host."""

    slice_name: str
    worker_id: int
    node: str


def deal_ranks(seats: list[Seat], *, slices: int, hosts: int) -> list[int]:
    """The JAX process id of each seat: slices in the order of their names, hosts in that of their worker ids.

    Raises:
        ClusterError: Another number of slices, or a slice whose worker ids are not 0 .. hosts-1.
    """
    names = sorted({seat.slice_name for seat in seats})
    if len(names) != slices:
        raise ClusterError(f"the workers landed on {len(names)} slices ({', '.join(names)}), not on {slices}")
    for name in names:
        found = sorted(seat.worker_id for seat in seats if seat.slice_name == name)
        if found != list(range(hosts)):
            where = ", ".join(f"{s.worker_id} on {s.node}" for s in seats if s.slice_name == name)
            raise ClusterError(
                f"slice {name} should have the TPU worker ids 0 to {hosts - 1}, but has {where}",
                hint="TPU_WORKER_ID is set by the node's start-up (on GKE by Ray's webhook); recreate the odd pod",
            )
    return [names.index(seat.slice_name) * hosts + seat.worker_id for seat in seats]


def take_seat() -> Seat:
    """This worker's seat, from the environment of its node."""
    node = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    name = os.environ.get("TPU_NAME", "")
    return Seat(slice_name=name or f"(unnamed, {node})", worker_id=int(os.environ.get("TPU_WORKER_ID", "0")), node=node)


def meeting_address() -> tuple[str, int]:
    """The address of this host and a free port, for the JAX processes of a job to meet at."""
    # Not at the top: it takes Ray Train along, which a served host has no other use for.
    from ray.train._internal.utils import get_address_and_port

    address, port = get_address_and_port()
    return address, port


def is_simulated() -> bool:
    """Whether this worker's slice is a simulated one, of CPU devices; its node's environment says so."""
    return os.environ.get("TPUCTL_SIMULATED") == "1"
