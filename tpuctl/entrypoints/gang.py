"""The gang: one JAX process per host of the reserved slices, checked and joined before anything is compiled.

Ray's own JAX backend numbers processes by the order in which it happens to hold its workers, and joins them
without looking. On a slice the number of a host is its TPU worker id; a gang with a host missing, doubled or of
another slice never returns from its first collective. So this backend looks first, says what it found, and
bounds the wait.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train._internal.base_worker_group import BaseWorkerGroup
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.jax import JaxConfig
from ray.util.tpu import get_tpu_coordinator_env_vars

from tpuctl.entrypoints.emit import emit
from tpuctl.entrypoints.preemption import heed_sigterm, heed_sigterm_no_more
from tpuctl.entrypoints.seats import deal_ranks, meeting_address, take_seat
from tpuctl.errors import ClusterError

SHUTDOWN_TIMEOUT_SECONDS = 30


@dataclass
class GangConfig(JaxConfig):
    """The gang a plan asks for. ``hosts`` is per slice.

    With ``joins`` the workers themselves form the JAX cluster. Without, what they start does, and finds in its
    environment how; the workers then keep their hands off JAX and the chips.
    """

    slices: int = 1
    hosts: int = 1
    joins: bool = True
    join_timeout_seconds: float = 600.0

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend Ray Train drives."""
        return GangBackend


class GangBackend(Backend):
    """Joins the workers of a worker group to one ``jax.distributed`` cluster, in the order of their hosts."""

    def on_start(self, worker_group: BaseWorkerGroup, backend_config: BackendConfig) -> None:
        """Check the seats, then join.

        Raises:
            ClusterError: The workers are not the hosts of whole slices, or did not all join in time.
        """
        assert isinstance(backend_config, GangConfig)
        seats = worker_group.execute(take_seat)
        ranks = deal_ranks(seats, slices=backend_config.slices, hosts=backend_config.hosts)
        emit("phase", phase="reserved", detail=", ".join(sorted({seat.slice_name for seat in seats})))
        address, port = worker_group.execute_single(ranks.index(0), meeting_address)
        take_part = join if backend_config.joins else point_the_way
        calls = {
            worker_group.execute_single_async(
                index, take_part, _Joining.of(rank, len(ranks), address, port, backend_config)
            ): rank
            for index, rank in enumerate(ranks)
        }
        _wait_for_all(calls, backend_config.join_timeout_seconds, f"{address}:{port}")

    def on_shutdown(self, worker_group: BaseWorkerGroup, backend_config: BackendConfig) -> None:
        """Leave the ``jax.distributed`` cluster; a host that is gone already must not fail a job that is done."""
        assert isinstance(backend_config, GangConfig)
        if backend_config.joins:
            _wait_while_all_live(worker_group.execute_async(leave))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Joining:
    """What a worker needs to know to join."""

    rank: int
    processes: int
    coordinator: str
    slice_environment: dict[str, str]
    timeout_seconds: float

    @classmethod
    def of(cls, rank: int, processes: int, address: str, port: int, config: GangConfig) -> _Joining:
        environment = {}
        if config.slices > 1:
            environment = get_tpu_coordinator_env_vars(
                coordinator_address=address, num_slices=config.slices, slice_id=rank // config.hosts
            )
        return cls(
            rank=rank,
            processes=processes,
            coordinator=f"{address}:{port}",
            slice_environment=environment,
            timeout_seconds=config.join_timeout_seconds,
        )


def join(joining: _Joining) -> None:
    """Import JAX in this worker and join the others. On a TPU host only the TPU will do as platform.

    A process on its own has nobody to join, and without a cluster XLA's CPU devices meet in memory, not over TCP.
    """
    os.environ.setdefault("JAX_PLATFORMS", "tpu")
    os.environ.update(joining.slice_environment)
    import jax

    if joining.processes > 1:
        jax.distributed.initialize(
            joining.coordinator,
            joining.processes,
            joining.rank,
            initialization_timeout=int(joining.timeout_seconds),
        )
    # Afterwards: joining hands the signal to JAX's own preemption service, which our loop does not ask.
    heed_sigterm()


def point_the_way(joining: _Joining) -> None:
    """Put into this worker's environment what a process it starts needs in order to join the others itself."""
    os.environ.setdefault("JAX_PLATFORMS", "tpu")
    os.environ.update(joining.slice_environment)
    os.environ.update(
        JAX_COORDINATOR_ADDRESS=joining.coordinator,
        JAX_NUM_PROCESSES=str(joining.processes),
        JAX_PROCESS_ID=str(joining.rank),
    )


def leave() -> None:
    """Leave the cluster that ``join`` entered."""
    heed_sigterm_no_more()
    import jax

    if not jax.distributed.is_initialized():
        return
    try:
        jax.distributed.shutdown()
    except RuntimeError as error:
        emit("note", text=f"leaving the JAX cluster: {error}")


def _wait_while_all_live(refs: list[Any]) -> None:
    """Wait for calls that wait for each other, but not for one whose worker is gone: the rest never end then."""
    until = time.monotonic() + SHUTDOWN_TIMEOUT_SECONDS
    while refs:
        done, refs = ray.wait(refs, timeout=max(0.0, until - time.monotonic()))
        if not done:
            return
        try:
            ray.get(done)
        except RayError:
            return


def _wait_for_all(calls: dict[Any, int], timeout_seconds: float, coordinator: str) -> None:
    refs: list[Any] = list(calls)
    done, missing = ray.wait(refs, num_returns=len(calls), timeout=timeout_seconds)
    if missing:
        ranks = ", ".join(str(calls[ref]) for ref in missing)
        raise ClusterError(
            f"joined {len(done)} of {len(calls)} hosts after {timeout_seconds:.0f} s: missing hosts {ranks} "
            f"(coordinator {coordinator})",
            hint="is the coordinator's port open between the hosts? [job] start_timeout gives slow hosts longer",
        )
    ray.get(done)
