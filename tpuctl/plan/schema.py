"""The Plan: every default filled in, the only thing that crosses from the control side to the cluster.

JSON both ways and strict both ways: an unknown or missing field is an error, since a plan written by one
version of tpuctl must never be half understood by another. Shared by both sides, so it imports neither.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from tpuctl.modelspec import ModelSpec
from tpuctl.plan.custom_schema import WorkPlan
from tpuctl.plan.decode import PlanFormatError, decode
from tpuctl.plan.infer_schema import InferDataPlan, OutputPlan, ReplicaPlan, SourcePlan, TaskPlan
from tpuctl.plan.serve_schema import AddressPlan, EncoderPlan, EndpointPlan, EnginePlan, ServedCheckpointPlan, TextPlan
from tpuctl.plan.train_schema import BudgetPlan, CheckpointPlan, DataPlan, ExpectPlan, OptimPlan, TrainPlan
from tpuctl.plan.weights_schema import LoraPlan, ServedAdapterPlan, WeightsPlan

PLAN_SCHEMA = "tpuctl.plan/1"

JobKind = Literal["train", "custom", "infer", "serve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlicePlan:
    """The slices a job reserves whole. ``hosts`` and ``chips`` are per slice."""

    generation: str
    accelerator_type: str
    pod_type: str
    topology: str
    machine: str
    slices: int
    hosts: int
    chips: int
    chips_per_host: int
    devices_per_chip: int

    @property
    def total_hosts(self) -> int:
        """Hosts (JAX processes) over all slices."""
        return self.hosts * self.slices

    @property
    def devices_per_host(self) -> int:
        """JAX devices that one process sees."""
        return self.chips_per_host * self.devices_per_chip

    @property
    def total_devices(self) -> int:
        """JAX devices over all slices."""
        return self.total_hosts * self.devices_per_host


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshPlan:
    """Length of each mesh axis; their product is the number of devices. ``slice`` lies over DCN."""

    slice: int
    data: int
    fsdp: int
    expert: int
    tensor: int

    @property
    def batch_shards(self) -> int:
        """Shards of the global batch: every axis but ``tensor``."""
        return self.slice * self.data * self.fsdp * self.expert


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """The run: one directory (an absolute path). ``shared`` vouches for a local path seen by all hosts."""

    name: str
    directory: str
    shared: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlan:
    """How the job is run. ``env`` goes to every process; ``secrets`` too, but is masked wherever we print.

    ``compile_cache`` None is the cache of the host's environment, else a folder in the run directory.
    """

    env: dict[str, str]
    secrets: dict[str, str]
    pip: tuple[str, ...]
    compile_cache: str | None
    max_failures: int
    timeout_seconds: float | None
    start_timeout_seconds: float
    stop_grace_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One job, wholly decided: what jobs of every kind have."""

    kind: JobKind
    entrypoint: str
    tpuctl_version: str
    run: RunPlan
    job: JobPlan
    notes: tuple[str, ...] = field(default=())

    @property
    def reserves(self) -> dict[str, SlicePlan]:
        """All slices that the job needs at once, by what needs them; under no name where all of it does."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformPlan(Plan):
    """A job whose slices are all of one shape."""

    slice: SlicePlan

    @property
    def reserves(self) -> dict[str, SlicePlan]:
        """The slices, under no name."""
        return {"": self.slice}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan(UniformPlan):
    """A training run."""

    mesh: MeshPlan
    model: ModelSpec
    weights: WeightsPlan | None
    lora: LoraPlan | None
    data: DataPlan
    optim: OptimPlan
    train: TrainPlan
    checkpoint: CheckpointPlan
    expect: ExpectPlan
    budget: BudgetPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomPlan(UniformPlan):
    """A command or function of the user's own, on every host of whole slices."""

    work: WorkPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class InferencePlan(UniformPlan):
    """Batch inference: the rows of a dataset through a task, into a folder of parts.

    ``replica`` is there once the folder of a language model has been looked at.
    """

    data: InferDataPlan
    model: SourcePlan | None
    task: TaskPlan
    replica: ReplicaPlan | None
    output: OutputPlan

    @property
    def per_slice(self) -> bool:
        """Whether a replica has all hosts of a slice; otherwise each host is one."""
        return self.replica is not None and self.replica.per == "slice"

    @property
    def replicas(self) -> int:
        """How many there are, over all slices."""
        return self.slice.slices if self.per_slice else self.slice.total_hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingPlan(UniformPlan):
    """An endpoint: a model behind OpenAI's API. Without ``weights`` and ``checkpoint`` they are drawn from
    ``engine.seed``.

    ``handover`` is the config of Ray Serve LLM, as JSON, where vLLM serves the model; None where we do.
    """

    mesh: MeshPlan
    model: ModelSpec
    weights: WeightsPlan | None
    checkpoint: ServedCheckpointPlan | None
    adapters: tuple[ServedAdapterPlan, ...]
    text: TextPlan
    engine: EnginePlan
    endpoint: EndpointPlan
    handover: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingPlan(UniformPlan):
    """An endpoint of an encoder: texts to vectors behind OpenAI's API."""

    encoder: EncoderPlan
    endpoint: EndpointPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModelPlan:
    """One of several models behind one address: what is its own of a ``ServingPlan`` and of its ``EndpointPlan``."""

    name: str
    slice: SlicePlan
    mesh: MeshPlan
    model: ModelSpec
    weights: WeightsPlan | None
    checkpoint: ServedCheckpointPlan | None
    adapters: tuple[ServedAdapterPlan, ...]
    text: TextPlan
    engine: EnginePlan
    max_waiting: int
    min_replicas: int
    max_replicas: int
    idle_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelsPlan(Plan):
    """Several models behind one address, each on slices of its own."""

    address: AddressPlan
    models: tuple[ServedModelPlan, ...]

    @property
    def reserves(self) -> dict[str, SlicePlan]:
        """The slices of each model, under its name."""
        return {model.name: model.slice for model in self.models}

    def plan_of(self, model: ServedModelPlan) -> ServingPlan:
        """The plan of one of the models, as if it were served alone."""
        own = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
        in_endpoint = {field.name for field in dataclasses.fields(EndpointPlan)}
        endpoint = EndpointPlan(
            **{field.name: getattr(self.address, field.name) for field in dataclasses.fields(AddressPlan)},
            **{name: value for name, value in own.items() if name in in_endpoint},
        )
        return ServingPlan(
            kind=self.kind,
            entrypoint=self.entrypoint,
            tpuctl_version=self.tpuctl_version,
            run=self.run,
            job=self.job,
            endpoint=endpoint,
            handover=None,
            **{name: value for name, value in own.items() if name not in in_endpoint},
        )


PLANS: dict[JobKind, type[Plan]] = {
    "train": TrainingPlan,
    "custom": CustomPlan,
    "infer": InferencePlan,
    "serve": ServingPlan,
}


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-ready data, with its ``schema`` first."""
    return {"schema": PLAN_SCHEMA, **dataclasses.asdict(plan)}


def plan_from_json(document: dict[str, Any]) -> Plan:
    """The plan a document holds.

    Raises:
        PlanFormatError: another schema, an unknown or missing field, or a value of the wrong type.
    """
    if document.get("schema") != PLAN_SCHEMA:
        raise PlanFormatError(f"schema: expected {PLAN_SCHEMA!r}, got {document.get('schema')!r}")
    fields = {key: value for key, value in document.items() if key != "schema"}
    if fields.get("kind") not in PLANS:
        raise PlanFormatError(f"plan.kind: expected one of {tuple(PLANS)}, got {fields.get('kind')!r}")
    special = {"encoder": EmbeddingPlan, "models": ModelsPlan}
    kind = next((special[name] for name in special if name in fields), PLANS[fields["kind"]])
    plan: Plan = decode(kind, fields, "plan")
    return plan


def plan_dumps(plan: Plan) -> str:
    """The plan as indented JSON text."""
    return json.dumps(plan_to_json(plan), indent=2) + "\n"


def plan_loads(text: str) -> Plan:
    """The plan that JSON text holds; raises ``PlanFormatError`` as ``plan_from_json`` does."""
    return plan_from_json(json.loads(text))
