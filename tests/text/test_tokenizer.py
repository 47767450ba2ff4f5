from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from tpuctl.errors import DataError
from tpuctl.text import (
    SEPARATOR,
    ByteTokenizer,
    Tokenizer,
    bpe_vocab_size,
    load_tokenizer,
    tokenizer_path,
    train_bpe,
)

SAMPLES = [
    "plain text, twice: plain text",
    "def f(x):\n        return x\n",
    "naïve façade, 漢字, 🙂🙂🏽, e\u0301, \ufeffBOM, \u2028",
    "\x00\x01 control \x7f\r\n\t",
    "   spaces   ",
    f"text that spells {SEPARATOR} is text",
    "x",
    "",
]


@pytest.fixture(scope="module")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_bpe(SAMPLES * 3, vocab_size=320, path=folder / "tokenizer.json")
    return folder


@pytest.fixture(params=["bytes", "bpe:320"])
def tokenizer(request: pytest.FixtureRequest, bpe_folder: Path) -> Tokenizer:
    return load_tokenizer(request.param, directory=bpe_folder, vocab_size=320)


@pytest.mark.parametrize("text", SAMPLES)
def test_tokenizer_round_trip_keeps_every_character(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids.tolist()) == text


@pytest.mark.parametrize("text", SAMPLES)
def test_tokenizer_accounts_for_every_byte(tokenizer: Tokenizer, text: str) -> None:
    encoded = tokenizer.encode(text)
    assert encoded.num_bytes.sum() == len(text.encode())
    assert (encoded.num_bytes >= 0).all()
    assert encoded.ids.shape == encoded.num_bytes.shape


@pytest.mark.parametrize("text", SAMPLES)
def test_tokenizer_never_gives_the_separator(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.separator_id not in tokenizer.encode(text).ids
    assert tokenizer.encode(text).ids.max(initial=0) < tokenizer.vocab_size


def test_tokenizer_on_random_text_accounts_for_every_byte(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x20, 0xD7FF)])) for _ in range(50))
        encoded = tokenizer.encode(text)
        assert encoded.num_bytes.sum() == len(text.encode())
        assert tokenizer.decode(encoded.ids.tolist()) == text


def test_tokenizer_of_a_text_longer_than_a_span_loses_nothing(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.text.file._SPAN_CHARACTERS", 7)
    text = "a longer text, naïve 漢字 🙂 " * 20
    encoded = tokenizer.encode(text)
    assert tokenizer.decode(encoded.ids.tolist()) == text
    assert encoded.num_bytes.sum() == len(text.encode())


def test_bytes_ids_are_the_bytes() -> None:
    assert ByteTokenizer().encode("é").ids.tolist() == [0xC3, 0xA9]
    assert (ByteTokenizer().vocab_size, ByteTokenizer().separator_id) == (257, 256)


def test_train_bpe_twice_in_different_processes_gives_the_same_file(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from tpuctl.text import train_bpe; "
        "texts = [f'{n} bottles of {n * n} on the wall {n % 7}' for n in range(2000)]; "
        "train_bpe(texts, vocab_size=700, path=pathlib.Path(sys.argv[1]))"
    )
    paths = [tmp_path / name for name in ("one.json", "two.json")]
    for path in paths:
        subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == paths


def test_train_bpe_on_little_text_keeps_below_the_size(bpe_folder: Path) -> None:
    tokenizer = load_tokenizer("bpe:4096", directory=bpe_folder, vocab_size=4096)
    assert 257 < tokenizer.vocab_size <= 320


@pytest.mark.parametrize("name", ["bpe:", "bpe:many", "bpe:-5", "bpe:256", "bpe:²"])
def test_bpe_vocab_size_of_nonsense_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="bpe:N"):
        bpe_vocab_size(name)


def test_bpe_vocab_size_of_other_names_is_none() -> None:
    assert [bpe_vocab_size(name) for name in ("bytes", "bpe", "/a/tokenizer.json", "bpe:2048")] == [None] * 3 + [2048]


def test_load_tokenizer_with_ids_beyond_the_model_names_token_and_sizes(bpe_folder: Path) -> None:
    with pytest.raises(DataError, match=r"id 319 .* embedding of 300 rows") as caught:
        load_tokenizer(str(bpe_folder), directory=Path("/elsewhere"), vocab_size=300)
    assert caught.value.hint == "set model.vocab_size to at least 320"


def test_load_tokenizer_of_another_run_is_refused(bpe_folder: Path) -> None:
    with pytest.raises(DataError, match="has 320 ids, the recipe says bpe:300"):
        load_tokenizer("bpe:300", directory=bpe_folder, vocab_size=4096)


def test_load_tokenizer_that_is_missing_or_broken_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer at"):
        load_tokenizer(str(tmp_path / "none.json"), directory=tmp_path, vocab_size=4096)
    for content in ("{}", "not json", '{"model": {"type": "Unheard"}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(DataError, match=r"tokenizer\.json is not a tokenizer\.json"):
            load_tokenizer(str(tmp_path), directory=tmp_path, vocab_size=4096)


def test_load_tokenizer_of_a_user_takes_the_end_token_its_config_names(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path, special=["</s>", "<end>"])
    loaded = load_tokenizer(str(path), directory=tmp_path, vocab_size=100)
    assert loaded.decode([loaded.separator_id, 1]) == "b"
    for eos in ("<end>", {"content": "<end>", "special": True}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
        assert load_tokenizer(str(path), directory=tmp_path, vocab_size=100).separator_id == 5


def test_load_tokenizer_of_a_user_without_an_end_token_says_what_to_do(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path, special=[])
    with pytest.raises(DataError, match="no token that ends a text") as caught:
        load_tokenizer(str(path), directory=tmp_path, vocab_size=100)
    assert "tokenizer_config.json" in (caught.value.hint or "")


def test_load_tokenizer_of_a_user_ignores_its_padding_and_truncation(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path, special=["</s>"], limits=True)
    tokenizer = load_tokenizer(str(path), directory=tmp_path, vocab_size=100)
    assert tokenizer.encode("a b c a b c").ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert tokenizer.encode("a").ids.tolist() == [0]


def test_load_tokenizer_of_a_user_that_drops_characters_accounts_for_them(tmp_path: Path) -> None:
    path = word_tokenizer(tmp_path, special=["</s>"])
    encoded = load_tokenizer(str(path), directory=tmp_path, vocab_size=100).encode("  a  é 漢 b  ")
    assert encoded.num_bytes.sum() == len("  a  é 漢 b  ".encode())


def test_tokenizer_path_of_a_folder_is_the_file_in_it() -> None:
    run = Path("/run")
    assert tokenizer_path("bpe:300", directory=run) == run / "tokenizer.json"
    assert tokenizer_path("/models/x", directory=run) == Path("/models/x/tokenizer.json")
    assert tokenizer_path("/models/x/tok.json", directory=run) == Path("/models/x/tok.json")


def word_tokenizer(folder: Path, *, special: list[str], limits: bool = False) -> Path:
    """A tokenizer.json as another library writes it: words a, b, c and an unknown one."""
    words = {"a": 0, "b": 1, "c": 2, "[UNK]": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens(special)
    if limits:
        backend.enable_padding(length=8)
        backend.enable_truncation(2)
    path = folder / "tokenizer.json"
    backend.save(str(path))
    return path
