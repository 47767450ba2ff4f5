"""Recipes of a job of one's own: the command cut into words, its keys and those of other kinds kept apart."""

from __future__ import annotations

import pytest

from tpuctl.errors import RecipeError
from tpuctl.recipe.schema import CustomRecipe

CUSTOM = """\
kind = "custom"
[slice]
accelerator = "v6e"
topology = "2x2"
[job]
{job}
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("\"python train.py --name 'a b'\"", ("python", "train.py", "--name", "a b")),
        ('["python", "train.py", "`id` $HOME it\'s\\n"]', ("python", "train.py", "`id` $HOME it's\n")),
        ('["a program", ""]', ("a program", "")),
    ],
)
def test_load_recipe_command_as_text_or_words_keeps_every_argument_one(load, command, words) -> None:
    recipe = load(CUSTOM.format(job=f"command = {command}"))
    assert isinstance(recipe, CustomRecipe)
    assert recipe.job.command == words


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("job.command=python train.py --name 'a b'", ("python", "train.py", "--name", "a b")),
        ('job.command=["python", "x y"]', ("python", "x y")),
    ],
)
def test_load_recipe_command_of_an_option_is_cut_alike(load, override, words) -> None:
    assert load(CUSTOM.format(job='command = "true"'), [override]).job.command == words


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ('command = "python \'a"', "can't be cut into words: no closing quotation"),
        ('command = ""', "names no program"),
        ("command = []", "names no program"),
        ("command = 3", "expected a command line, or a list of its words, got 3"),
        ('command = ["a", 3]', "expected a command line"),
        ('entrypoint = "python train.py"', "a command line goes into job.command"),
    ],
)
def test_load_recipe_bad_command_says_what_is_wrong(load, job, message) -> None:
    with pytest.raises(RecipeError, match=message):
        load(CUSTOM.format(job=job))


def test_load_recipe_table_of_another_kind_is_refused_with_the_kind_it_belongs_to(load) -> None:
    with pytest.raises(RecipeError, match=r"unknown table \[train\]") as caught:
        load(CUSTOM.format(job='command = "true"\n[train]\nsteps = 3'))
    assert caught.value.hint == "[train] belongs to kind = 'train'"


def test_load_recipe_command_in_a_training_recipe_is_refused(load, good) -> None:
    with pytest.raises(RecipeError, match=r"unknown key 'command' in \[job\]"):
        load(good + '[job]\ncommand = "true"\n')
