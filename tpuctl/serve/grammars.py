"""Forms of answers as grammars of the engine, compiled over the tokenizer that is served."""

from __future__ import annotations

import json

from tpuctl.engine.grammar import GrammarCompiler, Vocabulary
from tpuctl.engine.request import Grammar
from tpuctl.serve.forms import Form
from tpuctl.serve.generation import MakeGrammar
from tpuctl.text import Tokenizer


def grammar_maker(tokenizer_json: str | None, *, tokenizer: Tokenizer) -> MakeGrammar:
    """Makes grammars of forms; raises ``RequestError`` of those that are none. A tokenizer that is no
    ``tokenizer.json`` is asked for each of its tokens."""
    eos_ids = tokenizer.special.eos_ids
    if tokenizer_json is None:
        compiler = GrammarCompiler.of_vocabulary(_vocabulary(tokenizer), eos_ids=eos_ids)
    else:
        compiler = GrammarCompiler.of_json(tokenizer_json, vocab_size=tokenizer.vocab_size, eos_ids=eos_ids)

    def make(form: Form) -> Grammar:
        if form.kind == "json_schema":
            return compiler.json_schema(json.loads(form.source), param=form.param)
        if form.kind == "regex":
            return compiler.regex(form.source, param=form.param)
        return compiler.lark(form.source, param=form.param)

    return make


def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    special = tokenizer.special
    named = {special.bos_id, special.pad_id, tokenizer.separator_id, *special.eos_ids} - {None}
    return Vocabulary(
        tokens=[tokenizer.spelled(number) for number in range(tokenizer.vocab_size)],
        special_ids=tuple(sorted(number for number in named if number is not None)),
        encode=lambda text: [int(number) for number in tokenizer.encode(text).ids],
    )
