"""The tokenizer that a plan names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from tpuctl.errors import DataError
from tpuctl.text.file import FileTokenizer
from tpuctl.text.special import SpecialTokens, TokenizerConfig, separator_id, special_tokens
from tpuctl.text.tokenizer import ByteTokenizer, Tokenizer

TOKENIZER_FILE = "tokenizer.json"
SENTENCEPIECE_FILE = "tokenizer.model"
BPE_MIN_VOCAB_SIZE = 257


def load_tokenizer(name: str, *, directory: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer a plan names, checked against the model's embedding.

    Args:
        name: ``bytes``, ``bpe:N`` (trained before; lies in ``directory``), or the path of a ``tokenizer.json``, of a
            ``tokenizer.model`` or of a folder with one of them.
        directory: The run directory.
        vocab_size: Rows of the model's embedding; an id beyond it would be clamped in silence by a gather.

    Raises:
        DataError: no such tokenizer, an unreadable file, or ids the model has no row for. Special tokens, which no text
            becomes unless asked to, may lie beyond the rows: they are refused when they are met.
    """
    if name == "bytes":
        return _fitting(ByteTokenizer(), name=name, rows=vocab_size)
    path = tokenizer_path(name, directory=directory)
    declared = bpe_vocab_size(name)
    if not path.is_file():
        raise DataError(
            f"no tokenizer at {path}",
            hint="data.tokenizer is bytes, bpe:N, or the path of a tokenizer.json or tokenizer.model",
        )
    tokenizer = _load(path, rows=vocab_size)
    if declared is not None and tokenizer.vocab_size > declared:
        raise DataError(
            f"{directory / TOKENIZER_FILE} has {tokenizer.vocab_size} ids, the recipe says {name}",
            hint="the run directory holds another run's tokenizer: choose a new run name",
        )
    return _fitting(tokenizer, name=name, rows=vocab_size)


def tokenizer_path(name: str, *, directory: Path) -> Path:
    """Where the file of ``bpe:N`` or of a path lies; a folder stands for the file in it."""
    path = directory if bpe_vocab_size(name) is not None else Path(name)
    if path.suffix in (".json", ".model") and not path.is_dir():
        return path
    only_model = not (path / TOKENIZER_FILE).exists() and (path / SENTENCEPIECE_FILE).exists()
    return path / (SENTENCEPIECE_FILE if only_model else TOKENIZER_FILE)


def bpe_vocab_size(name: str) -> int | None:
    """N of ``bpe:N``, or None for every other tokenizer.

    Raises:
        DataError: N is no number, or too small to hold all bytes and the separator.
    """
    kind, colon, size = name.partition(":")
    if kind != "bpe" or not colon:
        return None
    if not size.isascii() or not size.isdigit() or int(size) < BPE_MIN_VOCAB_SIZE:
        raise DataError(f"tokenizer {name!r}: expected bpe:N with N at least {BPE_MIN_VOCAB_SIZE}")
    return int(size)


def _fitting(tokenizer: Tokenizer, *, name: str, rows: int) -> Tokenizer:
    if tokenizer.vocab_size > rows:
        last = tokenizer.vocab_size - 1
        raise DataError(
            f"tokenizer {name}: id {last} ({tokenizer.decode([last])!r}) has no row in the model's embedding "
            f"of {rows} rows",
            hint=f"set model.vocab_size to at least {tokenizer.vocab_size}",
        )
    return tokenizer


def _load(path: Path, *, rows: int) -> FileTokenizer:
    config = TokenizerConfig.beside(path)
    adds_bos: bool | None = config.values.get("add_bos_token")
    if path.suffix == ".model":
        # Here, since a cluster's image needs sentencepiece only where such a file is named.
        from tpuctl.text import sentencepiece_model

        model = sentencepiece_model.read_model(path)
        backend = sentencepiece_model.to_backend(model)
        config = TokenizerConfig(folder=config.folder, values={**sentencepiece_model.names_of(model), **config.values})
        # Llama's tokenizers, for which this format is known, begin every text with it unless they say otherwise.
        adds_bos = adds_bos is not False
    else:
        backend = _read_json(path)
    _add_tokens(backend, config, path=path)
    special = special_tokens(config, id_of=backend.token_to_id)
    separator = separator_id(special, id_of=backend.token_to_id, path=path)
    return FileTokenizer(
        backend,
        special=special,
        separator_id=separator,
        adds_bos=adds_bos,
        rows=_needed_rows(backend, special, rows=rows),
    )


def _read_json(path: Path) -> tokenizers.Tokenizer:
    text = path.read_text(encoding="utf-8")
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises the bare class, nothing narrower
        raise DataError(f"{path} is not a tokenizer.json: {error}") from error


def _add_tokens(backend: tokenizers.Tokenizer, config: TokenizerConfig, *, path: Path) -> None:
    """Add what the config lists beyond the file, and let the library know which tokens are special."""
    for number, flags in config.added().items():
        _add_token(backend, number, flags, path=path)
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    named = [text for text in config.names().values() if text not in known and backend.token_to_id(text) is not None]
    backend.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in named])


def _add_token(backend: tokenizers.Tokenizer, number: int, flags: Mapping[str, Any], *, path: Path) -> None:
    if number in backend.get_added_tokens_decoder():
        return
    wanted = {key: bool(flags[key]) for key in ("lstrip", "rstrip", "normalized", "single_word") if key in flags}
    special = bool(flags.get("special", False))
    backend.add_tokens([tokenizers.AddedToken(flags["content"], special=special, **wanted)])
    found = backend.token_to_id(flags["content"])
    if found != number:
        raise DataError(
            f"{path}: its tokenizer_config.json gives {flags['content']!r} the id {number}, the file itself {found}",
            hint="the two files belong to different models",
        )


def _needed_rows(backend: tokenizers.Tokenizer, special: SpecialTokens, *, rows: int) -> int:
    """``rows``, or more where a token that any text may become, or that ends one, lies beyond them."""
    added = {number for number, token in backend.get_added_tokens_decoder().items() if token.special}
    texts = set(backend.get_vocab(with_added_tokens=True).values()) - added
    return max([rows, *(1 + number for number in (*texts, *special.eos_ids[:1]))])
