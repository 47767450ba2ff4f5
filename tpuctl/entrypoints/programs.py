"""Where a host keeps what it compiles, so that the next start of the same program need not."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import jax

from tpuctl.errors import StorageError
from tpuctl.plan.schema import Plan
from tpuctl.storage import is_gcs, join, open_storage

CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"

# Below it, compiling anew is faster than asking: a program in a bucket costs half a dozen requests.
_LEAST_SECONDS_BUCKET = 1.0
_LEAST_SECONDS_DISK = 0.2


def keep_programs(plan: Plan, *, tell: Callable[[str], None]) -> None:
    """Have JAX keep compiled programs in the plan's folder; to be called before anything is compiled.

    A folder that can't be used is told of, and then nothing is kept: compiling anew is slow, and right. What goes wrong
    with a single program later is a warning of JAX's.
    """
    of_host = os.environ.get(CACHE_VARIABLE)
    if plan.job.compile_cache is None and of_host and not is_gcs(of_host):
        return
    folder: str | None = plan.job.compile_cache or of_host or join(plan.run.directory, "compiled")
    try:
        _require_usable(str(folder))
    except StorageError as error:
        tell(f"compiled programs are not kept: {error.message}")
        folder = None
    jax.config.update("jax_compilation_cache_dir", folder)
    least = _LEAST_SECONDS_BUCKET if is_gcs(str(folder)) else _LEAST_SECONDS_DISK
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


def _require_usable(folder: str) -> None:
    """Write an object there and delete it. JAX itself would say nothing of a folder that takes none."""
    storage, probe = open_storage(folder), join(folder, f".probe-{uuid.uuid4().hex}")
    storage.write(probe, b"")
    storage.delete(probe)
