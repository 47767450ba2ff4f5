"""The task of a plan, made in the process that works, and what identifies its model."""

from __future__ import annotations

import pyarrow as pa

from tpuctl.infer.task import Task
from tpuctl.model_folder import fingerprint, open_weights
from tpuctl.plan.infer_schema import TaskPlan


def task_of(plan: TaskPlan, schema: pa.Schema, *, model: str | None) -> Task:
    """The task on rows of that schema, with the model in a folder. The one place that imports what computes.

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
    if plan.kind == "generate":
        from tpuctl.infer.generate import GenerateTask

        return GenerateTask.of(plan, model)
    from tpuctl.infer.score import ClassifyTask, ScoreTask

    return ScoreTask.of(plan, model) if plan.kind == "score" else ClassifyTask.of(plan, model)


def needed_columns(plan: TaskPlan) -> tuple[str, ...]:
    """The columns that the task reads by name."""
    return plan.inputs if plan.text_column is None else (plan.text_column,)


def model_identity(folder: str) -> str:
    """What tells the weights in a folder from others, wherever they lie.

    Raises:
        WeightsError: there are none.
    """
    return fingerprint(open_weights(folder))
