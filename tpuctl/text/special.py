"""Which tokens begin, end and pad: what the files beside a tokenizer say of it.

``tokenizer_config.json`` names them, ``special_tokens_map.json`` does in older folders, and ``generation_config.json``
and ``config.json`` know further ids that end an answer: chat models have several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.errors import DataError

SEPARATOR = "<|endoftext|>"

_CONFIG = "tokenizer_config.json"
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# A tokenizer.json without a config doesn't say which token ends a text; one of these will.
_KNOWN_ENDS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|eot_id|>", "[SEP]")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecialTokens:
    """The special tokens of a tokenizer.

    Attributes:
        names: Their texts by name (``bos_token`` …), as chat templates are given them.
        bos_id: Begins a text, where there is such a token.
        eos_ids: Any of them ends an answer: the tokenizer's own first, then what the model's files add.
        pad_id: Fills up a row, where there is such a token.
    """

    names: Mapping[str, str]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """``tokenizer_config.json`` and what goes with it, as it stands beside a tokenizer; empty where there is none."""

    folder: Path
    values: Mapping[str, Any]

    @classmethod
    def beside(cls, path: Path) -> TokenizerConfig:
        """The config that belongs to a tokenizer file.

        Raises:
            DataError: a file that is no JSON object.
        """
        folder = path.parent
        values = read_object(folder / _CONFIG)
        # Once a config lists the tokens with their flags, it is whole, and the older map is only a leftover.
        if "added_tokens_decoder" not in values:
            values = {**values, **read_object(folder / "special_tokens_map.json")}
        return cls(folder=folder, values=values)

    def names(self) -> dict[str, str]:
        """The special tokens' texts by name."""
        found = {name: _content(self.values.get(name)) for name in _NAMES}
        return {name: text for name, text in found.items() if text}

    def added(self) -> dict[int, Mapping[str, Any]]:
        """The tokens that the config adds, by id, with their flags."""
        listed = self.values.get("added_tokens_decoder") or {}
        return {int(number): flags for number, flags in sorted(listed.items(), key=lambda item: int(item[0]))}

    def model_end_ids(self) -> Iterator[int]:
        """The ids at which the model's files say that an answer ends."""
        for file in ("generation_config.json", "config.json"):
            found = read_object(self.folder / file).get("eos_token_id")
            yield from [found] if isinstance(found, int) else found or []


def special_tokens(config: TokenizerConfig, *, id_of: Callable[[str], int | None]) -> SpecialTokens:
    """The special tokens of a config, looked up in the vocabulary.

    Where no config names the token that ends a text, it is a well-known one, if there is any.
    """
    names = config.names()
    end = names.get("eos_token") or next((name for name in _KNOWN_ENDS if id_of(name) is not None), None)
    names = names if end is None else {**names, "eos_token": end}
    ids = {name: id_of(text) for name, text in names.items()}
    own = ids.get("eos_token")
    ends = ([] if own is None else [own]) + list(config.model_end_ids())
    return SpecialTokens(
        names=names, bos_id=ids.get("bos_token"), eos_ids=tuple(dict.fromkeys(ends)), pad_id=ids.get("pad_token")
    )


def separator_id(special: SpecialTokens, *, id_of: Callable[[str], int | None], path: Path) -> int:
    """The id between documents: of the token that ends a text, or where no file names one, the model's first end.

    Raises:
        DataError: there is no token that ends a text.
    """
    name = special.names.get("eos_token")
    number = next(iter(special.eos_ids), None) if name is None else id_of(name)
    if number is not None:
        return number
    tried = f"its config names {name!r}" if name else f"tried {', '.join(_KNOWN_ENDS)}"
    raise DataError(
        f"{path}: no token that ends a text ({tried})",
        hint='put a tokenizer_config.json with "eos_token" beside it',
    )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is no file.

    Raises:
        DataError: the file holds something else.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a JSON object")
    return found


def _content(token: Any) -> str | None:
    """The text of a token; older files hold an object with its flags instead."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
