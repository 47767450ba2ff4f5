"""The weights a run starts from, looked at once by the driver: a misfit is told before any slice is reserved."""

from __future__ import annotations

from etils import epath

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.emit import tell_note
from tpuctl.model_folder import fingerprint, open_weights
from tpuctl.nn.peft import Adapted, fit_adapter
from tpuctl.nn.weights_fit import fit
from tpuctl.plan.schema import TrainingPlan
from tpuctl.storage import join
from tpuctl.train.checkpoint_directory import complete_steps, scan


def starting_weights(plan: TrainingPlan) -> str:
    """The fingerprint of the weights a run reads: a new one, or any beside which it trains adapters; else empty.

    Raises:
        WeightsError: they are not those of the plan's model, or damaged.
        StorageError: they can't be read.
    """
    if plan.weights is None:
        return ""
    resumes = bool(complete_steps(scan(epath.Path(join(plan.run.directory, "checkpoints")))))
    if resumes and plan.lora is None:
        return ""
    weights = open_weights(model_folder(plan.weights.uri, tell=tell_note))
    fit(weights, plan.model, family=plan.weights.family)
    if plan.lora is not None and plan.lora.adapter is not None and not resumes:
        fit_adapter(Adapted(spec=plan.model, family=plan.weights.family, lora=plan.lora), plan.lora.adapter)
    return fingerprint(weights)
