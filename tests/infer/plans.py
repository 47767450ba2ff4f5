"""The task part of a plan and what is in it, with fields changed."""

from __future__ import annotations

from typing import Any

from tpuctl.plan.infer_schema import PromptPlan, ReplicaPlan, SamplingPlan, TaskPlan


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
        "choices": (),
        "choices_column": None,
        "dtype": "float32",
        "weights": None,
        "speculate": 0,
        "kv_dtype": None,
        "pooling": "mean",
        "normalise": True,
        "prompt": None,
        "sampling": None,
    }
    return TaskPlan(**{**fields, **changes})


def sampling_plan(**changes: Any) -> SamplingPlan:
    fields: dict[str, Any] = {
        "max_tokens": 8,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "seed": 0,
        "n": 1,
        "stop": (),
        "json_schema": None,
        "columns": {},
    }
    return SamplingPlan(**{**fields, **changes})


def prompt_plan(**changes: Any) -> PromptPlan:
    fields = dict.fromkeys(("text", "messages_column", "user", "system", "chat_template"))
    return PromptPlan(**{**fields, **changes})


def replica_plan(*, tensor: int = 1) -> ReplicaPlan:
    return ReplicaPlan(per="host", tensor=tensor, page_size=16, num_pages=32, min_step_tokens=16, max_step_tokens=32)
