"""Do all hosts see one directory? A path may exist on each of them and yet be five different disks."""

from __future__ import annotations

import secrets

import jax
from etils import epath

from tpuctl.errors import CheckpointError
from tpuctl.train.agreement import from_first_host, hosts_without


def require_shared(directory: epath.Path) -> None:
    """Check that what the first host writes into ``directory`` is there for all others.

    Raises:
        CheckpointError: On every host, if any does not see it.
    """
    if jax.process_count() == 1:
        return
    number = from_first_host(secrets.randbelow(1 << 30))
    probe = directory / f".shared-{number}"
    if jax.process_index() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
    # Written before the hosts meet here, so that it must be there when the others look.
    hosts_without(True)
    blind = hosts_without(probe.exists())
    if jax.process_index() == 0:
        probe.unlink()
    if blind:
        raise CheckpointError(
            f"hosts {', '.join(map(str, blind))} do not see what host 0 writes to {directory}",
            hint="a run on several hosts needs one directory for all: a shared file system, mounted at the same path",
        )
