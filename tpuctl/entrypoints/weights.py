"""The weights a run starts from, looked at once by the driver: a misfit is told before any slice is reserved."""

from __future__ import annotations

from etils import epath

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.emit import tell_note
from tpuctl.model_folder import fingerprint, open_weights
from tpuctl.nn.weights_fit import fit
from tpuctl.plan.schema import TrainingPlan
from tpuctl.storage import join
from tpuctl.train.checkpoint_directory import complete_steps, scan


def starting_weights(plan: TrainingPlan) -> str:
    """The fingerprint of the weights a new run starts from; empty where it starts from none, or goes on.

    Raises:
        WeightsError: they are not those of the plan's model, or damaged.
        StorageError: they can't be read.
    """
    if plan.weights is None or complete_steps(scan(epath.Path(join(plan.run.directory, "checkpoints")))):
        return ""
    weights = open_weights(model_folder(plan.weights.uri, tell=tell_note))
    fit(weights, plan.model, family=plan.weights.family)
    return fingerprint(weights)
