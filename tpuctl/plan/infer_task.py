"""The task of a batch inference recipe made a part of the plan: which keys go together, of what a prompt is made."""

from __future__ import annotations

import json
from dataclasses import asdict

from tpuctl.plan.here import Here
from tpuctl.plan.infer_schema import SAMPLING_COLUMNS, PromptPlan, SamplingPlan, TaskPlan
from tpuctl.plan.places import storage_place
from tpuctl.plan.row_template import columns
from tpuctl.recipe.origin import Findings
from tpuctl.recipe.prompting import PromptTable, SamplingTable
from tpuctl.recipe.schema import InferenceRecipe

_LANGUAGE = ("generate", "score", "classify")
_TEMPLATES = ("text", "user", "system")


def plan_task(recipe: InferenceRecipe, *, here: Here, findings: Findings) -> TaskPlan:
    """What is done with each row; what is wrong with it goes into ``findings``."""
    task = recipe.task
    custom = task.kind == "custom"
    _check_function(recipe, findings)
    _check_choices(recipe, findings)
    if task.weights is not None and task.kind not in _LANGUAGE:
        findings.refuse("task.weights", f"a task of kind {task.kind!r} has no decoder to quantise", "leave it out")
    if task.speculate and task.kind != "generate":
        findings.refuse("task.speculate", f"a task of kind {task.kind!r} makes no tokens", "leave it out")
    if task.kv_dtype is not None and task.kind not in _LANGUAGE:
        findings.refuse("task.kv_dtype", f"a task of kind {task.kind!r} has no KV pages", "leave it out")
    if task.replica == "slice" and task.kind not in _LANGUAGE:
        message = f"a task of kind {task.kind!r} runs on each host by itself"
        findings.refuse("task.replica", message, "leave it out")
    prompt = _prompt(recipe, here=here, findings=findings)
    plan = TaskPlan(
        kind=task.kind,
        function=task.function,
        directory=here.absolute(".") if custom else None,
        inputs=task.inputs,
        batch_rows=task.batch_rows,
        ragged=task.ragged,
        text_column=None if custom or prompt else task.text_column,
        max_length=task.max_length,
        too_long=task.too_long,
        choices=task.choices,
        choices_column=task.choices_column,
        dtype=task.dtype,
        weights=task.weights,
        speculate=task.speculate,
        kv_dtype=task.kv_dtype,
        pooling=task.pooling,
        normalise=task.normalise,
        prompt=prompt,
        sampling=_sampling(recipe, findings),
    )
    check_room(plan, findings)
    return plan


def check_room(task: TaskPlan, findings: Findings) -> None:
    """Refuse answers so long that no prompt fits before them, once it is settled how long both may be."""
    if task.sampling is None or task.max_length is None or task.sampling.max_tokens < task.max_length:
        return
    message = f"{task.sampling.max_tokens} tokens of {task.max_length} leave no room for a prompt"
    findings.refuse("sampling.max_tokens", message, f"use less than {task.max_length}, or raise task.max_length")


def _check_function(recipe: InferenceRecipe, findings: Findings) -> None:
    task = recipe.task
    if task.kind == "custom" and task.function is None:
        findings.refuse("task.function", "missing: a custom task is a function", 'add function = "module:function"')
    if task.kind != "custom" and task.function is not None:
        findings.refuse(
            "task.function", f"a task of kind {task.kind!r} has no function", 'leave it out, or kind = "custom"'
        )


def _check_choices(recipe: InferenceRecipe, findings: Findings) -> None:
    task = recipe.task
    given = [key for key in ("choices", "choices_column") if getattr(task, key)]
    if task.kind == "classify" and not given:
        hint = 'add choices = [" yes", " no"], or choices_column'
        findings.refuse("task.choices", "missing: there is nothing to choose from", hint)
    if given and task.kind not in ("classify", "score"):
        hint = "choices belong to classify and score"
        findings.refuse(f"task.{given[0]}", f"{task.kind!r} has no choices", hint)
    if len(given) == 2:
        findings.refuse("task.choices_column", "choices are the recipe's or each row's own", "leave one of them out")
    if len(set(task.choices)) < len(task.choices):
        twice = next(choice for choice in task.choices if task.choices.count(choice) > 1)
        findings.refuse("task.choices", f"{twice!r} is there twice", "name every choice once")


def _prompt(recipe: InferenceRecipe, *, here: Here, findings: Findings) -> PromptPlan | None:
    table, kind = recipe.prompt, recipe.task.kind
    if table == PromptTable():
        return None
    if kind not in _LANGUAGE:
        findings.refuse("prompt", f"a task of kind {kind!r} has no prompts", "leave the table out")
        return None
    given = [key for key in ("text", "messages_column", "user") if getattr(table, key) is not None]
    if len(given) != 1:
        message = f"{' and '.join(given)} go against each other" if given else "missing: the prompt itself"
        findings.refuse("prompt", message, "give one of text, messages_column and user")
    elif given == ["text"] and (table.system is not None or table.chat_template is not None):
        key = "system" if table.system is not None else "chat_template"
        findings.refuse(f"prompt.{key}", "a plain text is no conversation", "write user instead of text")
    elif given != ["text"] and recipe.task.too_long == "truncate":
        message = "a conversation can't be cut: its roles would go with its start"
        findings.refuse("task.too_long", message, 'leave it at "quarantine"')
    _check_templates(table, findings)
    return PromptPlan(
        text=table.text,
        messages_column=table.messages_column,
        user=table.user,
        system=table.system,
        chat_template=_template(table.chat_template, here=here, findings=findings),
    )


def _check_templates(table: PromptTable, findings: Findings) -> None:
    for key in _TEMPLATES:
        try:
            named = columns(getattr(table, key) or "")
        except ValueError as error:
            findings.refuse(f"prompt.{key}", str(error), "a template is text with columns in braces: {title}")
            continue
        if getattr(table, key) is not None and not named and key != "system":
            findings.refuse(f"prompt.{key}", "it names no column: all rows would be alike", "add one, e.g. {text}")


def _template(path: str | None, *, here: Here, findings: Findings) -> str | None:
    return None if path is None else storage_place("prompt.chat_template", path, here=here, findings=findings)


def _sampling(recipe: InferenceRecipe, findings: Findings) -> SamplingPlan | None:
    table, kind = recipe.sampling, recipe.task.kind
    if kind != "generate":
        if table != SamplingTable():
            findings.notes.append(f"sampling is not used: a task of kind {kind!r} draws no tokens")
        return None
    _check_schema(table, findings)
    for parameter in table.columns:
        if parameter not in SAMPLING_COLUMNS:
            hint = f"a row may have its own {', '.join(SAMPLING_COLUMNS)}"
            findings.refuse("sampling.columns", f"{parameter!r} can't differ from row to row", hint)
    return SamplingPlan(**asdict(table))


def _check_schema(table: SamplingTable, findings: Findings) -> None:
    if table.json_schema is None:
        return
    try:
        found = json.loads(table.json_schema)
    except (ValueError, RecursionError) as error:
        findings.refuse("sampling.json_schema", f"no JSON: {error}", "put the schema itself between ''' and '''")
        return
    if not isinstance(found, dict):
        message = f"a JSON schema is an object, this is {type(found).__name__}"
        findings.refuse("sampling.json_schema", message, 'for example {"type": "object"}')
