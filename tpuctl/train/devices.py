"""Are these the devices the plan was made for? Asked on every host, before anything is compiled."""

from __future__ import annotations

import jax

from tpuctl.errors import ClusterError
from tpuctl.plan.schema import UniformPlan

_STALE_PROCESS_HINT = (
    "is another process holding the chips? look for a stale one on the host; is libtpu installed (jax[tpu])? "
    "only a simulated slice runs on CPU"
)


def verify_devices(plan: UniformPlan, *, simulated: bool) -> None:
    """Check this host's view of the slice against the plan. Never lets a TPU job run on CPU in silence.

    Raises:
        ClusterError: Another platform, or another number of hosts or devices than planned.
    """
    platform, wanted = jax.default_backend(), "cpu" if simulated else "tpu"
    local, local_wanted = jax.local_device_count(), plan.slice.devices_per_host
    if platform != wanted:
        raise ClusterError(
            f"expected {local_wanted} {wanted.upper()} devices, found {platform.upper()} ({local} devices)",
            hint=_STALE_PROCESS_HINT,
        )
    if jax.process_count() != plan.slice.total_hosts:
        raise ClusterError(
            f"joined {jax.process_count()} of {plan.slice.total_hosts}: this host sees {jax.device_count()} devices, "
            f"expected {plan.slice.total_devices}",
            hint="the hosts did not form one JAX cluster: is TPU_WORKER_HOSTNAMES set on each of them?",
        )
    if local != local_wanted or jax.device_count() != plan.slice.total_devices:
        raise ClusterError(
            f"host {jax.process_index()} has {local} devices, expected {local_wanted}; "
            f"all hosts have {jax.device_count()}, expected {plan.slice.total_devices}",
            hint=_STALE_PROCESS_HINT,
        )
