"""Beginning, ending and padding tokens, and prompts that are given them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from tpuctl.errors import DataError
from tpuctl.text import ByteTokenizer, load_tokenizer

WORDS = {"a": 0, "b": 1, "<s>": 2, "</s>": 3, "<pad>": 4, "<|end|>": 5, "[UNK]": 6}


def write_tokenizer(folder: Path, *, bos: bool = False, special: tuple[str, ...] = ("<s>", "</s>")) -> Path:
    backend = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(special))
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    backend.save(str(folder / "tokenizer.json"))
    return folder


def write_json(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def load(folder: Path, rows: int = 100) -> Any:
    return load_tokenizer(str(folder), directory=folder, vocab_size=rows)


def test_special_tokens_are_those_of_the_config(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    names = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": "<pad>", "unk_token": None}
    write_json(tmp_path, tokenizer_config=names)
    special = load(tmp_path).special
    assert (special.bos_id, special.eos_ids, special.pad_id) == (2, (3,), 4)
    assert special.names == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def test_special_tokens_of_an_older_folder_are_those_of_its_map(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path, tokenizer_config={}, special_tokens_map={"bos_token": {"content": "<s>"}, "eos_token": "</s>"})
    assert load(tmp_path).special.bos_id == 2
    listed = {"added_tokens_decoder": {"3": {"content": "</s>", "special": True}}, "eos_token": "</s>"}
    write_json(tmp_path, tokenizer_config=listed)
    assert load(tmp_path).special.bos_id is None


def test_special_tokens_end_an_answer_with_all_that_any_file_names(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path, tokenizer_config={"eos_token": "<|end|>"}, config={"eos_token_id": 7})
    write_json(tmp_path, generation_config={"eos_token_id": [7, 9]})
    assert load(tmp_path).special.eos_ids == (5, 7, 9)


@pytest.mark.parametrize(
    ("processor", "config", "expected"),
    [
        (True, {}, [2, 0]),
        (False, {}, [0]),
        (False, {"add_bos_token": True}, [2, 0]),
        (True, {"add_bos_token": True}, [2, 0]),
        (False, {"add_bos_token": False}, [0]),
    ],
)
def test_prompt_begins_with_one_bos_or_none_as_the_tokenizer_says(
    tmp_path: Path, processor: bool, config: dict[str, Any], expected: list[int]
) -> None:
    write_tokenizer(tmp_path, bos=processor)
    write_json(tmp_path, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"} | config)
    tokenizer = load(tmp_path)
    assert tokenizer.encode_prompt("a").tolist() == expected
    if expected[0] == 2:
        assert tokenizer.encode_prompt("<s>a").tolist() == expected
        assert tokenizer.encode_prompt("<s> a").tolist() == expected
    assert tokenizer.parse("<s>a").ids.tolist() == [2, 0]
    assert tokenizer.parse("a").ids.tolist() == [0]


def test_prompt_reads_special_tokens_and_text_does_not(tmp_path: Path) -> None:
    tokenizer = load(write_tokenizer(tmp_path))
    assert tokenizer.encode_prompt("a </s> b").tolist() == [0, 3, 1]
    parsed = tokenizer.parse("a </s> b")
    assert parsed.spans.tolist() == [[0, 1], [2, 6], [7, 8]]
    assert parsed.num_bytes.tolist() == [1, 0, 2]
    assert tokenizer.encode("a b").ids.tolist() == [0, 1]


def test_prompt_with_a_token_beyond_the_models_rows_is_refused_when_it_is_met(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    image = {"content": "<image>", "special": True}
    write_json(tmp_path, tokenizer_config={"eos_token": "</s>", "added_tokens_decoder": {"7": image}})
    tokenizer = load(tmp_path, rows=7)
    assert tokenizer.vocab_size == 7
    assert tokenizer.encode_prompt("a").tolist() == [0]
    with pytest.raises(DataError, match="'<image>' is id 7, and the model has 7 rows"):
        tokenizer.encode_prompt("a <image>")
    with pytest.raises(DataError, match="has no row in the model's embedding of 6 rows"):
        load(tmp_path, rows=6)


def test_prompt_with_half_a_character_is_refused(tmp_path: Path) -> None:
    for tokenizer in (load(write_tokenizer(tmp_path)), ByteTokenizer()):
        for read in (tokenizer.encode_prompt, tokenizer.parse):
            with pytest.raises(DataError, match="character 2 of the text"):
                read("a \ud83d")


def test_config_of_another_model_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    listed = {"90": {"content": "<x>", "special": True}}
    write_json(tmp_path, tokenizer_config={"eos_token": "</s>", "added_tokens_decoder": listed})
    with pytest.raises(DataError, match="gives '<x>' the id 90, the file itself 7"):
        load(tmp_path)


def test_config_that_is_no_json_names_the_file(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    for content in ("{", "[]"):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(DataError, match=r"tokenizer_config\.json is not"):
            load(tmp_path)


def test_holes_of_a_vocabulary_are_no_text_and_count_up_to_its_last_id(tmp_path: Path) -> None:
    holed = {**WORDS, "far": 9}
    backend = tokenizers.Tokenizer(models.WordLevel(holed, unk_token="[UNK]"))
    backend.add_special_tokens(["</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path)
    assert tokenizer.vocab_size == 10
    assert tokenizer.decode([0, 8, 11, 9]) == "a far"


def test_prompts_together_have_the_ids_of_each_alone(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, bos=True)
    write_json(tmp_path, tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    for tokenizer in (load(tmp_path), ByteTokenizer()):
        texts = ["a b", "", "<s>a", "b </s>"]
        found = [ids.tolist() for ids in tokenizer.encode_prompts(texts)]
        assert found == [tokenizer.encode_prompt(text).tolist() for text in texts]
        assert tokenizer.encode_prompts([]) == []


def test_bytes_read_the_separator_in_a_prompt_only() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode_prompt("é<|endoftext|>").tolist() == [0xC3, 0xA9, 256]
    parsed = tokenizer.parse("é<|endoftext|>x")
    assert parsed.spans.tolist() == [[0, 1], [0, 1], [1, 14], [14, 15]]
    assert parsed.num_bytes.tolist() == [1, 1, 0, 1]
