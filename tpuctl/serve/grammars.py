"""``response_format`` as a grammar of the engine, compiled over the tokenizer that is served."""

from __future__ import annotations

from tpuctl.engine.grammar import GrammarCompiler
from tpuctl.engine.request import Grammar
from tpuctl.serve.generation import MakeGrammar
from tpuctl.serve.protocol.formats import ResponseFormat
from tpuctl.text import Tokenizer

_PARAM = "response_format"


def grammar_maker(tokenizer_json: str, *, tokenizer: Tokenizer) -> MakeGrammar:
    """Makes grammars of forms; raises ``RequestError`` of those that are none."""
    compiler = GrammarCompiler(tokenizer_json, vocab_size=tokenizer.vocab_size, eos_ids=tokenizer.special.eos_ids)

    def make(form: ResponseFormat) -> Grammar:
        if form.json_schema is not None:
            return compiler.json_schema(form.json_schema.schema_, param=_PARAM)
        if form.regex is not None:
            return compiler.regex(form.regex, param=_PARAM)
        if form.grammar is not None:
            return compiler.lark(form.grammar, param=_PARAM)
        return compiler.json_schema({"type": "object"}, param=_PARAM)

    return make
