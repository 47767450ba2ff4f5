"""Which part of a rendered conversation the model is to write: for loss masks.

A template with ``{% generation %}`` blocks says so itself. For the others, an answer is what a model would have to
generate: it begins where the prompt of the turns before it ends, and ends with the first token that ends an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpuctl.text.template import ChatTemplate, ChatTemplateError, Conversation

ASSISTANT = "assistant"

Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeText:
    """A rendered conversation: its text, and the spans in it of tokens that end an answer, in order."""

    text: str
    ends: Sequence[Span]


def answer_spans(template: ChatTemplate, conversation: Conversation, whole: WholeText) -> Iterator[Span]:
    """The answers' spans (characters) in the text of the whole conversation.

    Raises:
        ChatTemplateError: the template renders a turn differently once others follow, so that its place in the whole
            can't be told.
    """
    messages = conversation.messages
    answers = [number for number, message in enumerate(messages) if message.get("role") == ASSISTANT]
    starts = [_start(template, conversation, number, whole=whole) for number in answers]
    for number, start, following in zip(answers, starts, [*starts[1:], None], strict=True):
        turns = replace(conversation, messages=messages[: number + 1])
        text = whole.text if number == len(messages) - 1 else template.render(turns).text
        stop = _stop(text, whole=whole, start=start, following=following)
        if stop is None:
            raise _moved(number)
        yield start, stop


def _start(template: ChatTemplate, conversation: Conversation, number: int, *, whole: WholeText) -> int:
    if number == 0:
        raise ChatTemplateError("the conversation begins with an answer", hint="let a user or system turn precede it")
    before = replace(conversation, messages=conversation.messages[:number])
    prompt = template.render(before, add_generation_prompt=True).text
    start = _common(prompt, whole.text)
    # Some prompts open more than the turn, e.g. a thought that a finished turn no longer shows: the answer then begins
    # where the two part, as long as that is within the prompt.
    if start < len(prompt) and start < len(template.render(before).text):
        raise _moved(number)
    return start


def _stop(turns: str, *, whole: WholeText, start: int, following: int | None) -> int | None:
    """The answer's end, None where it can't be told. ``turns`` is the text up to it; ``following`` the next answer."""
    end = next((span for span in whole.ends if span[0] >= start), None)
    if whole.text.startswith(turns):
        return len(turns) if end is None or end[1] > len(turns) else end[1]
    # The turn reads differently when it is the last one. That an end token closes it will not have changed.
    if end is None or following is None or end[1] > following or whole.text[slice(*end)] not in turns[start:]:
        return None
    return end[1]


def _common(text: str, other: str) -> int:
    """How many characters the two begin with in common; by halves, as texts compare much faster than their letters."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _moved(number: int) -> ChatTemplateError:
    return ChatTemplateError(
        f"the chat template renders what precedes or follows message {number} differently in the whole conversation, "
        "so the answer in it can't be told apart",
        hint="name the token that closes a turn as eos_token or in generation_config.json, or mark answers in the "
        "template with {% generation %}",
    )
