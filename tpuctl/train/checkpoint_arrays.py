"""Single arrays out of a checkpoint, on one host and without the devices it was made on."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from tpuctl.errors import CheckpointError
from tpuctl.train.checkpoint_directory import complete_steps, read_step_metadata, scan
from tpuctl.train.checkpoint_errors import STORAGE_ERRORS, failed
from tpuctl.train.provenance import Written, from_record

# Any read of a checkpoint asks a bucket for two dozen small files, so small arrays are read together.
_SMALL_BYTES = 16 << 20
_TOGETHER_BYTES = 256 << 20


class CheckpointArrays:
    """The arrays of one complete checkpoint, read one by one; no more than a few small ones are held beside."""

    def __init__(self, directory: str, *, step: int | None = None) -> None:
        """Open a step of a run's checkpoints, the newest complete one if none is named.

        Raises:
            CheckpointError: there is no such complete step, or not one of ours.
        """
        logging.getLogger("absl").setLevel(logging.WARNING)
        steps = complete_steps(scan(epath.Path(directory)))
        if not steps:
            raise CheckpointError(f"{directory} has no complete checkpoint", hint="train the run to its first save")
        if step is not None and step not in steps:
            listed = ", ".join(map(str, steps))
            raise CheckpointError(f"{directory} has no complete checkpoint of step {step}", hint=f"there are {listed}")
        self.step = steps[-1] if step is None else step
        self.path = str(epath.Path(directory) / str(self.step))
        metadata = read_step_metadata(epath.Path(directory), self.step)
        self.written: Written = from_record(metadata.get("custom_metadata") or {}, path=self.path)
        self._checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
        self._sizes: dict[str, int] | None = None
        self._ahead: dict[str, np.ndarray] = {}

    def read(self, name: str) -> np.ndarray:
        """One array whole, by its name in the checkpoint, such as ``params/layers/mlp/up``.

        Raises:
            CheckpointError: it is not there, or can't be read.
        """
        if name not in self._ahead:
            try:
                self._ahead = self._restored(self._together(name))
            except STORAGE_ERRORS as error:
                raise failed(f"{self.path}: {name} can't be read", error) from error
        return self._ahead.pop(name)

    def _together(self, name: str) -> list[str]:
        """The array, and if it is small the small ones behind it that belong to the same part of the state."""
        if self._sizes is None:
            tree = self._checkpointer.metadata(self.path).item_metadata.tree
            self._sizes = {key: math.prod(leaf.shape) * leaf.dtype.itemsize for key, leaf in tree.items()}
        part, _, _ = name.partition("/")
        names, total = [name], self._sizes.get(name, 0)
        if total > _SMALL_BYTES:
            return names
        for other, size in self._sizes.items():
            if other > name and other.partition("/")[0] == part and size <= _SMALL_BYTES:
                total += size
                if total > _TOGETHER_BYTES:
                    break
                names.append(other)
        return names

    def _restored(self, names: list[str]) -> dict[str, np.ndarray]:
        how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        arguments = ocp.args.PyTreeRestore(item=dict.fromkeys(names, 0), restore_args=how, partial_restore=True)
        found: dict[str, Any] = self._checkpointer.restore(self.path, args=arguments)
        return {name: np.asarray(values) for name, values in found.items()}
