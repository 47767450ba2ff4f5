"""What goes wrong with a checkpoint, in words. Imports no Orbax."""

from __future__ import annotations

import re

from tpuctl.errors import CheckpointError

# What Orbax, TensorStore, the file system and JAX's coordination service raise for a save or restore gone wrong.
STORAGE_ERRORS = (OSError, ValueError, RuntimeError, KeyError)


def does_not_fit(subject: str, found: list[str]) -> CheckpointError:
    """The error for stored arrays that are not those of the plan; ``found`` is what differs."""
    return CheckpointError(
        f"{subject} does not fit this plan: {'; '.join(found)}",
        hint="go back to the recipe that wrote it, or give the changed one a run directory of its own",
    )


def nothing_to_resume(directory: object, passed_over: list[str]) -> CheckpointError:
    """The error for ``resume = "must"`` without a complete step."""
    return CheckpointError(
        "; ".join([f"no complete checkpoint in {directory}", *passed_over]),
        hint='checkpoint.resume = "auto" starts from step 0 where there is none',
    )


def would_mix(directory: object, latest: int) -> CheckpointError:
    """The error for ``resume = "never"`` where another job has left checkpoints."""
    return CheckpointError(
        f'checkpoint.resume = "never", but {directory} has checkpoints up to step {latest}',
        hint="a fresh run among them would be taken for their continuation: choose a new run.directory, "
        'or set checkpoint.resume = "auto" to go on from them',
    )


def failed(message: str, error: BaseException) -> CheckpointError:
    """The error for a save or restore that failed: its cause, or the hosts that a meeting waited for in vain."""
    missing = missing_hosts("\n".join(str(cause) for cause in (error, error.__cause__) if cause))
    if missing:
        return CheckpointError(f"{message}: missing hosts {', '.join(map(str, missing))}")
    lines = str(error).strip().splitlines() or [""]
    return CheckpointError(f"{message}: {type(error).__name__}: {lines[0]}")


def missing_hosts(text: str) -> list[int]:
    """The hosts that JAX's coordination service names in the error of a barrier: one a line, the first few."""
    listing = re.search(r"timed out task names:\s*((?:\d+\s+)*)", text)
    return sorted(int(number) for number in listing.group(1).split()) if listing else []
