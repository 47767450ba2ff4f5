"""Single arrays out of a checkpoint, on one host and without the devices it was made on."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from tpuctl.errors import CheckpointError
from tpuctl.train.checkpoint_directory import complete_steps, read_step_metadata, scan
from tpuctl.train.checkpoint_errors import STORAGE_ERRORS, failed
from tpuctl.train.provenance import Written, from_record


class CheckpointArrays:
    """The arrays of one complete checkpoint, read one by one."""

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

    def read(self, name: str) -> np.ndarray:
        """One array whole, by its name in the checkpoint, such as ``params/layers/mlp/up``.

        Raises:
            CheckpointError: it is not there, or can't be read.
        """
        wanted = {name: 0}
        how = {name: ocp.RestoreArgs(restore_type=np.ndarray)}
        arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=how, partial_restore=True)
        try:
            found: dict[str, Any] = self._checkpointer.restore(self.path, args=arguments)
        except STORAGE_ERRORS as error:
            raise failed(f"{self.path}: {name} can't be read", error) from error
        return np.asarray(found[name])
