"""The part of a plan that says how conversations are learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LossRule = Literal["all", "answers"]
LengthRule = Literal["truncate", "drop", "raise"]
RowRule = Literal["skip", "raise"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatPlan:
    """Where a row keeps its conversation, and how it is learned: one column of messages, or prompts and answers.

    ``template`` is the path of a chat template; None takes the one in the tokenizer's folder.
    """

    messages_column: str | None
    prompt_column: str | None
    answer_column: str | None
    template: str | None
    loss_on: LossRule
    too_long: LengthRule
    bad_rows: RowRule
