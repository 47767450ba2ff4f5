"""Which columns of a dataset hold what is learned, and how a row of them becomes one text.

A row of text is that text. A row of a conversation is its messages as JSON, whatever it was in the file: from here on
every dataset is one column of strings, to be decoded, spooled and read in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import pyarrow as pa

from tpuctl.errors import DataError
from tpuctl.plan.chat_schema import ChatPlan
from tpuctl.plan.train_schema import DataPlan

Kind = Literal["text", "messages", "pair"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """The columns to read: one of text, one of messages, or one of prompts and one of answers."""

    kind: Kind
    names: tuple[str, ...]

    @classmethod
    def text(cls, name: str) -> Self:
        """A column of text."""
        return cls(kind="text", names=(name,))

    @classmethod
    def of(cls, data: DataPlan) -> Self:
        """The columns of a plan."""
        chat = data.chat
        return cls.text(data.text_column) if chat is None else cls._of_chat(chat)

    @classmethod
    def _of_chat(cls, chat: ChatPlan) -> Self:
        if chat.prompt_column is not None and chat.answer_column is not None:
            return cls(kind="pair", names=(chat.prompt_column, chat.answer_column))
        assert chat.messages_column is not None, "a plan names the one or the other"
        return cls(kind="messages", names=(chat.messages_column,))

    @property
    def key(self) -> str:
        """The recipe's key to set where a column is missing."""
        return {"text": "data.text_column", "messages": "data.messages_column"}.get(
            self.kind, "data.prompt_column and data.answer_column"
        )

    def check(self, name: str, kind: pa.DataType, *, path: str) -> None:
        """Refuse a column of a type that holds no such thing.

        Raises:
            DataError: names the file, the column and its type.
        """
        if is_text(kind) or (self.kind == "messages" and _is_messages(kind)):
            return
        wanted = "a list of structs with role and content, or their JSON as string"
        raise DataError(
            f"{path}: column {name!r} is {kind}, expected {wanted if self.kind == 'messages' else 'string'}",
            hint=f"name another column in {self.key}, or write this one so",
        )

    def rows(self, batch: pa.RecordBatch, *, path: str) -> pa.Array:
        """The rows of a batch as ``large_string``, null where there is nothing in one.

        Raises:
            DataError: a value that is no text and no JSON.
        """
        arrays = [batch.column(name) for name in self.names]
        if self.kind == "pair":
            return _json(map(_pair, *(self._values(array, path=path) for array in arrays)))
        if is_text(arrays[0].type):
            return arrays[0].cast(pa.large_string())
        try:
            return _json(map(_without_nulls, self._values(arrays[0], path=path)))
        except TypeError as error:
            raise DataError(f"{path}: column {self.names[0]!r}: a message can't be written as JSON: {error}") from error

    def _values(self, array: pa.Array, *, path: str) -> list[Any]:
        try:
            values: list[Any] = array.to_pylist()
        except UnicodeDecodeError as error:
            raise not_utf8(error, path=path, columns=self) from error
        return values


def not_utf8(error: UnicodeDecodeError, *, path: str, columns: Columns) -> DataError:
    """The error of a column that holds bytes which are no UTF-8; writers may leave them unchecked."""
    names = " or ".join(map(repr, columns.names))
    return DataError(f"{path}: column {names} holds bytes that are not UTF-8: {error}", hint="write the text as UTF-8")


def row_texts(row: str, *, kind: Kind) -> Iterator[str]:
    """What is text in a row: itself, or the contents of its messages. Nothing of a row that is no conversation."""
    if kind == "text":
        yield row
        return
    try:
        messages = json.loads(row)
    except (ValueError, RecursionError):
        return
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str) and content:
            yield content.encode(errors="ignore").decode()  # JSON may escape halves of characters


def is_text(kind: pa.DataType) -> bool:
    """Strings of every layout; a column that is null throughout is text with nothing in it."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(test(kind) for test in tests)


def _is_messages(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and pa.types.is_struct(kind.value_type)


def _pair(prompt: str | None, answer: str | None) -> Any:
    if not prompt or not answer:
        return None
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def _without_nulls(value: Any) -> Any:
    """The value without fields that are null: every struct of a column has the fields of all of them."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _json(rows: Iterator[Any]) -> pa.Array:
    texts = [json.dumps(row, ensure_ascii=False) if row else None for row in rows]
    return pa.array(texts, pa.large_string())
