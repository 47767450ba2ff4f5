"""Forms of answers as grammars of the engine, compiled over the tokenizer that is served."""

from __future__ import annotations

import json

from tpuctl.engine.compiling import compiler_of
from tpuctl.engine.request import Grammar
from tpuctl.serve.forms import Form
from tpuctl.serve.generation import MakeGrammar
from tpuctl.text import Tokenizer


def grammar_maker(tokenizer_json: str | None, *, tokenizer: Tokenizer) -> MakeGrammar:
    """Makes grammars of forms; raises ``RequestError`` of those that are none."""
    compiler = compiler_of(tokenizer, tokenizer_json=tokenizer_json)

    def make(form: Form) -> Grammar:
        if form.kind == "json_schema":
            return compiler.json_schema(json.loads(form.source), param=form.param)
        if form.kind == "regex":
            return compiler.regex(form.source, param=form.param)
        return compiler.lark(form.source, param=form.param)

    return make
