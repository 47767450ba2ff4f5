"""The parts of a plan that data reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tpuctl.plan.schema import DataPlan, TrainPlan


def data_plan(**changes: Any) -> DataPlan:
    plan = DataPlan(
        uri="/data",
        eval_uri=None,
        text_column="text",
        chat=None,
        tokenizer="bytes",
        packing=True,
        ragged="drop",
        epochs=0,
        shuffle=True,
        seed=0,
        readers_per_host=1,
    )
    return replace(plan, **changes)


def train_plan(**changes: Any) -> TrainPlan:
    plan = TrainPlan(
        steps=10,
        global_batch=4,
        microbatches=1,
        sequence_length=16,
        seed=0,
        compute_dtype="float32",
        remat="none",
        z_loss=0.0,
        dropout=0.0,
        log_every=1,
        eval_every=0,
        eval_batches=0,
    )
    return replace(plan, **changes)
