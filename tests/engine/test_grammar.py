"""Grammars over a tokenizer of single bytes, whose masks are easy to foresee."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tpuctl.engine.grammar import CompiledGrammar, GrammarCompiler
from tpuctl.engine.request import RequestError

EOS = 256


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return byte_compiler(vocab_size=260)


def byte_compiler(*, vocab_size: int) -> GrammarCompiler:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)} | {"</s>": EOS}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    _IDS.update({tokenizer.decode([i]): i for i in range(256)})
    return GrammarCompiler.of_json(tokenizer.to_str(), vocab_size=vocab_size, eos_ids=(EOS,))


_IDS: dict[str, int] = {}


def allowed(grammar: CompiledGrammar) -> set[str]:
    bits = np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")
    letters = {i: letter for letter, i in _IDS.items()} | {EOS: "end"}
    return {letters.get(int(i), "?") for i in np.flatnonzero(bits)}


def test_regex_allows_what_can_come_next_and_the_end_where_it_may(compiler: GrammarCompiler) -> None:
    grammar = compiler.regex("a[bc]+")
    assert allowed(grammar) == {"a"}
    grammar.accept(_IDS["a"])
    assert allowed(grammar) == {"b", "c"}
    grammar.accept(_IDS["c"])
    assert allowed(grammar) == {"b", "c", "end"}


def test_fork_goes_on_by_itself(compiler: GrammarCompiler) -> None:
    grammar = compiler.regex("ab|cd")
    fork = grammar.fork()
    grammar.accept(_IDS["a"])
    assert (allowed(grammar), allowed(fork)) == ({"b"}, {"a", "c"})


def test_json_schema_walked_at_random_gives_documents_that_fit(compiler: GrammarCompiler) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 77}, "kind": {"enum": ["x", "y"]}},
        "required": ["n", "kind"],
        "additionalProperties": False,
    }
    for seed in range(10):
        rng, grammar, text = random.Random(seed), compiler.json_schema(schema), ""
        while (options := allowed(grammar)) != {"end"}:
            letters = sorted(options - {"end"})
            visible = [letter for letter in letters if not letter.isspace()] or letters
            text += rng.choice(visible)
            grammar.accept(_IDS[text[-1]])
        document = json.loads(text)
        assert 3 <= document["n"] <= 77
        assert document["kind"] in ("x", "y")
        assert set(document) == {"n", "kind"}


@pytest.mark.parametrize(
    ("kind", "source"), [("regex", "a(b"), ("lark", "start: nothing_known"), ("json_schema", {"type": "no-such-type"})]
)
def test_what_is_no_grammar_is_refused_by_name(compiler: GrammarCompiler, kind: str, source: Any) -> None:
    with pytest.raises(RequestError) as caught:
        getattr(compiler, kind)(source, param="pattern")
    assert caught.value.param == "pattern"


def test_token_that_does_not_fit_is_refused(compiler: GrammarCompiler) -> None:
    grammar = compiler.regex("ab")
    with pytest.raises(RequestError):
        grammar.accept(_IDS["z"])


@pytest.mark.parametrize("extra", [0, 1, 31])
def test_mask_has_a_bit_for_each_token_and_no_further_word(extra: int) -> None:
    grammar = byte_compiler(vocab_size=320 + extra).regex("a")
    words = -(-(320 + extra) // 32)
    assert len(grammar.mask()) == words
    grammar.accept(_IDS["a"])
    assert len(grammar.mask()) == words
