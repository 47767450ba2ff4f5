"""What a training run says of the model it trains: the plan in its ``run.json``."""

from __future__ import annotations

import json
import re
from typing import Any

from tpuctl.errors import StorageError, WeightsError
from tpuctl.plan.decode import PlanFormatError
from tpuctl.plan.schema import TrainingPlan, plan_from_json
from tpuctl.storage import NotFoundError, join, open_storage

RUN_FILE = "run.json"
_STEP = re.compile(r"(?P<run>.+)@(?P<step>\d{1,18})")


def run_and_step(text: str) -> tuple[str, int | None]:
    """``runs/mine@200`` as the run directory and the step; without a step the newest is meant."""
    found = _STEP.fullmatch(text)
    return (text, None) if found is None else (found["run"], int(found["step"]))


def is_run(uri: str) -> bool:
    """Whether a place is the directory of a run, of any kind; no where it can't be looked at."""
    try:
        return open_storage(uri).exists(join(uri, RUN_FILE))
    except StorageError:
        return False


def read_training_plan(uri: str) -> TrainingPlan:
    """The plan of the training run in a directory.

    Raises:
        WeightsError: there is none.
        StorageError: it can't be read.
    """
    place = join(uri, RUN_FILE)
    try:
        record: dict[str, Any] = json.loads(open_storage(place).read(place).data)
        plan = plan_from_json(record["plan"])
    except NotFoundError as error:
        hint = "name the directory of a training run: it has a run.json"
        raise WeightsError(f"{uri} is no run directory: it has no {RUN_FILE}", hint=hint) from error
    except PlanFormatError as error:
        hint = "export it with that version, and serve the folder"
        raise WeightsError(f"{uri} was written by another version of tpuctl: {error}", hint=hint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{place} is no run record: {error}", hint="name the directory of a training run") from error
    if not isinstance(plan, TrainingPlan):
        raise WeightsError(f"{uri} is a run of kind {plan.kind}", hint="only training runs have weights to serve")
    return plan
