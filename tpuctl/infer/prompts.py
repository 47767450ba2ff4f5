"""The prompts of rows as token ids: of a column, a template or a conversation; one that can't be is a bad row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tpuctl.errors import DataError
from tpuctl.infer.conversations import Conversations, conversations_of
from tpuctl.infer.row_texts import RowTexts, filled, texts_of
from tpuctl.plan.infer_schema import TaskPlan
from tpuctl.text import Tokenizer
from tpuctl.text.chat import Chat


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The token ids of the rows that are good, by number; the reason of each of the others."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)


def read_prompts(tokenizer: Tokenizer, texts: Mapping[int, str]) -> Prompts:
    """The ids of texts by number; bad is one that has a token which the model has no row for."""
    try:
        encoded = tokenizer.encode_prompts(list(texts.values()))
    except DataError:
        return _one_by_one(tokenizer, texts)
    return Prompts(ids={row: ids.tolist() for row, ids in zip(texts, encoded, strict=True)})


def prompts_of(rows: pa.Table, plan: TaskPlan, *, tokenizer: Tokenizer, chat: Chat | None, whole: bool) -> Prompts:
    """Each row's prompt; a conversation's is ready to be answered, or it is taken as a ``whole``.

    Raises:
        DataError: a column that isn't there.
    """
    prompt = plan.prompt
    if prompt is None or prompt.text is not None:
        texts = _plain(rows, plan)
        read = read_prompts(tokenizer, texts.texts)
        return Prompts(ids=read.ids, bad={**texts.bad, **read.bad})
    assert chat is not None, "the task of a plan with conversations is made with one"
    return _rendered(conversations_of(rows, prompt), chat, whole=whole)


def fitted(prompts: Prompts, *, room: Mapping[int, int], max_length: int, truncate: bool) -> Prompts:
    """Those prompts that leave room for so many more tokens, and why not the others; cut at their start if wanted."""
    ids, bad = dict[int, list[int]](), dict(prompts.bad)
    for row, found in prompts.ids.items():
        limit = max_length - room[row]
        if not found:
            bad[row] = "the prompt has no tokens"
        elif limit < 1:
            bad[row] = f"{room[row]} tokens to come leave no room for a prompt in {max_length}"
        elif len(found) > limit and not truncate:
            bad[row] = f"{len(found)} tokens are more than {limit}"
        else:
            ids[row] = found[-limit:]
    return Prompts(ids=ids, bad=bad)


def _plain(rows: pa.Table, plan: TaskPlan) -> RowTexts:
    if plan.prompt is not None and plan.prompt.text is not None:
        return filled(rows, plan.prompt.text)
    assert plan.text_column is not None, "plan.infer_task fills it in"
    return texts_of(rows, plan.text_column)


def _rendered(conversations: Conversations, chat: Chat, *, whole: bool) -> Prompts:
    read = Prompts(bad=dict(conversations.bad))
    for row, conversation in conversations.found.items():
        try:
            ids = chat.whole(conversation).ids if whole else chat.prompt(conversation)
        except DataError as error:
            read.bad[row] = error.message
        else:
            read.ids[row] = ids.tolist()
    return read


def _one_by_one(tokenizer: Tokenizer, texts: Mapping[int, str]) -> Prompts:
    read = Prompts()
    for row, text in texts.items():
        try:
            read.ids[row] = tokenizer.encode_prompt(text).tolist()
        except DataError as error:
            read.bad[row] = error.message
    return read
