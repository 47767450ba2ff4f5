"""Rows as conversations to be answered: a column of messages, or what user and system say, from templates."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tpuctl.infer.arrays import to_objects
from tpuctl.infer.row_texts import filled
from tpuctl.plan.infer_schema import PromptPlan
from tpuctl.text.messages import what_is_wrong
from tpuctl.text.template import Conversation

Messages = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversations:
    """The conversations of the rows that are good, by number; the reason of each of the others."""

    found: dict[int, Conversation] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)


def conversations_of(rows: pa.Table, plan: PromptPlan) -> Conversations:
    """Each row's conversation.

    Raises:
        DataError: a column that isn't there.
    """
    turns, bad = _turns(rows, plan)
    system: dict[int, str] = {}
    if plan.system is not None:
        before = filled(rows, plan.system)
        system, bad = before.texts, {**before.bad, **bad}
    found = Conversations(bad=bad)
    for row, messages in turns.items():
        if row not in bad:
            first = [{"role": "system", "content": system[row]}] if row in system else []
            found.found[row] = Conversation(messages=[*first, *messages])
    return found


def _turns(rows: pa.Table, plan: PromptPlan) -> tuple[dict[int, Messages], dict[int, str]]:
    if plan.messages_column is not None:
        return _messages(rows, plan.messages_column)
    assert plan.user is not None, "plan.infer_task refuses a prompt of nothing"
    said = filled(rows, plan.user)
    return {row: [{"role": "user", "content": text}] for row, text in said.texts.items()}, said.bad


def _messages(rows: pa.Table, column: str) -> tuple[dict[int, Messages], dict[int, str]]:
    inputs = to_objects(rows, [column])
    turns, bad = dict[int, Messages](), dict(inputs.bad)
    for row, value in enumerate(inputs.arrays[column]):
        if row in bad:
            continue
        try:
            messages = _without_nulls(json.loads(value) if isinstance(value, str) else value)
        except (ValueError, RecursionError) as error:
            bad[row] = f"column {column!r} is no JSON: {error}"
            continue
        wrong = what_is_wrong(messages) if isinstance(messages, list) else f"expected a list, got {messages!r:.40}"
        if wrong or not messages:
            bad[row] = f"column {column!r}: {wrong or 'no messages'}"
        else:
            turns[row] = messages
    return turns, bad


def _without_nulls(value: Any) -> Any:
    """A struct's fields that this one doesn't have are null in Arrow; a template would take them for given."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None or key == "content"}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
