"""A plan for tests that only need one: every field filled with a plain value of its type, whatever the schema grows."""

from __future__ import annotations

import dataclasses
import types
from dataclasses import replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tpuctl.plan.schema import TrainingPlan


def a_plan(*, name: str = "run", directory: str = "/runs/run", secrets: dict[str, str] | None = None) -> TrainingPlan:
    """A valid plan of that run."""
    plan: TrainingPlan = _sample(TrainingPlan)
    return replace(
        plan,
        kind="train",
        entrypoint="tpuctl.entrypoints.train",
        run=replace(plan.run, name=name, directory=directory),
        job=replace(plan.job, secrets=secrets or {}, stop_grace_seconds=30.0),
    )


def _sample(kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: _sample(hints[field.name]) for field in dataclasses.fields(kind)})  # type: ignore[operator]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, Union):
        return None if types.NoneType in args else _sample(args[0])
    if origin is Literal:
        return args[0]
    if origin is not None:
        return origin()
    return {int: 1, float: 1.0, str: "x", bool: False}[kind]
