"""Saving and restoring the state of a run: asynchronous, complete or not there at all, and never in silence.

The only file that imports Orbax, and that from a thread: the import takes as long as a small model's first
compilation, and a fresh run needs no Orbax before its first save. Docs: docs/design/checkpoints.md.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
from etils import epath

import tpuctl
from tpuctl.errors import CheckpointError
from tpuctl.plan.train_schema import ResumeRule
from tpuctl.train import checkpoint_directory as steps_on_disk
from tpuctl.train.agreement import from_first_host
from tpuctl.train.checkpoint_errors import STORAGE_ERRORS, does_not_fit, failed, nothing_to_resume, would_mix
from tpuctl.train.leaves import (
    LeafType,
    differences,
    is_key,
    leaf_types,
    named_leaves,
    original_form,
    stored_form,
    stored_shape,
    with_leaves,
)
from tpuctl.train.provenance import LAYOUT, Provenance, Written, changes, check_model, from_record, to_record
from tpuctl.train.shared_directory import require_shared

DEFAULT_TIMEOUT_SECONDS = 600.0

SaveKind = Literal["periodic", "final", "stop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One save. ``blocked_seconds`` is how long the caller waited; the rest went on beside training."""

    step: int
    path: str
    kind: SaveKind
    blocked_seconds: float


class Checkpoints:
    """The checkpoints of one run directory. Every host holds one and calls the same methods in the same order.

    At most one save is under way at a time.
    """

    def __init__(
        self,
        directory: str,
        *,
        provenance: Provenance,
        keep: int,
        keep_best: bool = False,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self.directory = epath.Path(directory)
        self._notes: list[str] = []
        self._provenance = provenance
        self._keep, self._keep_best = keep, keep_best
        self._timeout_seconds = timeout_seconds
        self._orbax_checkpointer: Any = None
        self._finishing: threading.Thread | None = None
        self._failure: Exception | None = None
        self._completed: deque[Saved] = deque()
        self._last_step: int | None = None
        self._has_saved, self._meetings = False, 0
        threading.Thread(target=_orbax, name="import-orbax", daemon=True).start()

    def steps(self) -> list[int]:
        """The complete steps that are there now, ascending."""
        return steps_on_disk.complete_steps(steps_on_disk.scan(self.directory))

    def latest(self) -> int | None:
        """The newest complete step, or None. Unfinished and unmarked directories are never chosen."""
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The complete step with the lowest held-out loss, or None where none was recorded."""
        losses = {step: loss for step in self.steps() if (loss := self._written(step).eval_loss) is not None}
        return min(losses, key=lambda step: (losses[step], step), default=None)

    def path(self, step: int) -> str:
        """Where a step is, or will be."""
        return str(self.directory / str(step))

    def choose(self, rule: ResumeRule) -> int | None:
        """The step to go on from, or None for a fresh start. The first host looks; all get its answer.

        Raises:
            CheckpointError: ``must`` and there is no complete step, ``never`` and there is one of another job, or
                not all hosts see the directory.
        """
        require_shared(self.directory)
        found = steps_on_disk.scan(self.directory)
        latest = from_first_host(max(steps_on_disk.complete_steps(found), default=None))
        passed_over = steps_on_disk.passed_over(found, latest)
        self._notes += passed_over
        if latest is None and rule == "must":
            raise nothing_to_resume(self.directory, passed_over)
        if latest is not None and rule == "never" and not self._is_own(latest):
            raise would_mix(self.directory, latest)
        return latest

    def save(self, step: int, state: Any, *, kind: SaveKind = "periodic", eval_loss: float | None = None) -> None:
        """Begin to save ``state`` as ``step``, unless that step was saved or restored last.

        Returns once the arrays are copied to host memory, so the caller may donate them at once.

        Raises:
            CheckpointError: This save could not begin, an earlier one failed, or a host did not come in time.
        """
        started = time.monotonic()
        self.wait()
        self._raise_failure()
        if self._last_step == step:
            return
        self._meet(f"save of step {step}")
        self._make_room(step)
        leaves = named_leaves(state)
        arrays = {name: stored_form(leaf) for name, leaf in leaves.items()}
        record = to_record(self._record(leaves, eval_loss))
        try:
            self._checkpointer().save(self.path(step), arrays, force=True, custom_metadata=record)
        except STORAGE_ERRORS as error:
            raise failed(f"checkpoint of step {step} could not be saved", error) from error
        self._last_step, self._has_saved = step, True
        saved = Saved(step=step, path=self.path(step), kind=kind, blocked_seconds=time.monotonic() - started)
        self._finishing = threading.Thread(target=self._finish, args=(saved,), name="finish-save", daemon=True)
        self._finishing.start()

    def poll(self) -> list[Saved]:
        """The saves that became complete since the last call. Costs nothing; call it every step.

        Raises:
            CheckpointError: A save failed in the background.
        """
        self._raise_failure()
        return [self._completed.popleft() for _ in range(len(self._completed))]

    def wait(self, *, timeout_seconds: float | None = None) -> None:
        """Block until no save is under way. A failure is told by ``poll``."""
        if self._finishing is not None:
            self._finishing.join(timeout_seconds)

    def restore(self, step: int, abstract_state: Any) -> Any:
        """The state saved as ``step``, in the types, dtypes and shardings of ``abstract_state``.

        The devices and hosts may be others than those that saved it. No value is ever cast.

        Raises:
            CheckpointError: Another model or layout, an array missing, too many, or of another shape or dtype,
                or files that can't be read.
        """
        path = self.path(step)
        written = self._written(step)
        check_model(written, self._provenance, path=path)
        leaves = named_leaves(abstract_state)
        wanted = {name: stored_shape(leaf) for name, leaf in leaves.items()}
        try:
            found = differences(self._stored_types(written, path), leaf_types(leaves))
            if found:
                raise does_not_fit(f"{path} (layout {written.layout})", found)
            stored = self._checkpointer().restore(path, item=wanted, restore_args=_restore_args(wanted))
        except STORAGE_ERRORS as error:
            raise failed(f"{path} can't be read", error) from error
        self._notes += changes(written, self._provenance, devices=jax.device_count())
        self._last_step, self._provenance = step, self._provenance.going_on_from(written.provenance)
        return with_leaves(abstract_state, {name: original_form(stored[name], leaf) for name, leaf in leaves.items()})

    def take_notes(self) -> list[str]:
        """What a user should hear about since the last call: steps passed over, directories moved, changed data."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Finish what is under way and let go.

        Raises:
            CheckpointError: The save under way failed.
        """
        self.wait()
        opened, self._orbax_checkpointer = self._orbax_checkpointer, None
        try:
            if opened is not None:
                opened.close()
        except STORAGE_ERRORS as error:
            self._failure = self._failure or error
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failed(f"checkpoint of step {self._last_step} failed in the background", failure) from failure

    def _checkpointer(self) -> Any:
        if self._orbax_checkpointer is None:
            ocp = _orbax()
            # Naming the processes makes Orbax meet through the coordination service, which has time-outs and can be
            # used beside a running step; its default is a collective on the devices.
            hosts = set(range(jax.process_count()))
            self._orbax_checkpointer = ocp.AsyncCheckpointer(
                ocp.PyTreeCheckpointHandler(multiprocessing_options=_hosts_option(hosts)),
                async_options=ocp.AsyncOptions(timeout_secs=max(1, int(self._timeout_seconds))),
                multiprocessing_options=_hosts_option(hosts),
            )
        return self._orbax_checkpointer

    def _make_room(self, step: int) -> None:
        path = self.directory / str(step)
        if (path / steps_on_disk.COMMIT_MARKER).exists():
            raise CheckpointError(f"{path} is there already: is another job training in this run directory?")
        if jax.process_index() == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not self._has_saved:
                steps_on_disk.remove_leftovers(self.directory)
            moved = steps_on_disk.clear_way(self.directory, step)
            self._notes += [moved] if moved else []

    def _finish(self, saved: Saved) -> None:
        """Wait for a save, then delete what is no longer to be kept. Runs in a thread of its own."""
        try:
            self._orbax_checkpointer.wait_until_finished()
            if jax.process_index() == 0:
                for old in self._outdated(saved.step):
                    steps_on_disk.remove(self.directory, old)
            self._completed.append(saved)
        except (*STORAGE_ERRORS, CheckpointError) as error:
            self._failure = error

    def _outdated(self, newest: int) -> list[int]:
        steps = self.steps()
        kept = {newest, *steps[-self._keep :]}
        if self._keep_best and (best := self.best()) is not None:
            kept.add(best)
        return [step for step in steps if step not in kept]

    def _record(self, leaves: Mapping[str, Any], eval_loss: float | None) -> Written:
        return Written(
            layout=LAYOUT,
            tpuctl_version=tpuctl.__version__,
            devices=jax.device_count(),
            provenance=self._provenance,
            key_types={name: str(leaf.dtype) for name, leaf in leaves.items() if is_key(leaf)},
            eval_loss=eval_loss,
        )

    def _written(self, step: int) -> Written:
        metadata = steps_on_disk.read_step_metadata(self.directory, step)
        return from_record(metadata.get("custom_metadata") or {}, path=self.path(step))

    def _stored_types(self, written: Written, path: str) -> dict[str, LeafType]:
        metadata = self._checkpointer().metadata(path).item_metadata
        if metadata is None:
            raise ValueError("its table of arrays is missing or damaged")
        types = leaf_types(metadata.tree)
        keys = {name: replace(types[name], dtype=dtype) for name, dtype in written.key_types.items()}
        return {**types, **{name: replace(key, shape=key.shape[:-1]) for name, key in keys.items()}}

    def _is_own(self, step: int) -> bool:
        return bool(self._provenance.job) and self._written(step).provenance.job == self._provenance.job

    def _meet(self, what: str) -> None:
        if jax.process_count() == 1:
            return
        self._meetings += 1
        meet = _orbax().multihost.get_barrier_sync_fn()
        try:
            meet(key=f"tpuctl:checkpoints:{self._meetings}", timeout_ms=int(self._timeout_seconds * 1000))
        except RuntimeError as error:
            raise failed(f"{what}: not all hosts came within {self._timeout_seconds:g} s", error) from error


def _orbax() -> Any:
    return importlib.import_module("orbax.checkpoint")


def _hosts_option(hosts: set[int]) -> Any:
    return _orbax().options.MultiprocessingOptions(active_processes=hosts if len(hosts) > 1 else None)


def _restore_args(wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
    ocp = _orbax()
    return {
        name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)
        for name, leaf in wanted.items()
    }
