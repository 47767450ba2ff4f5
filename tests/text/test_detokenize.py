"""Text as it comes: in sum the text of all ids, never a part of a character, never the prompt again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models

from tpuctl.text import ByteTokenizer, Tokenizer, load_tokenizer, train_bpe

TEXT = "naïve 🙂 你好 ž"
PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *[f"<0x{byte:02X}>" for byte in range(256)],
    "▁Hello",
    "▁",
    "wor",
    "ld",
    "▁▁",
    "é",
    "a",
]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def sentencepiece_like(folder: Path, *, steps: list[Any]) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(PIECES)}, merges=[]))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(PIECES[:3])
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(str(folder), directory=folder, vocab_size=len(PIECES))


@pytest.fixture(scope="module", params=["bytes", "bpe", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    if request.param == "bytes":
        return ByteTokenizer()
    if request.param == "sentencepiece":
        return sentencepiece_like(folder, steps=LLAMA)
    train_bpe([TEXT, "hello world"] * 9, vocab_size=290, path=folder / "tokenizer.json")
    return load_tokenizer(str(folder), directory=folder, vocab_size=290)


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """The ids of single bytes, whatever the tokenizer would have made of the text."""
    if isinstance(tokenizer, ByteTokenizer):
        return list(data)
    first = PIECES.index("<0x00>")
    if tokenizer.vocab_size == len(PIECES):
        return [first + byte for byte in data]
    backend: Any = tokenizer._backend  # type: ignore[attr-defined]
    letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return [backend.token_to_id(letter) for letter in _letters(letters, data)]


def _letters(splitter: Any, data: bytes) -> list[str]:
    """GPT-2's letters of bytes, taken from the library: a Latin-1 character's two bytes give those of both."""
    table = {}
    for point in range(0x80):
        table[point] = splitter.pre_tokenize_str(chr(point))[0][0]
    for point in range(0x80, 0x800):
        spelled = "".join(part for part, _ in splitter.pre_tokenize_str(chr(point)))
        table.update(zip(chr(point).encode(), spelled, strict=True))
    for text in ("漢", "🙂", "你好", "\U0010ffff", "\uffff"):
        table.update(zip(text.encode(), "".join(part for part, _ in splitter.pre_tokenize_str(text)), strict=True))
    return [table[byte] for byte in data]


def test_detokenizer_of_a_character_in_parts_waits_for_the_last(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    deltas = [detokenizer.add([i]) for i in byte_ids(tokenizer, TEXT.encode())] + [detokenizer.finish()]
    assert "".join(deltas) == TEXT
    assert "\ufffd" not in "".join(deltas)
    assert max(map(len, deltas)) == 1


def test_detokenizer_in_sum_is_decode(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(100):
        ids = [rng.randrange(tokenizer.vocab_size + 3) for _ in range(30)]
        detokenizer = tokenizer.detokenizer()
        assert "".join(detokenizer.add([i]) for i in ids) + detokenizer.finish() == tokenizer.decode(ids)


def test_detokenizer_of_a_character_cut_off_gives_one_replacement_at_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.add(byte_ids(tokenizer, "🙂".encode()[:2])) == ""
    assert detokenizer.finish() == "\ufffd"


def test_detokenizer_of_an_invalid_byte_gives_one_replacement_and_goes_on(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    bad = byte_ids(tokenizer, b"a") + ([0xFF] if isinstance(tokenizer, ByteTokenizer) else [])
    if not isinstance(tokenizer, ByteTokenizer):
        bad += byte_ids(tokenizer, "🙂".encode()[:1])
    deltas = [detokenizer.add([i]) for i in [*bad, *byte_ids(tokenizer, b"bc")]]
    assert "".join(deltas) + detokenizer.finish() == "a\ufffdbc"


def test_detokenizer_behind_a_prompt_that_ends_within_a_character_gives_new_text_only(tokenizer: Tokenizer) -> None:
    smile = byte_ids(tokenizer, "🙂".encode())
    detokenizer = tokenizer.detokenizer([*byte_ids(tokenizer, b"abc "), *smile[:2]])
    assert detokenizer.add(smile[2:]) == "🙂"
    assert detokenizer.add(byte_ids(tokenizer, b"!")) == "!"


def test_detokenizer_leaves_special_tokens_out_unless_they_are_kept(tokenizer: Tokenizer) -> None:
    end = tokenizer.separator_id
    letter = byte_ids(tokenizer, b"x")
    assert tokenizer.detokenizer().add([*letter, end, *letter]) == "xx"
    assert len(tokenizer.detokenizer(keep_special=True).add([*letter, end, *letter])) > 3


def test_detokenizer_keeps_the_space_of_a_word_that_goes_on_from_a_prompt(tmp_path: Path) -> None:
    tokenizer = sentencepiece_like(tmp_path, steps=LLAMA)
    hello, space, world = PIECES.index("▁Hello"), PIECES.index("▁"), [PIECES.index("wor"), PIECES.index("ld")]
    assert tokenizer.decode([hello, space, *world]) == "Hello world"
    assert tokenizer.detokenizer([hello]).add([space, *world]) == " world"
    assert tokenizer.detokenizer([1]).add([hello]) == "Hello"
    assert tokenizer.detokenizer().add([space, hello]) == " Hello"


@pytest.mark.parametrize(
    "steps", [LLAMA, LLAMA[:3], [decoders.Metaspace()], [decoders.Metaspace(prepend_scheme="never")]]
)
def test_detokenizer_of_pieces_agrees_with_the_library_on_valid_text(tmp_path: Path, steps: list[Any]) -> None:
    tokenizer = sentencepiece_like(tmp_path, steps=steps)
    library: Any = tokenizer._backend  # type: ignore[attr-defined]
    rng = random.Random(1)
    pieces = [PIECES.index(piece) for piece in ("▁Hello", "wor", "ld", "é", "a", "</s>")]
    for _ in range(50):
        ids = [rng.choice(pieces) for _ in range(8)]
        assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=True)


def test_detokenizer_of_another_decoder_is_the_librarys(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "[SEP]": 1, "un": 2, "##able": 3, "word": 4}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[SEP]"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path), directory=tmp_path, vocab_size=5)
    detokenizer = tokenizer.detokenizer([4])
    assert "".join(detokenizer.add([i]) for i in (2, 3, 1, 4)) + detokenizer.finish() == " unable word"
    assert tokenizer.decode([2, 3, 4]) == "unable word"
