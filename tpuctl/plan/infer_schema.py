"""The parts of a plan that only batch inference has: which rows, what is done with them, where they go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpuctl.plan.weights_schema import KvDtype, QuantisedDtype

TaskKind = Literal["custom", "generate", "score", "classify", "embed"]
OutputMode = Literal["resume", "error", "overwrite", "append"]
BadRowRule = Literal["quarantine", "fail"]
RaggedEnd = Literal["pad", "drop", "raise"]
ReplicaPlace = Literal["host", "slice"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InferDataPlan:
    """Which rows. ``columns`` are carried to the output, all of them if empty; ``limit`` is the first so many rows."""

    uri: str
    columns: tuple[str, ...]
    limit: int | None


PoolingKind = Literal["mean", "first"]
InferDtype = Literal["bfloat16", "float32"]
TooLongRule = Literal["quarantine", "truncate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePlan:
    """The model: a folder in Hugging Face's form, or a ``builtin:`` one; ``parameters`` where its config tells."""

    uri: str
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptPlan:
    """Of what a row's prompt is made: one of ``text``, ``messages_column`` and ``user`` is there.

    ``text``, ``user`` and ``system`` are templates over columns. The last three make a conversation, rendered by the
    chat template at a place, or the model folder's where that is None.
    """

    text: str | None
    messages_column: str | None
    user: str | None
    system: str | None
    chat_template: str | None


SAMPLING_COLUMNS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "json_schema",
)
"""Parameters of ``SamplingPlan`` that a row may have itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingPlan:
    """How answers are drawn. ``columns`` names, by parameter, the column or ``column.field`` with a row's own."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    n: int
    stop: tuple[str, ...]
    json_schema: str | None
    columns: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskPlan:
    """What is done with a row.

    ``function`` is ``module:function``, its module a file below ``directory`` or known to the cluster. ``inputs`` are
    the columns it gets, all that can be arrays if empty. Every batch it sees has ``batch_rows`` rows. The other fields
    are of tasks on text: ``text_column`` and what follows; ``max_length`` in tokens, ``None`` for the model's own.
    ``text_column`` is None where ``prompt`` says of what the text is made. ``sampling`` is a generate task's alone.
    ``weights`` is what a decoder's matrices are quantised to, ``kv_dtype`` what its KV pages are kept in; ``None`` for
    ``dtype``. ``speculate`` is how many draft tokens a row of a generate task may have in a step.
    """

    kind: TaskKind
    function: str | None
    directory: str | None
    inputs: tuple[str, ...]
    batch_rows: int
    ragged: RaggedEnd
    text_column: str | None
    max_length: int | None
    too_long: TooLongRule
    choices: tuple[str, ...]
    choices_column: str | None
    dtype: InferDtype
    weights: QuantisedDtype | None
    speculate: int
    kv_dtype: KvDtype | None
    pooling: PoolingKind
    normalise: bool
    prompt: PromptPlan | None
    sampling: SamplingPlan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaPlan:
    """A language model on each host or over each slice: split over ``tensor`` devices, pages of ``page_size`` tokens.

    A step has at least ``min_step_tokens``, and as a multiple of them divides over the devices.
    """

    per: ReplicaPlace
    tensor: int
    page_size: int
    num_pages: int
    min_step_tokens: int
    max_step_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPlan:
    """Where rows go. ``rows_per_part`` is the most a part holds; ``max_quarantine`` is ``"100"`` rows or ``"1%"``."""

    uri: str
    mode: OutputMode
    rows_per_part: int
    bad_rows: BadRowRule
    max_quarantine: str
