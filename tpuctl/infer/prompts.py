"""The texts of rows as token ids: many at once, and a text that can't be read is one bad row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpuctl.errors import DataError
from tpuctl.text import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The token ids of the rows that are good, by number; the reason of each of the others."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)


def read_prompts(tokenizer: Tokenizer, texts: Mapping[int, str]) -> Prompts:
    """The ids of texts by number; bad is one that has a token which the model has no row for."""
    try:
        encoded = tokenizer.encode_prompts(list(texts.values()))
    except DataError:
        return _one_by_one(tokenizer, texts)
    return Prompts(ids={row: ids.tolist() for row, ids in zip(texts, encoded, strict=True)})


def _one_by_one(tokenizer: Tokenizer, texts: Mapping[int, str]) -> Prompts:
    read = Prompts()
    for row, text in texts.items():
        try:
            read.ids[row] = tokenizer.encode_prompt(text).tolist()
        except DataError as error:
            read.bad[row] = error.message
    return read
