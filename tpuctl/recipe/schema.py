"""What a user may write: one frozen dataclass per kind of recipe and per table, every field documenting itself.

Only what one key alone can tell is checked from here (type, range, choices); rules over several keys are
``plan.resolve``'s.
"""

# ruff: noqa: RUF009 — `setting()` makes a dataclass field, it is no mutable default
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tpuctl.plan.schema import JobKind
from tpuctl.recipe.custom import CustomJobTable
from tpuctl.recipe.data import DataTable
from tpuctl.recipe.inference import OutputTable, RowsTable, SourceTable, TaskTable
from tpuctl.recipe.learning import CheckpointTable, ExpectTable, LoraTable, ModelTable, OptimTable, TrainTable
from tpuctl.recipe.origin import Origin
from tpuctl.recipe.placement import ClusterTable, JobTable, MeshTable, RunTable, SliceTable
from tpuctl.recipe.prompting import PromptTable, SamplingTable
from tpuctl.recipe.serving import EngineTable, ServedModelTable, ServedSliceTable, ServeTable
from tpuctl.recipe.settings import FAMILY, Sharing, setting

_MODELS = (
    "One of several models behind one URL, on slices of its own and under the name that clients call it by. What it "
    "leaves out is as in the tables that all of them share."
)


def _table(kind: Any, *, required: bool = False, sharing: Sharing = "shared") -> Any:
    metadata = {"table": True, "sharing": sharing}
    if required:
        return field(metadata=metadata)
    return field(default_factory=kind, metadata=metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A recipe: what a user wrote, with the defaults of single keys filled in. These tables every kind has."""

    kind: JobKind = setting(doc="What the recipe runs.", example="train")
    run: RunTable = _table(RunTable)
    slice: SliceTable = _table(SliceTable, required=True)
    cluster: ClusterTable = _table(ClusterTable)
    job: JobTable = _table(JobTable)
    origin: Origin = field(default_factory=lambda: Origin(file="<recipe>"), compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRecipe(Recipe):
    """A model trained on text."""

    model: ModelTable = _table(ModelTable)
    lora: LoraTable = _table(LoraTable)
    mesh: MeshTable = _table(MeshTable)
    data: DataTable = _table(DataTable, required=True)
    train: TrainTable = _table(TrainTable, required=True)
    optim: OptimTable = _table(OptimTable)
    checkpoint: CheckpointTable = _table(CheckpointTable)
    expect: ExpectTable = _table(ExpectTable)


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomRecipe(Recipe):
    """A command or function of your own, run on every host of whole slices."""

    job: CustomJobTable = _table(CustomJobTable)


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceRecipe(Recipe):
    """A task over every row of a dataset, each exactly once."""

    data: RowsTable = _table(RowsTable, required=True)
    model: SourceTable = _table(SourceTable)
    task: TaskTable = _table(TaskTable, required=True)
    prompt: PromptTable = _table(PromptTable)
    sampling: SamplingTable = _table(SamplingTable)
    output: OutputTable = _table(OutputTable, required=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingRecipe(Recipe):
    """A model behind an OpenAI-compatible endpoint, or several: ``models`` by their names, each with the tables that
    it shares with the others filled in."""

    slice: ServedSliceTable = _table(ServedSliceTable, required=True, sharing="default")
    model: ServedModelTable = _table(ServedModelTable, sharing="each")
    mesh: MeshTable = _table(MeshTable, sharing="default")
    serve: ServeTable = _table(ServeTable)
    engine: EngineTable = _table(EngineTable, sharing="default")
    models: dict[str, ServingRecipe] = field(
        default_factory=dict, metadata={FAMILY: {"name_key": "serve.name", "doc": _MODELS}}
    )


RECIPES: dict[JobKind, type] = {
    "train": TrainingRecipe,
    "custom": CustomRecipe,
    "infer": InferenceRecipe,
    "serve": ServingRecipe,
}
