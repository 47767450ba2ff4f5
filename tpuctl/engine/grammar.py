"""Structured output: grammars compiled to masks over token ids, by llguidance. No jax, and no text but the grammar's.

The compiler is made once per tokenizer, which takes a second or so; a grammar is made per request. Masks take some
ten microseconds, on the host, after the token before is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import llguidance
import numpy as np
from jaxtyping import Int32

from tpuctl.engine.request import RequestError

# A fifth of the library's own: enough for a choice of ten thousand words, and what is refused is refused within a
# second or two. With the library's, an expression such as (a{1000}){1000} takes half a minute.
_LIMITS = llguidance.LLParserLimits(initial_lexer_fuel=200_000, step_lexer_fuel=50_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """A tokenizer that is no ``tokenizer.json``.

    Attributes:
        tokens: The bytes of each id, none for an id that is no token.
        special_ids: Those that no text spells.
        encode: How a text is cut into them.
    """

    tokens: Sequence[bytes]
    special_ids: tuple[int, ...]
    encode: Callable[[str], list[int]]


class GrammarCompiler:
    """Grammars over one tokenizer."""

    def __init__(self, tokenizer: llguidance.LLTokenizer, *, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        """``vocab_size`` is the engine's number of token ids."""
        self._eos_ids = eos_ids
        self._num_words = -(-vocab_size // 32)
        self._tokenizer = tokenizer

    @classmethod
    def of_json(cls, tokenizer_json: str, *, vocab_size: int, eos_ids: tuple[int, ...]) -> Self:
        """Over the tokenizer that this text of a ``tokenizer.json`` describes."""
        tokenizer = llguidance.LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_ids))
        return cls(tokenizer, vocab_size=vocab_size, eos_ids=eos_ids)

    @classmethod
    def of_vocabulary(cls, vocabulary: Vocabulary, *, eos_ids: tuple[int, ...]) -> Self:
        """Over the tokens of another tokenizer."""
        size = len(vocabulary.tokens)
        wrapper = llguidance.TokenizerWrapper(_Wrapped(vocabulary, eos_id=eos_ids[0]))
        tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=size, eos_token=list(eos_ids))
        return cls(tokenizer, vocab_size=size, eos_ids=eos_ids)

    def json_schema(self, schema: dict[str, Any], *, param: str = "grammar") -> CompiledGrammar:
        """JSON documents that fit a schema.

        Raises:
            RequestError: It is no schema, or uses what can't be bound; ``param`` is the field at fault.
        """
        return self._compiled(lambda: llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)), param)

    def regex(self, pattern: str, *, param: str = "grammar") -> CompiledGrammar:
        """Texts that match as a whole (Rust's syntax, no look-around).

        Raises:
            RequestError: It is no such expression.
        """
        return self._compiled(lambda: llguidance.LLMatcher.grammar_from_regex(pattern), param)

    def lark(self, grammar: str, *, param: str = "grammar") -> CompiledGrammar:
        """Texts of a context-free grammar in Lark's syntax.

        Raises:
            RequestError: It is no such grammar.
        """
        return self._compiled(lambda: llguidance.LLMatcher.grammar_from_lark(grammar), param)

    def _compiled(self, source: Any, param: str) -> CompiledGrammar:
        try:
            matcher = llguidance.LLMatcher(self._tokenizer, source(), log_level=0, limits=_LIMITS)
        except ValueError as error:
            raise RequestError(_reason(str(error)), param=param) from error
        return CompiledGrammar(matcher, num_words=self._num_words, eos_ids=self._eos_ids, param=param)


class CompiledGrammar:
    """A ``Grammar`` of the engine: the place one sample has come to."""

    def __init__(self, matcher: llguidance.LLMatcher, *, num_words: int, eos_ids: tuple[int, ...], param: str) -> None:
        """Raises ``RequestError`` if the matcher is in an error."""
        self._matcher = matcher
        self._num_words = num_words
        self._eos_ids = eos_ids
        self._param = param
        self._mask = self._next_mask()

    def mask(self) -> Int32[np.ndarray, " words"]:
        """See ``Grammar``. Once there is nothing to add, only the ends of text."""
        return self._mask

    def accept(self, token: int) -> None:
        """See ``Grammar``."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            self._mask = self._next_mask()

    def fork(self) -> CompiledGrammar:
        """See ``Grammar``."""
        copy = self._matcher.deep_copy()
        return CompiledGrammar(copy, num_words=self._num_words, eos_ids=self._eos_ids, param=self._param)

    def _next_mask(self) -> Int32[np.ndarray, " words"]:
        # llguidance adds a word where the last one is full.
        words = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: self._num_words]
        if self._matcher.is_error():
            raise RequestError(_reason(self._matcher.get_error()), param=self._param)
        if not self._matcher.is_stopped():
            return words
        ends = np.zeros(words.size, np.uint32)
        for token in self._eos_ids:
            ends[token // 32] |= np.uint32(1 << (token % 32))
        return ends.view(np.int32)


def _reason(said: str) -> str:
    """What is wrong, without the state of the parser that llguidance adds."""
    reason = said.partition("<state>")[0].strip()
    return "no text fits it" if reason == "NoExtensionBias" else reason


class _Wrapped:
    """A vocabulary under the names that llguidance asks for."""

    def __init__(self, vocabulary: Vocabulary, *, eos_id: int) -> None:
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = list(vocabulary.special_ids)
        self._encode = vocabulary.encode

    def __call__(self, text: bytes) -> list[int]:
        """Its ids."""
        return self._encode(text.decode("utf-8", errors="replace"))
