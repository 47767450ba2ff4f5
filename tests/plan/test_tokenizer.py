"""How many ids a tokenizer.json has, read where the plan is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from tpuctl.errors import RecipeError
from tpuctl.plan.tokenizer import file_ids

MODELS = {
    "bpe": models.BPE(vocab={"a": 0, "b": 7}, merges=[]),
    "words": models.WordLevel({"a": 0, "b": 7}, unk_token="a"),
    "pieces": models.WordPiece({"a": 0, "b": 7}, unk_token="a"),
    "unigram": models.Unigram([(letter, -1.0) for letter in "abcdefgh"], unk_id=0),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("added", [[], ["<s>", "</s>"]])
def test_file_ids_are_one_more_than_the_largest_whatever_the_model(
    tmp_path: Path, model: str, added: list[str]
) -> None:
    backend = tokenizers.Tokenizer(MODELS[model])
    backend.add_special_tokens(added)
    backend.save(str(tmp_path / "tokenizer.json"))
    expected = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    assert file_ids(tmp_path) == file_ids(tmp_path / "tokenizer.json") == expected


def test_file_ids_of_what_is_not_here_is_none(tmp_path: Path) -> None:
    assert file_ids(tmp_path) is None
    assert file_ids(tmp_path / "none" / "tokenizer.json") is None


def write(folder: Path, content: Any) -> str:
    (folder / "tokenizer.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return f"data.tokenizer={folder}"


def test_plan_model_takes_the_number_of_ids_from_the_file(make_plan, tmp_path: Path) -> None:
    tokenizer = write(tmp_path, {"model": {"vocab": {"a": 0, "b": 500}}, "added_tokens": [{"id": 600}]})
    assert make_plan(tokenizer).model.vocab_size == 640
    assert make_plan(tokenizer, "model.vocab_size=700").model.vocab_size == 700
    with pytest.raises(RecipeError, match="600 rows are too few for the 601 ids"):
        make_plan(tokenizer, "model.vocab_size=600")


@pytest.mark.parametrize("content", ["{", "[]", "{}", {"model": {}}, {"model": {"vocab": 5}}, "null"])
def test_plan_model_of_a_file_that_is_no_tokenizer_names_it(make_plan, tmp_path: Path, content: Any) -> None:
    with pytest.raises(RecipeError, match=r"is not a tokenizer\.json") as caught:
        make_plan(write(tmp_path, content))
    assert caught.value.where is not None
    assert caught.value.where.key == "data.tokenizer"
