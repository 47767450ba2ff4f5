"""From a row's conversation to the document that is packed, with the loss on its answers.

Apart from ``documents``, as it needs Jinja, which a cluster's image has to have only where conversations are learned.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tpuctl.errors import DataError
from tpuctl.plan.chat_schema import ChatPlan
from tpuctl.text.answers import ASSISTANT
from tpuctl.text.chat import Chat
from tpuctl.text.messages import what_is_wrong
from tpuctl.text.template import Conversation
from tpuctl.train.data.documents import Made
from tpuctl.train.data.packing import Document


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
    wrong = what_is_wrong(found)
    return found if wrong is None else _malformed(wrong)


def _malformed(detail: str) -> Made:
    return Made(document=None, fault="malformed", detail=detail)
