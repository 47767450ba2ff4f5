"""The task of a plan, made in the process that works, and what identifies its model."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa

from tpuctl.infer.task import Task
from tpuctl.model_folder import fingerprint, open_weights, tokenizer_files
from tpuctl.plan.infer_schema import ReplicaPlan, TaskPlan
from tpuctl.plan.row_template import columns
from tpuctl.storage import join, open_storage

if TYPE_CHECKING:
    from tpuctl.infer.language import MakeEngine


def task_of(
    plan: TaskPlan,
    schema: pa.Schema,
    *,
    model: str | None,
    replica: ReplicaPlan | None,
    engine: MakeEngine | None = None,
) -> Task:
    """The task on rows of that schema, with the model in a folder. The one place that imports what computes.

    A language model has the engine that ``engine`` makes, or else one in this process.

    Raises:
        TpuctlError: it can't be made: no such function or model.
    """
    if plan.kind == "custom":
        from tpuctl.infer.custom import CustomTask

        return CustomTask.of(plan, schema)
    assert model is not None, "plan.infer refuses other tasks without one"
    if plan.kind == "embed":
        from tpuctl.infer.embed import EmbedTask

        return EmbedTask.of(plan, model)
    assert replica is not None, "plan.infer_model makes one for each language model"
    if plan.kind == "generate":
        from tpuctl.infer.generate import GenerateTask

        return GenerateTask.of(plan, model, replica, engine=engine)
    from tpuctl.infer.score import ClassifyTask, ScoreTask

    kind = ScoreTask if plan.kind == "score" else ClassifyTask
    return kind.of(plan, model, replica, engine=engine)


def needed_columns(plan: TaskPlan) -> tuple[str, ...]:
    """The columns that the task reads by name."""
    found = [*plan.inputs, plan.text_column, plan.choices_column]
    if (prompt := plan.prompt) is not None:
        templates = [text for text in (prompt.text, prompt.user, prompt.system) if text is not None]
        found += [prompt.messages_column, *(name for template in templates for name in columns(template))]
    if plan.sampling is not None:
        found += [place.partition(".")[0] for place in plan.sampling.columns.values()]
    return tuple(dict.fromkeys(name for name in found if name is not None))


def model_identity(folder: str, plan: TaskPlan) -> str:
    """What tells a model from others, wherever it lies: its weights, and what it reads and writes text with.

    Raises:
        WeightsError: there are no weights.
        StorageError: a file can't be read.
    """
    digest = hashlib.sha256(fingerprint(open_weights(folder)).encode())
    places = [join(folder, name) for name in tokenizer_files(folder)]
    if plan.prompt is not None and plan.prompt.chat_template is not None:
        places.append(plan.prompt.chat_template)
    for place in places:
        digest.update(hashlib.sha256(open_storage(place).read(place).data).digest())
    return digest.hexdigest()[:32]
