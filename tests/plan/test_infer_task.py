"""What a recipe of batch inference may say together: prompts, sampling, choices; and how a model lies on a host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tpuctl.errors import RecipeError
from tpuctl.modelspec import PRESETS, ModelSpec
from tpuctl.plan.infer_replica import plan_replica
from tpuctl.plan.resolve import resolve
from tpuctl.plan.row_template import columns, parts
from tpuctl.plan.schema import InferencePlan, plan_dumps, plan_loads
from tpuctl.recipe.load import Source, build_recipe
from tpuctl.recipe.origin import Findings, Origin

RECIPE: dict[str, Any] = {
    "kind": "infer",
    "run": {"name": "x"},
    "slice": {"accelerator": "v6e", "topology": "2x2"},
    "data": {"uri": "in"},
    "model": {"source": "builtin:smollm2-135m"},
    "task": {"kind": "generate"},
    "output": {"uri": "out"},
}


def planned(*overrides: str, **tables: dict[str, Any]) -> InferencePlan:
    recipe = build_recipe(Source(file="r.toml", values=RECIPE | tables, lines={}), overrides=overrides)
    plan = resolve(recipe, environ={}, cwd="/work", source=None)
    assert isinstance(plan, InferencePlan)
    return plan


def test_prompt_and_sampling_are_in_the_plan_and_survive_json() -> None:
    plan = planned(
        prompt={"user": "Sum\n{a}", "system": "Be {b}", "chat_template": "own.jinja"},
        sampling={"n": 2, "stop": ["\n\n"], "json_schema": "{}", "columns": {"seed": "how.seed"}},
    )
    assert plan_loads(plan_dumps(plan)) == plan
    assert plan.task.text_column is None
    assert plan.task.prompt is not None
    assert plan.task.prompt.chat_template == "/work/own.jinja"
    assert plan.task.sampling is not None
    assert (plan.task.sampling.n, plan.task.sampling.columns) == (2, {"seed": "how.seed"})
    scored = planned(task={"kind": "score"}, sampling={"n": 2})
    assert scored.task.sampling is None
    assert scored.notes == ("sampling is not used: a task of kind 'score' draws no tokens",)


@pytest.mark.parametrize(
    ("tables", "key", "words"),
    [
        ({"prompt": {"system": "s"}}, "prompt", "missing: the prompt itself"),
        ({"prompt": {"text": "{a}", "user": "{a}"}}, "prompt", "text and user go against each other"),
        ({"prompt": {"text": "{a}", "system": "s"}}, "prompt.system", "no conversation"),
        ({"prompt": {"text": "hello"}}, "prompt.text", "names no column"),
        ({"prompt": {"user": "{a"}}, "prompt.user", "expected '}'"),
        ({"prompt": {"user": "{}"}}, "prompt.user", "names no column"),
        ({"prompt": {"user": "{a:3}"}}, "prompt.user", "more than a column's name"),
        ({"prompt": {"user": "{a}"}, "task": {"kind": "generate", "too_long": "truncate"}}, "task.too_long", "be cut"),
        ({"prompt": {"user": "{a}"}, "task": {"kind": "embed"}}, "prompt", "'embed' has no prompts"),
        ({"sampling": {"json_schema": "{"}}, "sampling.json_schema", "no JSON"),
        ({"sampling": {"json_schema": "[]"}}, "sampling.json_schema", "this is list"),
        ({"sampling": {"columns": {"n": "a"}}}, "sampling.columns", "'n' can't differ"),
        ({"task": {"kind": "generate", "choices_column": "c"}}, "task.choices_column", "'generate' has no choices"),
        ({"task": {"kind": "custom", "function": "m:f", "weights": "int8"}}, "task.weights", "no decoder to quantise"),
        ({"task": {"kind": "score", "speculate": 4}}, "task.speculate", "makes no tokens"),
        ({"task": {"kind": "embed", "kv_dtype": "fp8"}}, "task.kv_dtype", "no KV pages"),
        ({"task": {"kind": "embed", "replica": "slice"}}, "task.replica", "on each host by itself"),
        ({"task": {"kind": "classify"}}, "task.choices", "nothing to choose from"),
        ({"task": {"kind": "score", "choices": ["a"], "choices_column": "c"}}, "task.choices_column", "each row's own"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(tables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        planned(**tables)
    assert key in [part.where.key for part in caught.value.parts] or caught.value.where.key == key


def test_template_is_text_and_columns_in_turns() -> None:
    assert parts("{{x}} {a b}!{c.d}") == (("{", None), ("x}", None), (" ", "a b"), ("!", "c.d"))
    assert columns("{a}{b}{a}") == ("a", "b")


def replica(model: ModelSpec, *, topology: str = "2x2", per: Any = None, **task: Any) -> tuple[Any, Findings]:
    plan = planned(slice={"accelerator": "v6e", "topology": topology})
    findings = Findings(origin=Origin(file="r.toml"))
    filled = replace(plan.task, **{"max_length": 2048, **task})
    return plan_replica(model, filled, plan.slice, per=per, findings=findings), findings


def test_replica_has_all_chips_of_a_host_that_the_model_divides_over() -> None:
    llama = ModelSpec(
        name="8b",
        vocab_size=128_256,
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        mlp_size=14_336,
    )
    found, findings = replica(llama)
    assert (found.tensor, found.min_step_tokens) == (4, 4)
    assert (found.num_pages, findings.problems, findings.notes) == (64 * 32, [], [])
    assert replica(llama, topology="4x4")[0].tensor == 4
    one, findings = replica(llama, topology="1x1")
    assert (one.tensor, one.num_pages < 64 * 32) == (1, True)
    assert "KV pages fit beside the weights" in findings.notes[0]
    small, findings = replica(PRESETS["smollm2-135m"])
    assert (small.tensor, small.min_step_tokens) == (3, 33)
    assert "3 of the 4 devices" in findings.notes[0]


def test_replica_with_int8_weights_has_room_for_more_pages_and_no_experts() -> None:
    rows = {"batch_rows": 4096}
    plain, quantised = (replica(PRESETS["llama3-8b"], **rows, weights=kept)[0] for kept in (None, "int8"))
    assert plain.num_pages < quantised.num_pages < 4096 * 32
    _, findings = replica(PRESETS["mixtral-8x7b"], topology="2x4", weights="int8")
    assert ("task.weights", True) in [(p.where.key, "mixtral-8x7b has experts" in p.message) for p in findings.problems]


def test_replica_with_fp8_pages_has_twice_as_many_where_they_are_smaller() -> None:
    rows = {"batch_rows": 4096}
    plain, narrow = (replica(PRESETS["llama3-8b"], **rows, kv_dtype=kept)[0] for kept in (None, "fp8"))
    assert narrow.num_pages // 2 == plain.num_pages < 2048 * 32
    _, findings = replica(PRESETS["llama3-8b"], topology="2x4", kv_dtype="fp8")
    assert [(p.where.key, "no smaller" in p.message) for p in findings.problems] == [("task.kv_dtype", True)]


LARGE = ModelSpec(
    name="120b",
    vocab_size=128_256,
    hidden_size=12_288,
    num_layers=96,
    num_heads=96,
    num_kv_heads=8,
    head_dim=128,
    mlp_size=28_672,
)


def test_replica_that_no_host_holds_has_a_slice_where_one_does() -> None:
    found, findings = replica(LARGE, topology="4x4")
    assert (found.per, found.tensor, found.min_step_tokens, findings.problems) == ("slice", 16, 16, [])
    assert found.num_pages > 2048 // 64
    assert "each slice is a replica: the model does not fit a host" in findings.notes[0]
    _, findings = replica(LARGE, topology="4x4", per="host")
    assert ['task.replica = "slice"' in str(problem.hint) for problem in findings.problems] == [True]


def test_replica_is_over_a_slice_where_that_is_asked_and_on_its_host_where_there_is_one() -> None:
    assert replica(PRESETS["llama3-8b"], topology="4x4")[0].per == "host"
    asked, findings = replica(PRESETS["llama3-8b"], topology="4x4", per="slice")
    assert (asked.per, asked.tensor, findings.problems, findings.notes) == ("slice", 16, [], [])
    assert replica(PRESETS["llama3-8b"], topology="2x2", per="slice")[0].per == "host"
    _, findings = replica(PRESETS["smollm2-135m"], topology="4x4", per="slice")
    assert {problem.where.key for problem in findings.problems} == {"task.replica"}
    assert "tensor 16 does not divide num_heads 9" in findings.problems[0].message


def test_replica_that_neither_host_nor_slice_holds_is_refused_with_both_sizes() -> None:
    for topology, dtype, places in (("2x2", "bfloat16", ["host"]), ("4x4", "float32", ["host", "slice"])):
        _, findings = replica(LARGE, topology=topology, dtype=dtype)
        assert {problem.where.key for problem in findings.problems} == {"slice.topology"}
        told = [problem.message for problem in findings.problems]
        assert [f"does not fit a {place}: " in words for place, words in zip(places, told, strict=True)] == [
            True for _ in places
        ]


def test_plan_of_a_replica_per_slice_deals_parts_to_slices() -> None:
    asked = {"kind": "generate", "replica": "slice"}
    model = {"source": "builtin:smollm2-135m"}
    for topology, slices, count in (("4x4", 2, 8), ("2x2", 2, 2)):
        plan = planned(slice={"accelerator": "v6e", "topology": topology, "slices": slices}, task=asked, model=model)
        assert plan.replica is None
        filled, _ = replica(PRESETS["llama3-8b"], topology=topology, per="slice")
        assert (plan.replicas, replace(plan, replica=filled).replicas) == (count, 2)
