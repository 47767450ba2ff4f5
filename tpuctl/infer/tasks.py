"""The task of a plan, made in the process that works."""

from __future__ import annotations

import pyarrow as pa

from tpuctl.infer.custom import CustomTask
from tpuctl.infer.task import Task
from tpuctl.plan.infer_schema import TaskPlan


def task_of(plan: TaskPlan, schema: pa.Schema) -> Task:
    """The task on rows of that schema.

    Raises:
        TpuctlError: it can't be made: no such function or model.
    """
    return CustomTask.of(plan, schema)


def needed_columns(plan: TaskPlan) -> tuple[str, ...]:
    """The columns that the task reads by name."""
    return plan.inputs
