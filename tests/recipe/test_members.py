"""Several models in one recipe of serving: what each has of its own, what all share, and where a mistake stands."""

from __future__ import annotations

import tomllib

import jsonschema
import pytest

from tpuctl.errors import RecipeError
from tpuctl.recipe.jsonschema import recipe_schema
from tpuctl.recipe.schema import ServingRecipe

GOOD = """\
kind = "serve"
[slice]
accelerator = "v5e"
topology = "1x1"
[engine]
max_sequences = 16
[serve]
port = 9000
max_waiting = 7
[models.small]
model.source = "builtin:smollm2-135m"
[models."org/big"]
model.preset = "llama3-8b"
slice.topology = "2x4"
slice.slices = 2
engine.weights = "int8"
serve.min_replicas = 1
"""


def read(load, text: str = GOOD, *overrides: str) -> ServingRecipe:
    recipe = load(text, overrides)
    assert isinstance(recipe, ServingRecipe)
    return recipe


def problems(load, text: str, *overrides: str) -> dict[str, tuple[str, str]]:
    """The problems of a recipe by their places: what is said, and the hint."""
    with pytest.raises(RecipeError) as error:
        read(load, text, *overrides)
    parts = error.value.parts or (error.value,)
    return {f"{part.where.line}: {part.where.key}": (part.message, part.hint or "") for part in parts if part.where}


def test_what_a_model_leaves_out_is_as_in_the_shared_tables(load) -> None:
    models = read(load).models
    assert list(models) == ["small", "org/big"]
    small, big = models.values()
    assert (small.slice.topology, small.slice.slices, big.slice.topology, big.slice.slices) == ("1x1", 1, "2x4", 2)
    assert (small.engine.max_sequences, big.engine.max_sequences, big.engine.weights) == (16, 16, "int8")
    assert (small.serve.name, big.serve.name) == ("small", "org/big")
    assert (small.serve.min_replicas, big.serve.min_replicas, big.serve.max_waiting, big.serve.port) == (
        None,
        1,
        7,
        9000,
    )


def test_place_of_a_models_key_is_where_it_was_written(load) -> None:
    recipe = read(load, GOOD, "models.small.slice.slices=3", "models.org/big.engine.max_length=512")
    assert recipe.models["small"].slice.slices == 3
    small, big = (model.origin for model in recipe.models.values())
    assert str(small.where("slice.slices")) == "--set: models.small.slice.slices"
    assert str(big.where("slice.topology")).endswith(":14: models.org/big.slice.topology")
    assert str(big.where("engine.max_sequences")).endswith(":6: engine.max_sequences")
    assert str(big.where("engine.num_pages")).endswith(":16: models.org/big.engine.num_pages")
    assert str(big.where("serve.port")).endswith(":8: serve.port")
    assert big.told("engine.max_sequences", "too many") == "too many (models.org/big)"
    assert big.told("engine.num_pages", "too many") == "too many"
    assert big.told("serve.port", "too many") == "too many"


@pytest.mark.parametrize(
    ("old", "new", "place", "message", "hint"),
    [
        ("port = 9000", 'name = "x"', "8: serve.name", "unknown key 'name'", "called as its table is"),
        ("port = 9000", 'engine = "vllm"', "8: serve.engine", "unknown key 'engine'", "tpuctl's own engine"),
        ("port = 9000", 'adapters.a = "b"', "8: serve.adapters", "unknown key", "[models.small.serve]"),
        (
            "[serve]",
            "[model]",
            "7: model",
            "unknown table [model]",
            "each has its own: write it in [models.small.model]",
        ),
        ("model.source", "source", "11: models.small.source", "unknown key 'source'", "[models.small.model]"),
        ("model.source", "model.sorce", "11: models.small.model.sorce", "unknown key", "did you mean source?"),
        ("model.source", "model.model_path", "11: models.small.model.model_path", "unknown key", "called source"),
        ("slice.topology", "slice.shape", "14: models.org/big.slice.shape", "unknown key", "called topology"),
        (
            "serve.min_replicas",
            "serve.port",
            "17: models.org/big.serve.port",
            "unknown key",
            "shared by all: write it in [serve]",
        ),
        ("serve.min_replicas", "serve.name", "17: models.org/big.serve.name", "unknown key", "called as its table is"),
        ("= 1\n", "= -1\n", "17: models.org/big.serve.min_replicas", "at least 0", ""),
        ("slices = 2", 'slices = "2"', "15: models.org/big.slice.slices", "got the string", ""),
        ("model.source", "job.source", "11: models.small.job", "unknown table", "write it in [job]"),
        ("engine.weights", "enigne.weights", "16: models.org/big.enigne", "unknown table", "[models.org/big.engine]"),
        ('"org/big"', '"org big"', "12: models.org big", "no such name", ""),
        ("[models.small]\n", "[models]\nsmall = 3\n[models.tiny]\n", "11: models.small", "is a table, not a value", ""),
        ('accelerator = "v5e"', "", "2: slice.accelerator", "missing", "under [slice]"),
    ],
)
def test_mistake_in_a_recipe_of_several_models_is_told_at_its_place(load, old, new, place, message, hint) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    found = problems(load, text)
    assert list(found) == [place]
    ((said, remedy),) = found.values()
    assert message in said
    assert hint in remedy
    assert not jsonschema.Draft202012Validator(recipe_schema()).is_valid(tomllib.loads(text))


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("models.smal.slice.slices=1", "there is models.small, models.org/big"),
        ("models.small=1", "there is models.small, models.org/big"),
        ("models.small.slice=1", "set one of its keys: accelerator"),
        ("model.preset=tiny-1m", "[models.small.model]"),
        ("serve.name=x", "called as its table is"),
        ("models.small.serve.port=1", "write it in [serve]"),
    ],
)
def test_option_for_what_no_model_has_is_refused_with_a_remedy(load, override, hint) -> None:
    ((_, remedy),) = problems(load, GOOD, override).values()
    assert hint in remedy


def test_schema_accepts_several_models() -> None:
    jsonschema.validate(tomllib.loads(GOOD), recipe_schema(), jsonschema.Draft202012Validator)


def test_empty_table_of_models_is_refused(load) -> None:
    ((message, _),) = problems(load, 'kind = "serve"\nmodels = {}\n[slice]\naccelerator = "v5e"\n').values()
    assert message == "names none"


def test_name_that_reads_like_a_table_of_another_model_is_refused(load) -> None:
    text = GOOD + '[models."small.slice"]\nmodel.preset = "tiny-1m"\n'
    ((message, _),) = problems(load, text).values()
    assert "reads like a table" in message
