"""Conversations to token ids: prompts to answer, and whole ones to learn from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int32

from tpuctl.errors import DataError
from tpuctl.storage import NotFoundError, open_storage
from tpuctl.text.answers import Span, WholeText, answer_spans
from tpuctl.text.template import ChatTemplate, Conversation
from tpuctl.text.template_environment import Clock
from tpuctl.text.template_files import DEFAULT, choose_template, find_templates
from tpuctl.text.tokenizer import Parsed, Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedChat:
    """A whole conversation. ``is_answer`` marks the tokens that the model is to write."""

    ids: Int32[np.ndarray, " tokens"]
    num_bytes: Int32[np.ndarray, " tokens"]
    is_answer: Bool[np.ndarray, " tokens"]


# What a template that asks for the date is told where what is made must not depend on the day it is made.
TEMPLATE_DATE = datetime(2025, 1, 1)


class Chat:
    """A tokenizer with its chat template. The template writes all special tokens, so none is put around its text.

    Some models have a second template, ``with_tools``, for conversations in which there are tools.
    """

    def __init__(self, template: ChatTemplate, *, tokenizer: Tokenizer, with_tools: ChatTemplate | None = None) -> None:
        self.template = template
        self.tokenizer = tokenizer
        self.with_tools = with_tools or template

    def prompt(
        self, conversation: Conversation, *, continue_final_message: bool = False
    ) -> Int32[np.ndarray, " tokens"]:
        """The ids after which the model writes its answer, or goes on with the last message.

        Raises:
            ChatTemplateError: the template refuses the conversation.
        """
        rendered = self.template_for(conversation).render(
            conversation,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
        )
        return self.tokenizer.parse(rendered.text).ids

    def whole(self, conversation: Conversation) -> Parsed:
        """The ids of a whole conversation.

        Raises:
            ChatTemplateError: the template refuses the conversation.
        """
        return self.tokenizer.parse(self.template_for(conversation).render(conversation).text)

    def encode(self, conversation: Conversation) -> EncodedChat:
        """A whole conversation, with its answers marked.

        Raises:
            ChatTemplateError: the template refuses the conversation, or the answers in it can't be told apart.
        """
        template = self.template_for(conversation)
        rendered = template.render(conversation)
        parsed = self.tokenizer.parse(rendered.text)
        spans: Iterable[Span] = rendered.generated
        if not template.marks_generation:
            ends = parsed.spans[np.isin(parsed.ids, self.tokenizer.special.eos_ids)].tolist()
            whole = WholeText(text=rendered.text, ends=[(start, stop) for start, stop in ends])
            spans = answer_spans(template, conversation, whole)
        return EncodedChat(ids=parsed.ids, num_bytes=parsed.num_bytes, is_answer=_overlapping(parsed, spans))

    def template_for(self, conversation: Conversation) -> ChatTemplate:
        """The template that renders a conversation."""
        return self.template if conversation.tools is None else self.with_tools


def load_chat(
    tokenizer: Tokenizer, *, folder: Path | None, source: str | None = None, clock: Clock = datetime.now
) -> Chat:
    """The chat of a tokenizer: with the template of a source text, or else the one in the tokenizer's folder.

    Raises:
        DataError: there is no template, or it is none.
    """
    found = {} if folder is None else find_templates(folder)
    templates = found if source is None else {DEFAULT: source}
    plain, with_tools = (
        ChatTemplate(choose_template(templates, with_tools=tools), special_tokens=tokenizer.special.names, clock=clock)
        for tools in (False, True)
    )
    return Chat(plain, tokenizer=tokenizer, with_tools=with_tools)


def chat_of(tokenizer: Tokenizer, *, folder: Path | None, template: str | None) -> Chat:
    """The chat of a dataset's rows: with the template at a path or URI, or else the one in the tokenizer's folder.

    Raises:
        DataError: there is no template, or it is none.
        StorageError: it can't be read.
    """
    try:
        source = None if template is None else open_storage(template).read(template).data.decode()
    except NotFoundError as error:
        raise DataError(f"no chat template at {template}", hint="name its file in chat_template") from error
    return load_chat(tokenizer, folder=folder, source=source, clock=lambda: TEMPLATE_DATE)


def _overlapping(parsed: Parsed, spans: Iterable[Span]) -> Bool[np.ndarray, " tokens"]:
    """The tokens that any of the spans has a part of, as transformers marks them."""
    inside = np.zeros(len(parsed.ids), dtype=bool)
    starts, stops = parsed.spans[:, 0], parsed.spans[:, 1]
    for start, stop in spans:
        inside |= (stops > start) & (starts < stop)
    return inside
