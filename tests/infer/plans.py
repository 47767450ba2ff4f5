"""The task part of a plan, with fields changed."""

from __future__ import annotations

from typing import Any

from tpuctl.plan.infer_schema import TaskPlan


def task_plan(**changes: Any) -> TaskPlan:
    fields: dict[str, Any] = {
        "kind": "custom",
        "function": None,
        "directory": None,
        "inputs": (),
        "batch_rows": 4,
        "ragged": "pad",
        "text_column": None,
        "max_length": None,
        "too_long": "quarantine",
        "max_tokens": 8,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 0,
        "choices": (),
        "dtype": "float32",
        "pooling": "mean",
        "normalise": True,
    }
    return TaskPlan(**{**fields, **changes})
