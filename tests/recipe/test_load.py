"""The strict loader: what it refuses, where it points, what it proposes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipe.conftest import GOOD
from tpuctl.errors import ExitCode, RecipeError, UsageError
from tpuctl.recipe.durations import parse_duration
from tpuctl.recipe.load import load_recipe
from tpuctl.recipe.schema import RECIPES, TrainingRecipe
from tpuctl.recipe.settings import keys_of

EVERY_KEY = list(keys_of(TrainingRecipe).values())


def refusal(load, text, overrides=()) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        load(text, overrides)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


def said(error: RecipeError) -> str:
    return f"{error.where}: {error.message} | {error.hint}"


def in_table(good: str, table: str, line: str) -> str:
    """The good recipe with a line under a table's header, in place of the same key's line there."""
    name, here, rows = line.partition("=")[0].strip(), "", []
    for row in good.splitlines():
        here = row.strip("[]") if row.startswith("[") else here
        if here != table or row.partition("=")[0].strip() != name:
            rows.append(row)
    if f"[{table}]" not in rows:
        rows.append(f"[{table}]")
    at = rows.index(f"[{table}]")
    return "\n".join([*rows[: at + 1], line, *rows[at + 1 :]]) + "\n"


def test_load_recipe_of_a_small_recipe_fills_in_defaults(load) -> None:
    recipe = load()
    assert (recipe.train.steps, recipe.train.global_batch, recipe.train.microbatches) == (20, 8, 1)
    assert (recipe.optim.learning_rate, recipe.checkpoint.keep, recipe.job.env) == (3e-4, 3, {})


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "﻿"])
def test_load_recipe_takes_bom_and_any_line_ends(load, good, bom, ends) -> None:
    recipe = load((bom + good.replace("\n", ends)).encode())
    assert recipe.train.steps == 20
    assert recipe.origin.where("train.steps").line == 14


@pytest.mark.parametrize(
    ("table", "line", "hint"),
    [
        ("train", "learning_rat = 1e-3", "learning_rate, in [optim]"),
        ("train", "learning_rate = 1e-3", "learning_rate belongs in [optim]"),
        ("train", "num-epochs = 3", "epochs, in [data]"),
        ("train", "step = 5", "did you mean steps?"),
        ("train", "batch_size = 5", "here it is called global_batch"),
        ("train", "Sequence-Length = 5", "write sequence_length"),
        ("optim", "lr = 1", "here it is called learning_rate"),
        ("slice", "num_slices = 0", "here it is called slices"),
        ("slice", "steps = 3", "steps belongs in [train]"),
        ("job", 'kind = "infer"', "above the first [table]"),
        ("model", "seed = 1", "seed belongs in [data] or in [train]"),
        ("checkpoint", "zzz = 1", "keys of [checkpoint]: every, keep, resume"),
        ("train", "optim = 3", "[optim] is a table of its own"),
    ],
)
def test_load_recipe_of_an_unknown_key_names_line_and_the_right_one(load, good, table, line, hint) -> None:
    text = in_table(good, table, line)
    error = refusal(load, text)
    assert f"unknown key {line.partition(' ')[0]!r} in [{table}]" in error.message
    assert hint in (error.hint or "")
    assert error.where is not None
    assert error.where.line == text.splitlines().index(line) + 1


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("learning_rate = 1e-3", "unknown key 'learning_rate'", "learning_rate belongs in [optim]"),
        ("[trian]\nsteps = 1", "unknown table [trian]", "did you mean [train]?"),
        ("[optimizer]\nlr = 1", "unknown table [optimizer]", "did you mean [optim]?"),
        ("[xyz]", "unknown table [xyz]", "tables: run, slice"),
        ("optim = 3", "is a table, not a value", "write [optim]"),
        ("[[optim]]\nlearning_rate = 1.0", "list of tables", "write [optim] once"),
        ("run.colour = 1", "unknown key 'colour' in [run]", "keys of [run]"),
    ],
)
def test_load_recipe_of_a_misplaced_or_misspelt_table_says_which(load, good, line, message, hint) -> None:
    text = line + "\n" + good if "[" not in line else good + "\n" + line
    error = refusal(load, text)
    assert message in error.message
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("table", "line", "message", "hint"),
    [
        ("train", 'steps = "10"', 'got the string "10"', "steps = 10, without quotes"),
        ("train", "steps = 10.0", "got 10.0", "steps = 10, without a decimal point"),
        ("train", "steps = 1e3", "got 1000.0", "steps = 1000"),
        ("train", "steps = 10.5", "whole number", ""),
        ("train", "steps = true", "got true", ""),
        ("train", "steps = [1]", "got a list", ""),
        ("train", "steps = 2020-01-01", "got a date or time", ""),
        ("train", "steps = 99999999999999999999999999999999", "got", ""),
        ("optim", 'learning_rate = "1e-4"', 'got the string "1e-4"', "learning_rate = 1e-4, without quotes"),
        ("optim", "learning_rate = true", "got true", ""),
        ("optim", "learning_rate = nan", "got nan", ""),
        ("optim", "learning_rate = inf", "got inf", ""),
        ("optim", "learning_rate = 0", "above 0", ""),
        ("optim", "learning_rate = -1e-3", "above 0", ""),
        ("optim", "clip_norm = 1" + "0" * 400, "got a huge number", ""),
        ("optim", "beta2 = 1.0", "below 1", ""),
        ("train", "steps = 0", "at least 1, got 0", ""),
        ("train", "global_batch = -1", "at least 1", ""),
        ("checkpoint", "keep = 0", "at least 1", ""),
        ("slice", "slices = 0", "at least 1", ""),
        ("data", "packing = 1", "true or false", ""),
        ("data", 'packing = "true"', "true or false", "packing = true, without quotes"),
        ("data", "uri = 3", "a string", "in quotes"),
        ("data", 'uri = ""', "must not be empty", ""),
        ("data", 'uri = "a\\nb"', "line breaks", ""),
        ("train", 'remat = "everything"', "one of 'none'", ""),
        ("train", "remat = 3", "one of 'none'", ""),
        ("run", 'name = "a b"', "letters, digits", ""),
        ("run", 'name = "../x"', "letters, digits", ""),
        ("cluster", 'address = "head:8265"', "http://", ""),
        ("job", 'timeout = "2 weeks"', "a duration", "30m"),
        ("job", "timeout = 0", "above 0", ""),
        ("job", 'timeout = "-3m"', "a duration", ""),
        ("job", 'pip = "numpy"', "a list of strings", "["),
        ("job", "pip = [1]", "a list of strings", ""),
        ("job", 'pass_env = ["A-B"]', "no name of an environment variable", ""),
        ("job", "env = 3", "a table of strings", "[job.env]"),
    ],
)
def test_load_recipe_of_a_wrong_value_names_key_and_wanted_type(load, good, table, line, message, hint) -> None:
    text = in_table(good, table, line)
    error = refusal(load, text)
    assert message in error.message
    assert hint in (error.hint or "")
    assert error.where is not None
    assert error.where.key == f"{table}.{line.partition(' ')[0]}"
    assert error.where.line == text.splitlines().index(line) + 1


@pytest.mark.parametrize("key", EVERY_KEY, ids=lambda key: key.path)
def test_load_recipe_refuses_a_value_of_another_type_for_every_key(load, good, key) -> None:
    wrong = "12.5" if key.type in ("str", "choice", "map", "list", "bool") else "[true]"
    line = f"{key.name} = {wrong}"
    text = in_table(good, key.table, line) if key.table else good.replace('kind = "train"', line)
    error = refusal(load, text)
    assert error.where is not None
    assert (error.where.key, error.where.line) == (key.path, text.splitlines().index(line) + 1)


@pytest.mark.parametrize("key", [key for key in EVERY_KEY if key.type in ("int", "float")], ids=lambda key: key.path)
@pytest.mark.parametrize("value", ["nan", "-inf", "-1", "1e300"])
def test_load_recipe_refuses_numbers_out_of_range_for_every_number(load, good, key, value) -> None:
    if value == "1e300" and key.rules.maximum is None and key.rules.below is None:
        value = "inf"
    error = refusal(load, in_table(good, key.table, f"{key.name} = {value}"))
    assert error.where is not None
    assert error.where.key == key.path


@pytest.mark.parametrize("key", [key for key in EVERY_KEY if key.required and key.table], ids=lambda key: key.path)
def test_load_recipe_without_a_required_key_says_how_to_add_it(load, good, key) -> None:
    text = "\n".join(row for row in good.splitlines() if row.partition("=")[0].strip() != key.name)
    error = refusal(load, text)
    assert "missing" in error.message
    assert f"add {key.name} = " in (error.hint or "")


def test_load_recipe_takes_whole_numbers_for_floats_and_durations_in_any_unit(load, good) -> None:
    text = in_table(in_table(good, "optim", "learning_rate = 1"), "job", 'timeout = "1h30m"')
    recipe = load(text, ["job.stop_grace=90", "job.start_timeout=2d"])
    assert recipe.optim.learning_rate == 1.0
    assert isinstance(recipe.optim.learning_rate, float)
    assert (recipe.job.timeout, recipe.job.stop_grace, recipe.job.start_timeout) == (5400.0, 90.0, 172_800.0)


def test_load_recipe_with_many_errors_reports_all_in_order(load, good) -> None:
    text = good.replace("steps = 20", 'steps = "20"').replace('topology = "2x2"', "topology = 4") + "keep = 1\n"
    error = refusal(load, text)
    assert error.message.startswith("3 problems")
    lines = [line for line in error.message.splitlines() if "recipe.toml:" in line]
    assert [line.split(": ")[1] for line in lines] == ["slice.topology", "train.steps", "train.keep"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a = 1\nb = \n", 2, "not TOML"),
        ("[train\nsteps = 1\n", 1, "not TOML"),
        ('kind = "train"\nkind = "train"\n', 2, "set twice: already on line 1"),
        ("[train]\nsteps = 1\nsteps = 2\n", 3, "set twice: already on line 2"),
        ("[train]\nsteps = 1\n\n[slice]\n\n[train]\nglobal_batch = 2\n", 6, "set twice: already on line 1"),
        ('train = { steps = 1 }\n[slice]\naccelerator = "v6e"\ntopology = v6e\n', 4, "not TOML"),
        ('a = "x\n', 1, "not TOML"),
    ],
)
def test_load_recipe_of_text_that_is_no_toml_names_the_line(load, text, line, message) -> None:
    error = refusal(load, text)
    assert message in error.message
    assert error.where is not None
    assert error.where.line == line


def test_load_recipe_of_bytes_that_are_no_utf8_names_the_line(load, good) -> None:
    error = refusal(load, good.encode() + b'# caf\xe9\n[run]\nname = "x"\n')
    assert error.message == "not UTF-8 text"
    assert error.where is not None
    assert error.where.line == len(good.splitlines()) + 1


def test_load_recipe_of_a_missing_file_a_folder_and_a_huge_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "huge.toml").write_bytes(b"#" * 2_000_000)
    for name, message in {"none.toml": "no such file", ".": "is a directory", "huge.toml": "too large"}.items():
        with pytest.raises(RecipeError, match=message):
            load_recipe(tmp_path / name)


def test_load_recipe_never_shows_a_secret_in_an_error(load, good) -> None:
    text = good + '\n[job]\nsecrets = "hf_secret123"\n[job.env]\nHF_TOKEN = ["hf_secret456"]\n'
    assert "hf_secret" not in said(refusal(load, text))
    assert "hf_secret" not in said(refusal(load, good + '\n[job.secrets]\n"a-b" = "hf_secret"\nX = 12345678\n'))
    assert "12345678" not in said(refusal(load, good + "\n[job.secrets]\nX = 12345678\n"))


@pytest.mark.parametrize("digits", [19, 400, 5000])
@pytest.mark.parametrize(("table", "key"), [("train", "steps"), ("optim", "learning_rate"), ("job", "timeout")])
def test_load_recipe_number_of_any_length_is_refused_at_its_line(load, good, table, key, digits) -> None:
    line = f"{key} = {'9' * digits}"
    text = in_table(good, table, line)
    error = refusal(load, text)
    assert error.where is not None
    assert error.where.line == text.splitlines().index(line) + 1
    assert len(error.message) < 300


@pytest.mark.parametrize("digits", [400, 5000])
def test_load_recipe_option_of_a_number_of_any_length_is_refused(load, good, digits) -> None:
    assert "train.steps" in said(refusal(load, good, [f"train.steps={'9' * digits}"]))


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon", "1e9", f"{'9' * 400}d"])
def test_parse_duration_of_an_option_out_of_range_is_refused(text) -> None:
    with pytest.raises(UsageError, match="--wait: expected a duration"):
        parse_duration(text, option="--wait")


@pytest.mark.parametrize(
    ("line", "said_of_it"), [("", "missing"), ('kind = "trian"', "'trian'"), ("kind = 3", "got 3")]
)
def test_load_recipe_without_a_kind_says_that_alone_and_lists_them(load, line, said_of_it) -> None:
    error = refusal(load, f"{line}\n[slice]\nno_such_key = 1\n")
    assert (error.where.key, error.parts) == ("kind", ())
    assert said_of_it.strip("'") in error.message
    assert all(f'kind = "{kind}"' in (error.hint or "") for kind in RECIPES)


@pytest.mark.parametrize("text", ['kind = "train\n[run]\n', 'kind = "train', "kind = 'train\n", 'kind = """train'])
def test_load_recipe_of_a_string_that_is_not_closed_says_so(load, text) -> None:
    assert "not closed" in (refusal(load, text).hint or "")


@pytest.mark.parametrize(
    "key", [key for key in EVERY_KEY if key.rules.pattern or key.type == "int"], ids=lambda key: key.path
)
def test_load_recipe_hint_of_a_refused_option_says_more_than_the_refusal(load, key) -> None:
    error = refusal(load, GOOD, [f"{key.path}={'a/ b' if key.rules.pattern else -7}"])
    assert error.hint
    assert "a string" not in error.hint
    assert error.hint not in error.message


def test_load_recipe_option_of_a_huge_number_reads_the_same_whatever_its_length(load) -> None:
    short, long = (refusal(load, GOOD, [f"train.steps={'9' * digits}"]) for digits in (23, 5000))
    assert said(short) == said(long)
