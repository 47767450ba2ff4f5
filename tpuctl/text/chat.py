"""Conversations to token ids: prompts to answer, and whole ones to learn from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int32

from tpuctl.errors import DataError
from tpuctl.text.answers import Span, WholeText, answer_spans
from tpuctl.text.template import ChatTemplate, Conversation
from tpuctl.text.template_environment import Clock
from tpuctl.text.template_files import choose_template, find_templates
from tpuctl.text.tokenizer import Parsed, Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedChat:
    """A whole conversation. ``is_answer`` marks the tokens that the model is to write."""

    ids: Int32[np.ndarray, " tokens"]
    num_bytes: Int32[np.ndarray, " tokens"]
    is_answer: Bool[np.ndarray, " tokens"]


class Chat:
    """A tokenizer with its chat template. The template writes all special tokens, so none is put around its text."""

    def __init__(self, template: ChatTemplate, *, tokenizer: Tokenizer) -> None:
        self.template = template
        self.tokenizer = tokenizer

    def prompt(
        self, conversation: Conversation, *, continue_final_message: bool = False
    ) -> Int32[np.ndarray, " tokens"]:
        """The ids after which the model writes its answer, or goes on with the last message.

        Raises:
            ChatTemplateError: the template refuses the conversation.
        """
        rendered = self.template.render(
            conversation,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
        )
        return self.tokenizer.parse(rendered.text).ids

    def encode(self, conversation: Conversation) -> EncodedChat:
        """A whole conversation, with its answers marked.

        Raises:
            ChatTemplateError: the template refuses the conversation, or the answers in it can't be told apart.
        """
        rendered = self.template.render(conversation)
        parsed = self.tokenizer.parse(rendered.text)
        spans: Iterable[Span] = rendered.generated
        if not self.template.marks_generation:
            ends = parsed.spans[np.isin(parsed.ids, self.tokenizer.special.eos_ids)].tolist()
            whole = WholeText(text=rendered.text, ends=[(start, stop) for start, stop in ends])
            spans = answer_spans(self.template, conversation, whole)
        return EncodedChat(ids=parsed.ids, num_bytes=parsed.num_bytes, is_answer=_overlapping(parsed, spans))


def load_chat(
    tokenizer: Tokenizer, *, folder: Path | None, template_path: Path | None = None, clock: Clock = datetime.now
) -> Chat:
    """The chat of a tokenizer: with the template at ``template_path``, or else the one in the tokenizer's folder.

    Raises:
        DataError: there is no template, or it is none.
    """
    if template_path is not None:
        if not template_path.is_file():
            raise DataError(f"no chat template at {template_path}", hint="data.chat_template is the path of a file")
        source = template_path.read_text(encoding="utf-8")
    else:
        source = choose_template({} if folder is None else find_templates(folder))
    return Chat(ChatTemplate(source, special_tokens=tokenizer.special.names, clock=clock), tokenizer=tokenizer)


def _overlapping(parsed: Parsed, spans: Iterable[Span]) -> Bool[np.ndarray, " tokens"]:
    """The tokens that any of the spans has a part of, as transformers marks them."""
    inside = np.zeros(len(parsed.ids), dtype=bool)
    starts, stops = parsed.spans[:, 0], parsed.spans[:, 1]
    for start, stop in spans:
        inside |= (stops > start) & (starts < stop)
    return inside
