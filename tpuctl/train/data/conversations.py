"""From a row's conversation to the document that is packed, with the loss on its answers.

Apart from ``documents``, as it needs Jinja, which a cluster's image has to have only where conversations are learned.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tpuctl.errors import DataError
from tpuctl.plan.chat_schema import ChatPlan
from tpuctl.storage import NotFoundError, open_storage
from tpuctl.text import Tokenizer
from tpuctl.text.answers import ASSISTANT
from tpuctl.text.chat import Chat, load_chat
from tpuctl.text.template import Conversation
from tpuctl.train.data.documents import Made
from tpuctl.train.data.packing import Document

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
# A system prompt or a tool's result may be empty; a turn of these two without content is a hole in the data.
_SPEAKERS = frozenset({"user", ASSISTANT})

# What a template that asks for the date is told: a batch must not depend on the day it is made.
TEMPLATE_DATE = datetime(2025, 1, 1)


def chat_of(tokenizer: Tokenizer, *, folder: Path | None, template: str | None) -> Chat:
    """The chat of a stream: with the template at a path or URI, or else the one in the tokenizer's folder.

    Raises:
        DataError: there is no template, or it is none.
        StorageError: it can't be read.
    """
    try:
        source = None if template is None else open_storage(template).read(template).data.decode()
    except NotFoundError as error:
        raise DataError(f"no chat template at {template}", hint="set data.chat_template") from error
    return load_chat(tokenizer, folder=folder, source=source, clock=lambda: TEMPLATE_DATE)


class ChatDocuments:
    """Each row is a conversation. It stands as its template writes it, with no separator of ours."""

    whole = True

    def __init__(self, chat: Chat, *, rules: ChatPlan, sequence_length: int) -> None:
        self._chat = chat
        self._rules = rules
        self._longest = sequence_length

    def make(self, row: str | None) -> Made:
        """The conversation with the loss where the recipe wants it."""
        made = self._make(row)
        if made.fault in ("too long", "cut") and self._rules.too_long == "raise":
            raise DataError(made.detail, hint="raise train.sequence_length, or set data.too_long to truncate or drop")
        if made.fault in ("malformed", "unanswered", "unrendered") and self._rules.bad_rows == "raise":
            raise DataError(made.detail, hint="mend the row, or set data.bad_rows to skip")
        return made

    def _make(self, row: str | None) -> Made:
        messages = _messages(row)
        if not isinstance(messages, list):
            return messages
        learned = messages if self._rules.loss_on == "all" else _to_last_answer(messages)
        if not learned:
            return Made(document=None, fault="unanswered", detail="no turn of an assistant in the conversation")
        try:
            document = self._document(learned)
        except DataError as error:
            return Made(document=None, fault="unrendered", detail=error.message)
        if not document.loss_mask.any():
            return Made(document=None, fault="unanswered", detail="nothing to learn in the conversation")
        return self._fitted(document)

    def _document(self, messages: list[dict[str, Any]]) -> Document:
        conversation = Conversation(messages=messages)
        if self._rules.loss_on == "all":
            whole = self._chat.whole(conversation)
            ids, num_bytes, counts = whole.ids, whole.num_bytes, np.ones(len(whole.ids), np.int32)
        else:
            encoded = self._chat.encode(conversation)
            ids, num_bytes, counts = encoded.ids, encoded.num_bytes, encoded.is_answer.astype(np.int32)
        return Document(
            tokens=ids[:-1], targets=ids[1:], num_bytes=(num_bytes * counts)[1:].astype(np.int32), loss_mask=counts[1:]
        )

    def _fitted(self, document: Document) -> Made:
        if document.places <= self._longest:
            return Made(document=document)
        detail = f"a conversation of {document.places} tokens, and a row has {self._longest}"
        cut = document.first(self._longest)
        if self._rules.too_long == "drop" or not cut.loss_mask.any():
            return Made(document=None, fault="too long", detail=detail)
        return Made(document=cut, fault="cut", detail=detail)


def _to_last_answer(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation up to its last answer: what follows that has nothing to learn."""
    answers = [number for number, message in enumerate(messages) if message["role"] == ASSISTANT]
    return messages[: answers[-1] + 1] if answers else []


def _messages(row: str | None) -> list[dict[str, Any]] | Made:
    """The row's messages, or what is wrong with it."""
    if not row:
        return Made(document=None, fault="empty")
    try:
        found = json.loads(row)
    except (ValueError, RecursionError) as error:
        return _malformed(f"not JSON: {error}")
    if not isinstance(found, list):
        return _malformed(f"a {type(found).__name__}, expected a list of messages")
    if not found:
        return Made(document=None, fault="empty")
    wrong = next((text for number, message in enumerate(found) if (text := _wrong(message, number))), None)
    return found if wrong is None else _malformed(wrong)


def _wrong(message: Any, number: int) -> str | None:
    if not isinstance(message, dict):
        return f"message {number} is a {type(message).__name__}, expected an object with role and content"
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        known = ", ".join(sorted(ROLES))
        return f"message {number} has the role {role!r}; roles are {known}"
    if content is not None and not isinstance(content, str | list):
        return f"message {number} has content of type {type(content).__name__}, expected text"
    if role in _SPEAKERS and not content and not message.get("tool_calls"):
        return f"message {number} ({role}) has no content"
    return None


def _malformed(detail: str) -> Made:
    return Made(document=None, fault="malformed", detail=detail)
