"""From a row to the document that is packed, or what is wrong with it. ``conversations`` has the other kind of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from tpuctl.errors import DataError
from tpuctl.text import Tokenizer
from tpuctl.train.data.packing import Document

Fault = Literal["empty", "malformed", "unanswered", "unrendered", "too long", "cut"]
FAULTS: tuple[Fault, ...] = get_args(Fault)


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """What became of a row: a document, or none, or a part of one; ``fault`` and ``detail`` say why not the whole."""

    document: Document | None
    fault: Fault | None = None
    detail: str = ""


class Documents(Protocol):
    """Makes documents of rows. ``whole``: none is to be cut at a row's end if it fits into one."""

    whole: bool

    def make(self, row: str | None) -> Made:
        """The document of a row.

        Raises:
            DataError: the row is refused, and the recipe says that one such row ends the run.
        """
        ...


def make_at(documents: Documents, row: str | None, *, place: str) -> Made:
    """What becomes of the row at a place, which an error then names."""
    try:
        return documents.make(row)
    except DataError as error:
        raise DataError(f"{place}: {error.message}", hint=error.hint) from error


class TextDocuments:
    """Each row is a text."""

    whole = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def make(self, row: str | None) -> Made:
        """The text between separators."""
        encoded = self._tokenizer.encode(row) if row else None
        if encoded is None or not encoded.ids.size:
            return Made(document=None, fault="empty")
        return Made(document=Document.of(encoded, separator_id=self._tokenizer.separator_id))
