"""Grammars over the tokenizers of ``text``: the one place of this room that knows them. No jax."""

from __future__ import annotations

from tpuctl.engine.grammar import GrammarCompiler, Vocabulary
from tpuctl.text import Tokenizer


def compiler_of(tokenizer: Tokenizer, *, tokenizer_json: str | None) -> GrammarCompiler:
    """The compiler over a tokenizer. One that is no ``tokenizer.json`` is asked for each of its tokens."""
    eos_ids = tokenizer.special.eos_ids
    if tokenizer_json is None:
        return GrammarCompiler.of_vocabulary(_vocabulary(tokenizer), eos_ids=eos_ids)
    return GrammarCompiler.of_json(tokenizer_json, vocab_size=tokenizer.vocab_size, eos_ids=eos_ids)


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    special = tokenizer.special
    named = {special.bos_id, special.pad_id, tokenizer.separator_id, *special.eos_ids} - {None}
    return Vocabulary(
        tokens=[tokenizer.spelled(number) for number in range(tokenizer.vocab_size)],
        special_ids=tuple(sorted(number for number in named if number is not None)),
        encode=lambda text: [int(number) for number in tokenizer.encode(text).ids],
    )
