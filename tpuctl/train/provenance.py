"""What is written beside a checkpoint's arrays: who wrote it, from which plan and data, on how many devices.

Pure data; imports no JAX and no Orbax.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.errors import CheckpointError
from tpuctl.modelspec import ModelSpec, RopeSpec
from tpuctl.plan.schema import TrainingPlan
from tpuctl.plan.weights_schema import LoraPlan

# Goes up when the names or meanings of the stored arrays change.
LAYOUT = 1

# A checkpoint that was written before a field of the model existed was trained with the field's default.
_DEFAULTS: dict[str, Any] = json.loads(
    json.dumps(
        {
            item.name: dataclasses.asdict(item.default) if isinstance(item.default, RopeSpec) else item.default
            for item in dataclasses.fields(ModelSpec)
            if item.default is not dataclasses.MISSING
        }
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where a checkpoint's arrays come from.

    Attributes:
        model: The model's fields. Arrays saved under others have another meaning, even where the shapes agree.
        compute_dtype: Dtype of the activations; the stored masters are float32 whatever it is.
        dataset: Fingerprint of the training data; empty where unknown.
        weights: Fingerprint of the weights the run started from; empty where they were drawn, or from before a resume.
        source: The folder they came from.
        lora: Rank, alpha and targets, where the arrays are adapters beside the frozen ``weights``.
        job: Which job wrote it, so that a job's own retries can go on where ``resume = "never"`` was asked.
    """

    model: Mapping[str, Any]
    compute_dtype: str
    dataset: str = ""
    weights: str = ""
    source: str = ""
    lora: Mapping[str, Any] | None = None
    job: str = ""

    def going_on_from(self, before: Provenance) -> Provenance:
        """The provenance of what a run saves after it was resumed: its weights came from where they first did."""
        return replace(self, weights=before.weights, source=before.source)


def provenance_of(plan: TrainingPlan, *, dataset: str = "", weights: str = "", job: str = "") -> Provenance:
    """The provenance of checkpoints written under ``plan``. A model's name says nothing about its arrays."""
    # As it will read when it comes back out of JSON, so that the two can be compared.
    model = json.loads(
        json.dumps({key: value for key, value in dataclasses.asdict(plan.model).items() if key != "name"})
    )
    return Provenance(
        model=model,
        compute_dtype=plan.train.compute_dtype,
        dataset=dataset,
        weights=weights,
        source=plan.weights.uri if plan.weights is not None else "",
        lora=None if plan.lora is None else _lora(plan.lora),
        job=job,
    )


def _lora(lora: LoraPlan) -> dict[str, Any]:
    """What decides the meaning of adapters' arrays."""
    return {"rank": lora.rank, "alpha": lora.alpha, "targets": list(lora.targets)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """The record of one checkpoint, as it stands in its metadata file.

    ``key_types`` names the arrays that are the words of typed PRNG keys, each with its type.
    """

    layout: int
    tpuctl_version: str
    devices: int
    provenance: Provenance
    key_types: Mapping[str, str]
    eval_loss: float | None


def to_record(written: Written) -> dict[str, Any]:
    """The record as JSON-ready data."""
    return {"tpuctl": dataclasses.asdict(written)}


def from_record(document: Mapping[str, Any], *, path: str) -> Written:
    """The record a checkpoint's metadata holds.

    Raises:
        CheckpointError: It was not written by tpuctl, or by a later version of it.
    """
    record = document.get("tpuctl")
    if not isinstance(record, dict):
        raise CheckpointError(
            f"{path} was not written by tpuctl train: it has no record of its layout",
            hint="choose a run directory without foreign checkpoints",
        )
    if record["layout"] > LAYOUT:
        raise CheckpointError(
            f"{path} has checkpoint layout {record['layout']} (tpuctl {record['tpuctl_version']}), "
            f"this tpuctl reads layouts up to {LAYOUT}",
            hint="use the tpuctl version that wrote it, or a later one",
        )
    return Written(**{**record, "provenance": Provenance(**record["provenance"])})


def check_model(written: Written, wanted: Provenance, *, path: str) -> None:
    """Refuse arrays that were trained as another model, or as other adapters.

    Raises:
        CheckpointError: A field of the model differs; names each one with both values. Or rank, alpha, targets or the
            frozen weights differ, or only one of the two has adapters.
    """
    stored, planned = ({**_DEFAULTS, **given} for given in (written.provenance.model, wanted.model))
    changed = [
        f"model.{key}: {stored.get(key)!r} in the checkpoint, {planned.get(key)!r} in the plan"
        for key in sorted({*stored, *planned})
        if stored.get(key) != planned.get(key)
    ]
    if changed:
        raise CheckpointError(
            f"{path} holds another model ({'; '.join(changed)})",
            hint="give the changed model a run directory of its own, or go back to the model of the checkpoint",
        )
    _check_adapters(written, wanted, path=path)


def _check_adapters(written: Written, wanted: Provenance, *, path: str) -> None:
    stored = written.provenance
    if stored.lora != wanted.lora:
        both = [f"adapters of {lora}" if lora else "all weights" for lora in (stored.lora, wanted.lora)]
        hint = "give the changed [lora] a run directory of its own, or go back to that of the checkpoint"
        raise CheckpointError(f"{path} holds {both[0]}, the plan trains {both[1]}", hint=hint)
    if wanted.lora is not None and wanted.weights and stored.weights != wanted.weights:
        raise CheckpointError(
            f"{path} holds adapters trained beside the weights {stored.weights} of {stored.source}; "
            f"those in {wanted.source} are {wanted.weights}",
            hint="set model.source to the weights it was trained beside",
        )


def changes(written: Written, wanted: Provenance, *, devices: int) -> list[str]:
    """What differs from the run that wrote the checkpoint and is worth a line, but no error."""
    notes = []
    if written.devices != devices:
        notes.append(f"saved on {written.devices} devices, resumed on {devices}")
    if written.provenance.compute_dtype != wanted.compute_dtype:
        notes.append(
            f"compute dtype was {written.provenance.compute_dtype}, now {wanted.compute_dtype}: losses will differ"
        )
    if written.provenance.dataset and wanted.dataset and written.provenance.dataset != wanted.dataset:
        notes.append("the training data changed since the checkpoint was written: its next batches are others")
    return notes
