"""Against SentencePiece itself, on models trained here: the same ids, the same text."""

from __future__ import annotations

import io
import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from tpuctl.errors import DataError
from tpuctl.text import load_tokenizer

PROSE = [part for topic in pydoc_data.topics.topics.values() for part in topic.split("\n\n") if part][:1200]
EDGES = [
    "  double  spaces  ",
    " lead",
    "trail ",
    "\n\n\n",
    "\ttab",
    "naïve 漢字 🙂 \u200b",
    "<s> </s> <unk> <0x0A> ▁ <tool>x",
    "   ",
    "",
    "a" * 200,
    "def f(x):\n        return x\n",
]
LLAMA = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
KINDS: dict[str, dict[str, Any]] = {
    "like Llama's": LLAMA,
    "like Gemma's": LLAMA | {"add_dummy_prefix": False, "user_defined_symbols": ["<tool>", "\n\n", "▁▁"]},
    "normalised": {"byte_fallback": True},
}


def write_model(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    buffer = io.BytesIO()
    chosen = {"model_type": "bpe", "vocab_size": 600, "character_coverage": 0.995, "minloglevel": 2} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(PROSE[:400]), model_writer=buffer, **chosen)
    (folder / "tokenizer.model").write_bytes(buffer.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    reference = write_model(folder, **KINDS[request.param])
    return load_tokenizer(str(folder), directory=folder, vocab_size=reference.vocab_size()), reference


def test_sentencepiece_model_gives_the_ids_of_sentencepiece(pair: Any) -> None:
    tokenizer, reference = pair
    different = [text for text in PROSE + EDGES if tokenizer.encode(text).ids.tolist() != reference.encode(text)]
    assert different == []


def test_sentencepiece_model_gives_the_text_of_sentencepiece(pair: Any) -> None:
    tokenizer, reference = pair
    ids = [reference.encode(text) for text in PROSE[:300] + EDGES]
    assert [tokenizer.decode(each) for each in ids] == [reference.decode(each) for each in ids]


def test_sentencepiece_model_puts_one_bos_before_a_prompt(pair: Any) -> None:
    tokenizer, reference = pair
    expected = [reference.bos_id(), *reference.encode("hello")]
    assert tokenizer.encode_prompt("hello").tolist() == expected
    assert tokenizer.encode_prompt("<s>hello").tolist() == expected
    assert tokenizer.special.eos_ids == (reference.eos_id(),)


def test_sentencepiece_model_takes_further_tokens_from_its_config(tmp_path: Path) -> None:
    reference = write_model(tmp_path, **LLAMA)
    size = reference.vocab_size()
    added = {str(size): {"content": "<|end|>", "special": True}, str(size + 1): {"content": "<note>", "special": False}}
    config = {"added_tokens_decoder": added, "eos_token": "<|end|>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(str(tmp_path), directory=tmp_path, vocab_size=size + 2)
    assert tokenizer.encode_prompt("<note><|end|>").tolist() == [size + 1, size]
    assert tokenizer.separator_id == size


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model_type": "unigram"}, "no BPE"),
        ({"treat_whitespace_as_suffix": True}, "behind a word"),
        ({"user_defined_symbols": ["<tool>"]}, "symbols of its own"),
    ],
)
def test_sentencepiece_model_that_would_get_other_ids_is_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    write_model(tmp_path, **options)
    with pytest.raises(DataError, match=said) as caught:
        load_tokenizer(str(tmp_path), directory=tmp_path, vocab_size=4096)
    assert "tokenizer.json" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 40])
def test_sentencepiece_model_that_is_none_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.model is not a SentencePiece model"):
        load_tokenizer(str(tmp_path), directory=tmp_path, vocab_size=4096)
