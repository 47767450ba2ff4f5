"""One answer for all hosts: what the first host saw, or whether every host agrees. Collective on the devices."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def from_first_host(value: int | None) -> int | None:
    """The first host's ``value``, on every host. Values are not negative."""
    if jax.process_count() == 1:
        return value
    answer = int(multihost_utils.broadcast_one_to_all(np.int32(-1 if value is None else value)))
    return None if answer < 0 else answer


def hosts_where(condition: bool) -> list[int]:
    """The numbers of the hosts on which ``condition`` holds, on every host."""
    if jax.process_count() == 1:
        return [0] if condition else []
    answers = np.asarray(multihost_utils.process_allgather(np.int32(condition))).reshape(-1)
    return [int(host) for host in np.flatnonzero(answers)]
