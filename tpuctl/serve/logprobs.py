"""Log probabilities as the two endpoints write them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from tpuctl.engine.request import TokenLogprobs
from tpuctl.text import Tokenizer

# JSON has no -Infinity: a token that can't be drawn at all is told as OpenAI does.
_LOWEST = -9999.0


def chat_logprobs(items: Sequence[TokenLogprobs], *, tokenizer: Tokenizer) -> dict[str, Any]:
    """As a chat's choice has them."""
    return {"content": [_with_top(item, tokenizer) for item in items], "refusal": None}


class CompletionLogprobs:
    """As a completion's choice has them; the offsets go on from chunk to chunk."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def document(self, items: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Of these further tokens."""
        tops = [dict(_spelled(self._tokenizer, token, value) for token, value in item.top) for item in items]
        return {
            "tokens": [_text(self._tokenizer, item.token) for item in items],
            "token_logprobs": [_number(item.logprob) for item in items],
            "top_logprobs": tops,
            "text_offset": [self._next_offset(item.token) for item in items],
        }

    def prompt(self, prompt: Sequence[int], items: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Of an echoed prompt: its first token has no prediction."""
        first = prompt[0]
        offset = self._next_offset(first)
        rest = self.document(items)
        return {
            "tokens": [_text(self._tokenizer, first), *rest["tokens"]],
            "token_logprobs": [None, *rest["token_logprobs"]],
            "top_logprobs": [None, *rest["top_logprobs"]],
            "text_offset": [offset, *rest["text_offset"]],
        }

    def _next_offset(self, token: int) -> int:
        offset = self._offset
        self._offset += len(self._decoder.decode(self._tokenizer.spelled(token)))
        return offset


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two completions' log probabilities, one after the other."""
    return {key: [*first[key], *second[key]] for key in first}


def _with_top(item: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    own = _chat_token(item.token, item.logprob, tokenizer)
    return {**own, "top_logprobs": [_chat_token(token, value, tokenizer) for token, value in item.top]}


def _chat_token(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": _text(tokenizer, token),
        "logprob": _number(logprob),
        "bytes": list(tokenizer.spelled(token)),
    }


def _spelled(tokenizer: Tokenizer, token: int, logprob: float) -> tuple[str, float]:
    return _text(tokenizer, token), _number(logprob)


def _text(tokenizer: Tokenizer, token: int) -> str:
    """The token's text; a part of a character is spelled as OpenAI does, and so stays apart from other parts."""
    data = tokenizer.spelled(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _number(logprob: float) -> float:
    return max(logprob, _LOWEST)
