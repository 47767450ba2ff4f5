"""Plans of several models behind one address: each as if it were alone, and what holds between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.errors import RecipeError
from tpuctl.plan.environment import masked
from tpuctl.plan.onsite import look_here
from tpuctl.plan.resolve import resolve
from tpuctl.plan.schema import ModelsPlan, ServingPlan, plan_dumps, plan_loads
from tpuctl.plan.source import find_source
from tpuctl.recipe.load import load_recipe

RECIPE = """
kind = "serve"
[slice]
accelerator = "v5e"
topology = "1x1"
[engine]
max_sequences = 16
[serve]
max_waiting = 7
[models.small]
model.preset = "tiny-1m"
[models.big]
model.preset = "llama3-8b"
model.tokenizer = "builtin:smollm2-135m"
slice.topology = "2x4"
slice.slices = 2
slice.chips_per_host = 8
engine.weights = "int8"
serve.min_replicas = 1
"""


def planned(tmp_path: Path, *overrides: str, text: str = RECIPE, environ: dict[str, str] | None = None) -> ModelsPlan:
    (tmp_path / "both.toml").write_text(text)
    loaded, environ = load_recipe(tmp_path / "both.toml", overrides=overrides), environ or {}
    plan = resolve(loaded, environ=environ, cwd=tmp_path, source=find_source(loaded, environ=environ, cwd=tmp_path))
    assert isinstance(plan, ModelsPlan)
    return plan


def refused(tmp_path: Path, *overrides: str, text: str = RECIPE) -> dict[str, str]:
    """What is refused, by the keys."""
    with pytest.raises(RecipeError) as error:
        planned(tmp_path, *overrides, text=text)
    return {str(part.where and part.where.key): part.message for part in error.value.parts or (error.value,)}


def test_plan_crosses_as_json_and_reserves_the_slices_of_all_models(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan_loads(plan_dumps(plan)) == plan
    assert {name: (slices.topology, slices.slices) for name, slices in plan.reserves.items()} == {
        "small": ("1x1", 1),
        "big": ("2x4", 2),
    }


def test_plan_of_each_model_is_that_of_a_recipe_of_it_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path, "run.name=both")
    alone = """
kind = "serve"
[slice]
accelerator = "v5e"
topology = "2x4"
slices = 2
chips_per_host = 8
[model]
preset = "llama3-8b"
tokenizer = "builtin:smollm2-135m"
[engine]
max_sequences = 16
weights = "int8"
[serve]
name = "big"
max_waiting = 7
min_replicas = 1
"""
    (tmp_path / "alone.toml").write_text(alone)
    wanted = resolve(load_recipe(tmp_path / "alone.toml", overrides=["run.name=both"]), environ={}, cwd=tmp_path)
    assert isinstance(wanted, ServingPlan)
    found = plan.plan_of(plan.models[1])
    assert found == ServingPlan(
        **{**{name: getattr(wanted, name) for name in wanted.__dataclass_fields__}, "notes": ()}
    )


def test_notes_say_whose_they_are_unless_they_are_everyones(tmp_path: Path) -> None:
    notes = planned(tmp_path, "serve.host=0.0.0.0").notes
    assert sum("without an API key" in note for note in notes) == 1
    drawn = [note.partition(": ")[0] for note in notes if "drawn at random" in note]
    assert drawn == ["small", "big"]


def test_secrets_of_the_job_stand_in_one_place_that_is_masked(tmp_path: Path) -> None:
    plan = planned(tmp_path, "job.secrets.TOKEN=very-secret")
    assert plan.plan_of(plan.models[0]).job.secrets == {"TOKEN": "very-secret"}
    assert "very-secret" not in plan_dumps(masked(plan))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # A shared key is told for the model that it does not suit, a model's own at that model.
        (("engine.max_length=9000",), {"engine.max_length": "the model knows 8192 positions (models.big)"}),
        (("models.big.engine.max_length=9000",), {"models.big.engine.max_length": "the model knows 8192 positions"}),
        (
            ("models.big.slice.topology=1x1", "models.big.slice.chips_per_host=none", "models.big.engine.weights=none"),
            {"models.big.engine.num_pages": "does not fit"},
        ),
        (
            ("models.small.model.preset=tiny-2m", "models.big.serve.min_replicas=3"),
            {"models.small.model.preset": "unknown preset", "models.big.serve.min_replicas": "there are 2"},
        ),
        # What all share is told once.
        (("serve.drain=10m",), {"serve.drain": "killed 60 s after a stop"}),
        (("job.pass_env=NO_SUCH",), {"job.pass_env": "NO_SUCH is not set"}),
        (
            ("models.small.model.source=builtin:minilm-l6-v2", "models.small.model.preset=none"),
            {"models.small.model.source": "an encoder, which is not served beside other models"},
        ),
        (
            ("models.small.model.source=nowhere", "models.big.model.checkpoint=nowhere"),
            {"models.small.model.source": "nowhere", "models.big.model.checkpoint": "nowhere"},
        ),
    ],
)
def test_what_does_not_suit_a_model_is_refused_at_its_key(tmp_path: Path, overrides, expected) -> None:
    found = refused(tmp_path, *overrides)
    assert found.keys() == expected.keys()
    for key, words in expected.items():
        assert words in found[key]


def test_limits_of_a_key_that_models_would_count_each_for_itself_are_refused(tmp_path: Path) -> None:
    text = RECIPE.replace(
        "[serve]", '[job]\nenv = { KEYS = "long-enough" }\n[serve]\napi_key_env = "KEYS"\nkey_concurrent = 2'
    )
    assert (
        "each model would count by itself"
        in refused(tmp_path, "models.big.slice.slices=1", text=text)["serve.key_concurrent"]
    )


def test_adapter_called_like_another_model_or_its_adapter_is_refused(tmp_path: Path) -> None:
    adapters = "models.big.serve.adapters.small=/nowhere", "models.big.serve.adapters.poet=/nowhere"
    (tmp_path / "both.toml").write_text(RECIPE)
    loaded = load_recipe(tmp_path / "both.toml", overrides=[*adapters, "models.small.serve.adapters.poet=/elsewhere"])
    with pytest.raises(RecipeError) as error:
        resolve(loaded, environ={}, cwd=tmp_path)
    found = {str(part.where and part.where.key): part.message for part in error.value.parts}
    assert found["models.big.serve.adapters.small"] == "is the name of a model too"
    assert found["models.big.serve.adapters.poet"] == "is the name of an adapter of small too"


def test_files_that_are_not_here_are_told_with_their_model(tmp_path: Path) -> None:
    (tmp_path / "both.toml").write_text(RECIPE)
    loaded = load_recipe(
        tmp_path / "both.toml",
        overrides=["models.small.model.chat_template=t.jinja", "serve.tls_cert=c.pem", "serve.tls_key=k.pem"],
    )
    plan = look_here(resolve(loaded, environ={}, cwd=tmp_path), loaded, home=None)
    absent = [note for note in plan.notes if "not on this machine" in note]
    assert [note.partition(": ")[0] for note in absent] == ["serve.tls_cert", "serve.tls_key", "small"]
