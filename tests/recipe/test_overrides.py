"""``--set table.key=value``: typed by the schema, refused by name."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("train.steps=50", ("train", "steps"), 50),
        (" train.steps = 50 ", ("train", "steps"), 50),
        ("optim.learning_rate=1e-4", ("optim", "learning_rate"), 1e-4),
        ("optim.learning_rate=.001", ("optim", "learning_rate"), 0.001),
        ("train.steps=1_000", ("train", "steps"), 1000),
        ("optim.learning_rate=1", ("optim", "learning_rate"), 1.0),
        ("data.packing=false", ("data", "packing"), False),
        ("data.packing=True", ("data", "packing"), True),
        ("run.name=second", ("run", "name"), "second"),
        ('run.name="second"', ("run", "name"), "second"),
        ("data.uri=a b=c.parquet", ("data", "uri"), "a b=c.parquet"),
        ("data.uri=$HOME/`x`'", ("data", "uri"), "$HOME/`x`'"),
        ("train.remat=none", ("train", "remat"), "none"),
        ("train.remat=unset", ("train", "remat"), None),
        ("slice.topology=none", ("slice", "topology"), None),
        ("train.sequence_length=unset", ("train", "sequence_length"), 1024),
        ("job.pip=a,b ,c", ("job", "pip"), ("a", "b", "c")),
        ('job.pip=["a", "b"]', ("job", "pip"), ("a", "b")),
        ("job.pip=", ("job", "pip"), ()),
        ("job.timeout=2h", ("job", "timeout"), 7200.0),
        ("job.timeout=90", ("job", "timeout"), 90.0),
        ("job.timeout=none", ("job", "timeout"), None),
        ("job.env.A=1=2", ("job", "env"), {"A": "1=2"}),
        ("job.env.A=", ("job", "env"), {"A": ""}),
    ],
)
def test_load_recipe_with_an_override_types_it_by_the_schema(load, text, path, value) -> None:
    got = getattr(getattr(load(overrides=[text]), path[0]), path[1])
    assert got == value
    assert type(got) is type(value)


def test_load_recipe_with_several_overrides_lets_the_last_win_and_adds_variables(load) -> None:
    recipe = load(overrides=["train.steps=1", "job.env.A=1", "train.steps=2", "job.env.B=2", "job.env.A=unset"])
    assert (recipe.train.steps, recipe.job.env) == (2, {"B": "2"})


@pytest.mark.parametrize(
    ("text", "key", "message", "hint"),
    [
        ("train.steps=ten", "train.steps", 'got the string "ten"', "as in --set train.steps=1000"),
        ("train.steps=1e3", "train.steps", "got 1000.0", "steps = 1000"),
        ("optim.learning_rate=nan", "optim.learning_rate", "got nan", ""),
        ("train.steps=0", "train.steps", "at least 1", ""),
        ("train.steps=", "train.steps", "whole number", ""),
        ("train.steps=none", "train.steps", "whole number", ""),
        ("data.packing=yes", "data.packing", "true or false", ""),
        ("train.remat=some", "train.remat", "one of", ""),
        ("run.name=", "run.name", "must not be empty", ""),
        ("trian.steps=5", "trian.steps", "unknown table 'trian'", "[train]"),
        ("train.stpes=5", "train.stpes", "unknown key 'stpes'", "did you mean steps?"),
        ("steps=5", "steps", "unknown key 'steps'", "steps belongs in [train]"),
        ("train=5", "train", "is a table", "set one of its keys"),
        ("train.steps.x=5", "train.steps.x", "unknown table", ""),
        ("job.env=5", "job.env", "is a table", "job.env.NAME=value"),
        ("job.env.a-b=5", "job.env.a-b", "no name of an environment variable", ""),
        ("train.steps", None, "expected table.key=value", ""),
        ("=5", None, "expected table.key=value", ""),
        ("", None, "expected table.key=value", ""),
    ],
)
def test_load_recipe_with_a_bad_override_points_at_the_option(load, text, key, message, hint) -> None:
    with pytest.raises(RecipeError) as caught:
        load(overrides=[text])
    error = caught.value
    assert message in error.message
    assert hint in (error.hint or "")
    assert error.where is not None
    assert (error.where.file, error.where.key, error.where.line) == ("--set", key, None)


def test_load_recipe_with_a_required_key_taken_back_misses_it(load) -> None:
    with pytest.raises(RecipeError, match="missing"):
        load(overrides=["train.steps=unset"])


def test_load_recipe_with_an_override_mends_a_missing_key(load, good) -> None:
    assert load(good.replace("steps = 20\n", ""), ["train.steps=3"]).train.steps == 3
