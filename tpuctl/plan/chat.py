"""Conversations as training data: which columns hold them, and the rules between the keys that say so."""

from __future__ import annotations

from tpuctl.plan.chat_schema import ChatPlan
from tpuctl.plan.here import Here
from tpuctl.plan.tokenizer import has_chat_template
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.schema import TrainingRecipe

BUILTIN_CHATS = ("builtin:python-help",)
"""The built-in datasets that are conversations."""

_MESSAGES = "messages"
_OF_CHAT = ("messages_column", "prompt_column", "answer_column", "chat_template")


def plan_chat(recipe: TrainingRecipe, *, tokenizer: str, here: Here, findings: Findings) -> ChatPlan | None:
    """How the conversations of a recipe are learned, None for plain text."""
    data = recipe.data
    if data.format == "text":
        if data.uri in BUILTIN_CHATS:
            findings.refuse("data.format", f"{data.uri} holds conversations", 'set data.format = "chat"')
        _refuse_chat_keys(recipe, findings)
        return None
    if data.uri.startswith("builtin:") and data.uri not in BUILTIN_CHATS:
        hint = f"name a dataset in data.uri, or {', '.join(BUILTIN_CHATS)}"
        findings.refuse("data.format", f"{data.uri} holds no conversations", hint)
    if data.chat_template is None and not has_chat_template(tokenizer):
        hint = "name a tokenizer in a folder that has one, or set data.chat_template"
        findings.refuse("data.tokenizer", f"tokenizer {tokenizer!r} has no chat template", hint)
    pair = _has_pair(recipe, findings)
    return ChatPlan(
        messages_column=None if pair else data.messages_column or _MESSAGES,
        prompt_column=data.prompt_column if pair else None,
        answer_column=data.answer_column if pair else None,
        template=_template(data.chat_template, here=here, findings=findings),
        loss_on=data.loss_on or "answers",
        too_long=data.too_long,
        bad_rows=data.bad_rows,
    )


def _template(path: str | None, *, here: Here, findings: Findings) -> str | None:
    if path is None or path.startswith("gs://"):
        return path
    if "://" in path:
        findings.refuse("data.chat_template", f"{path!r} can't be used here", "write a local path or gs://bucket/path")
    return here.absolute(path)


def _refuse_chat_keys(recipe: TrainingRecipe, findings: Findings) -> None:
    for key in _OF_CHAT:
        if getattr(recipe.data, key) is not None:
            findings.refuse(f"data.{key}", "only conversations have it", 'set data.format = "chat", or leave it out')
    if recipe.data.loss_on == "answers":
        hint = 'set data.format = "chat", or leave it out'
        findings.refuse("data.loss_on", "plain text has no answers", hint)


def _has_pair(recipe: TrainingRecipe, findings: Findings) -> bool:
    data = recipe.data
    named = [key for key in ("prompt_column", "answer_column") if getattr(data, key) is not None]
    if len(named) == 1:
        other = "answer_column" if named[0] == "prompt_column" else "prompt_column"
        findings.refuse(f"data.{named[0]}", f"it goes with data.{other}", f"set data.{other}, too")
    elif named and data.messages_column is not None:
        hint = "leave out the one or the other"
        findings.refuse("data.messages_column", "conversations are in one column or in a pair of them", hint)
    return len(named) == 2
