"""The parts of a training job's plan: the text, the step, the optimizer, checkpoints, gates on the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tpuctl.plan.chat_schema import ChatPlan

RaggedRule = Literal["drop", "pad", "raise"]
ResumeRule = Literal["auto", "must", "never"]
ScheduleKind = Literal["constant", "linear", "cosine", "wsd"]
RematPolicy = Literal["none", "full", "dots", "attention"]
ComputeDtype = Literal["bfloat16", "float32"]
DataFormat = Literal["text", "chat"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPlan:
    """Which text, how it is cut into token rows. ``epochs`` 0 repeats for ever; ``chat`` None is plain text."""

    uri: str
    eval_uri: str | None
    text_column: str
    chat: ChatPlan | None
    tokenizer: str
    packing: bool
    ragged: RaggedRule
    epochs: int
    shuffle: bool
    seed: int
    readers_per_host: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimPlan:
    """AdamW and its learning-rate schedule; steps are optimizer steps."""

    learning_rate: float
    schedule: ScheduleKind
    warmup_steps: int
    decay_steps: int
    final_ratio: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPlan:
    """The training step and its cadence. ``global_batch`` counts sequences per optimizer step."""

    steps: int
    global_batch: int
    microbatches: int
    sequence_length: int
    seed: int
    compute_dtype: ComputeDtype
    remat: RematPolicy
    z_loss: float
    dropout: float
    log_every: int
    eval_every: int
    eval_batches: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """When to save, how many to keep, and what to do with what is there. ``every`` 0: only the final step."""

    every: int
    keep: int
    resume: ResumeRule


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectPlan:
    """Gates on the result; a missed one is exit code 4. ``None`` is no gate."""

    max_eval_loss: float | None
    max_bits_per_byte: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetPlan:
    """Estimated HBM per device, in bytes, and what the chip offers; ``trained`` of the ``parameters`` are."""

    parameters: int
    trained: int
    hbm_bytes: int
    state_bytes: int
    gradient_bytes: int
    activation_bytes: int
    logit_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Sum of all parts."""
        return self.state_bytes + self.gradient_bytes + self.activation_bytes + self.logit_bytes
