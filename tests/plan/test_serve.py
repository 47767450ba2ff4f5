"""Plans of serving: what is chosen, what is refused and with which remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tpuctl.cli.describe_serving import describe_serving
from tpuctl.cli.plan import describe
from tpuctl.errors import RecipeError
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import EmbeddingPlan, Plan, ServingPlan, plan_dumps, plan_loads
from tpuctl.plan.source import read_source
from tpuctl.recipe.load import load_recipe

RECIPE = """
kind = "serve"
[slice]
accelerator = "v5e"
topology = "1x1"
[model]
preset = "tiny-1m"
"""


def planned(tmp_path: Path, *overrides: str, environ: dict[str, str] | None = None) -> ServingPlan:
    (tmp_path / "endpoint.toml").write_text(RECIPE)
    loaded = load_recipe(tmp_path / "endpoint.toml", overrides=overrides)
    plan = resolve(loaded, environ=environ or {}, cwd="/work")
    assert isinstance(plan, ServingPlan)
    return plan


def test_plan_crosses_as_json(tmp_path) -> None:
    plan = planned(tmp_path)
    assert plan_loads(plan_dumps(plan)) == plan


def test_pages_are_enough_for_all_sequences_where_they_fit(tmp_path) -> None:
    engine = planned(tmp_path, "engine.max_length=256", "engine.max_sequences=8", "engine.page_size=16").engine
    assert engine.num_pages == 8 * 256 // 16
    # Keys and values of 2 layers, 2 key heads, in bfloat16; heads of 64 numbers lie in 128 lanes.
    assert engine.page_bytes == 2 * 2 * 2 * 128 * 2 * 16


def test_pages_are_what_the_memory_holds_where_that_is_less(tmp_path) -> None:
    plan = planned(tmp_path, "engine.max_sequences=4096", "engine.max_step_tokens=4096", "engine.memory_share=0.1")
    assert plan.engine.num_pages * plan.engine.page_bytes < 0.1 * 16 * 2**30
    assert any("fit beside the weights" in note for note in plan.notes)


def test_int8_weights_leave_room_for_more_pages(tmp_path) -> None:
    recipe = ("model.preset=llama3-8b", "model.tokenizer=builtin:smollm2-135m", "slice.topology=2x2")
    sizes = ("engine.max_sequences=4096", "engine.max_step_tokens=4096")
    plain, quantised = (planned(tmp_path, *recipe, *sizes, *more) for more in ((), ("engine.weights=int8",)))
    assert (plain.engine.weights, quantised.engine.weights) == (None, "int8")
    assert plan_loads(plan_dumps(quantised)) == quantised
    # 7.5 billion numbers take one byte in place of two: 525,336,576 are the embeddings', norms are few.
    saved = (quantised.engine.num_pages - plain.engine.num_pages) * plain.engine.page_bytes
    assert saved == pytest.approx(7.505e9, rel=0.002)


def test_weights_that_fit_only_once_they_are_quantised_are_refused(tmp_path) -> None:
    recipe = ("model.preset=llama3-8b", "model.tokenizer=builtin:smollm2-135m", "engine.num_pages=32")
    with pytest.raises(RecipeError, match="as it is read do not fit") as error:
        planned(tmp_path, *recipe, "engine.dtype=float32", "engine.weights=int8")
    assert any(problem.where.key == "engine.weights" for problem in error.value.parts or (error.value,))
    assert planned(tmp_path, *recipe, "engine.weights=int8").engine.num_pages == 32


def test_drafts_are_said_where_there_are_any(tmp_path) -> None:
    plain, drafting = planned(tmp_path), planned(tmp_path, "engine.speculate=4")
    assert (plain.engine.speculate, drafting.engine.speculate) == (0, 4)
    assert "up to 4 draft tokens" in describe(drafting)
    assert "draft" not in describe(plain)


def test_fp8_pages_are_half_and_twice_as_many_fit(tmp_path) -> None:
    recipe = ("model.preset=llama3-8b", "model.tokenizer=builtin:smollm2-135m", "slice.topology=2x2")
    sizes = ("engine.max_sequences=4096", "engine.max_step_tokens=4096")
    plain, narrow = (planned(tmp_path, *recipe, *sizes, *more) for more in ((), ("engine.kv_dtype=fp8",)))
    assert (plain.engine.kv_dtype, narrow.engine.kv_dtype) == (None, "fp8")
    assert plan_loads(plan_dumps(narrow)) == narrow
    assert narrow.engine.page_bytes * 2 == plain.engine.page_bytes
    assert narrow.engine.num_pages // 2 == plain.engine.num_pages
    told = dict(describe_serving(narrow))["engine"]
    assert f"{narrow.engine.num_pages:,} pages of 64 tokens in fp8" in told


def test_fp8_pages_that_would_be_no_smaller_are_refused(tmp_path) -> None:
    """A TPU's kernel reads 32 bits at a time: of eight bits the keys and values of two heads."""
    recipe = ("model.preset=llama3-8b", "model.tokenizer=builtin:smollm2-135m", "engine.kv_dtype=fp8")
    with pytest.raises(RecipeError, match="pages would be no smaller") as error:
        planned(tmp_path, *recipe, "slice.topology=2x4")
    assert error.value.where is not None
    assert (error.value.where.key, "at most 4 devices" in str(error.value.hint)) == ("engine.kv_dtype", True)
    wide = planned(tmp_path, *recipe, "slice.topology=2x4", "engine.dtype=float32")
    assert wide.engine.page_bytes == 2 * 32 * 8 * 2 * 128 * 64


def test_length_left_out_is_no_more_than_the_pages_hold(tmp_path) -> None:
    assert planned(tmp_path, "engine.num_pages=4", "engine.page_size=16").engine.max_length == 64


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("engine.num_pages=4", "engine.max_length", "131072 tokens need 2048 pages, there are 4"),
        ("engine.num_pages=2000000000", "engine.num_pages", "does not fit"),
        ("engine.max_sequences=1024", "engine.max_step_tokens", "fewer than the 1024 sequences"),
        ("serve.min_replicas=2", "serve.min_replicas", "2 replicas need as many slices, and there are 1"),
        ("slice.topology=4x4", "slice.topology", "tensor 16 does not divide num_heads 4"),
        ("slice.topology=3x1", "slice.topology", ""),
        ("mesh.tensor=2", "mesh.tensor", "2 of the 1 devices"),
        ("engine.weights=int4", "engine.weights", "expected one of 'int8'"),
        ("engine.kv_dtype=int8", "engine.kv_dtype", "expected one of 'fp8'"),
        ("mesh.fsdp=2", "mesh.fsdp", "tensor alone"),
        ("model.preset=tiny-6m", "model.preset", "unknown preset"),
        ("model.tokenizer=words", "model.tokenizer", "unknown tokenizer"),
        ("serve.api_key_env=NO_SUCH", "serve.api_key_env", "has no variable NO_SUCH"),
        ("serve.drain=10m", "serve.drain", "killed 60 s after a stop"),
    ],
)
def test_what_can_not_work_is_refused_at_its_key(tmp_path, override: str, key: str, words: str) -> None:
    more = ("engine.max_length=131072",) if key == "engine.max_length" else ()
    with pytest.raises(RecipeError) as error:
        planned(tmp_path, override, *more)
    problems = error.value.parts or (error.value,)
    assert any(problem.where and problem.where.key == key and words in problem.message for problem in problems)
    assert all(problem.hint for problem in problems)


def test_open_address_without_a_key_is_said(tmp_path) -> None:
    assert any("without an API key" in note for note in planned(tmp_path, "serve.host=0.0.0.0").notes)
    keyed = ("serve.host=0.0.0.0", 'job.pass_env=["KEYS"]', "serve.api_key_env=KEYS")
    plan = planned(tmp_path, *keyed, environ={"KEYS": "one-long-key"})
    assert not any("without an API key" in note for note in plan.notes)


def test_each_slice_has_a_replica_and_the_mesh_is_that_of_one(tmp_path) -> None:
    plan = planned(tmp_path, "slice.slices=3")
    assert (plan.endpoint.min_replicas, plan.endpoint.max_replicas, plan.mesh.tensor) == (3, 3, 1)
    assert plan.endpoint.is_replicated
    assert not planned(tmp_path).endpoint.is_replicated
    assert planned(tmp_path, "serve.min_replicas=0").endpoint.is_replicated


ENCODER = RECIPE.replace('preset = "tiny-1m"', 'source = "builtin:minilm-l6-v2"')
TINY_BERT = Path(__file__).parents[1] / "infer" / "tiny_bert"


def planned_encoder(tmp_path: Path, *overrides: str) -> Plan:
    (tmp_path / "endpoint.toml").write_text(ENCODER)
    loaded = load_recipe(tmp_path / "endpoint.toml", overrides=overrides)
    return resolve(loaded, environ={}, cwd="/work", source=read_source(loaded, environ={}, cwd="/work"))


def test_encoder_is_served_with_the_length_it_was_made_for_and_crosses_as_json(tmp_path) -> None:
    plan = planned_encoder(tmp_path)
    assert isinstance(plan, EmbeddingPlan)
    assert (plan.endpoint.name, plan.encoder.max_length, plan.encoder.pooling) == ("minilm-l6-v2", 256, "mean")
    assert plan_loads(plan_dumps(plan)) == plan
    folder = planned_encoder(tmp_path, f"model.source={TINY_BERT}")
    assert isinstance(folder, EmbeddingPlan)
    assert folder.encoder.max_length == 32


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("engine.max_length=513", "engine.max_length"),
        ("engine.num_pages=5", "engine.num_pages"),
        ("engine.weights=int8", "engine.weights"),
        ("engine.speculate=4", "engine.speculate"),
        ("engine.kv_dtype=fp8", "engine.kv_dtype"),
        ("model.tokenizer=bytes", "model.tokenizer"),
        ("slice.topology=4x4", "slice.topology"),
        ("serve.key_concurrent=5", "serve.key_concurrent"),
        ("serve.tls_key=key.pem", "serve.tls_key"),
    ],
)
def test_encoder_is_refused_what_it_cannot_have(tmp_path, override: str, key: str) -> None:
    with pytest.raises(RecipeError) as error:
        planned_encoder(tmp_path, override)
    assert error.value.where is not None
    assert error.value.where.key == key


def test_pooling_that_is_not_known_is_refused(tmp_path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY_BERT, folder)
    (folder / "1_Pooling").mkdir()
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    plan = planned_encoder(tmp_path, f"model.source={folder}")
    assert isinstance(plan, EmbeddingPlan)
    assert plan.encoder.pooling == "first"
    pooling.write_text('{"pooling_mode_lasttoken": true}')
    with pytest.raises(RecipeError, match="pooling_mode_lasttoken"):
        planned_encoder(tmp_path, f"model.source={folder}")


def test_keys_over_the_network_without_a_certificate_are_noted(tmp_path) -> None:
    overrides = ("serve.host=0.0.0.0", "serve.api_key_file=keys")
    assert any("plain text" in note for note in planned(tmp_path, *overrides).notes)
    tls = ("serve.tls_cert=cert.pem", "serve.tls_key=key.pem")
    plan = planned(tmp_path, *overrides, *tls)
    assert plan.endpoint.tls_cert == "/work/cert.pem"
    assert not any("plain text" in note for note in plan.notes)
