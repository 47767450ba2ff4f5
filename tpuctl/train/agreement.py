"""One answer for all hosts. Everything here is a collective on the devices: all hosts call it in the same order."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int32


def from_first_host(value: int | None) -> int | None:
    """The first host's ``value``, on every host. Values are not negative."""
    if jax.process_count() == 1:
        return value
    answer = int(multihost_utils.broadcast_one_to_all(np.int32(-1 if value is None else value)))
    return None if answer < 0 else answer


def hosts_without(condition: bool) -> list[int]:
    """The numbers of the hosts on which ``condition`` does not hold, on every host."""
    holds = np.asarray(multihost_utils.process_allgather(np.int32(condition))).reshape(-1)
    return [int(host) for host in np.flatnonzero(holds == 0)]


def largest(value: int) -> int:
    """The largest ``value`` of all hosts, on every host."""
    return int(np.max(multihost_utils.process_allgather(np.int32(value))))


class HostSum:
    """Sums small integers over all hosts without waiting: the sum takes its place in the devices' queue."""

    def __init__(self, mesh: Mesh) -> None:
        self._split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._local_devices = len(mesh.local_devices)
        self._sum = jax.jit(lambda values: values.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))

    def __call__(self, value: int) -> Int32[Array, ""]:
        """The sum of what all hosts give; a read of it waits for what was dispatched before."""
        values = np.zeros(self._local_devices, np.int32)
        values[0] = value
        total: Array = self._sum(jax.make_array_from_process_local_data(self._split, values))
        return total
