"""Making a run's text ready, once and in one process: the corpus found or built, the tokenizer trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpuctl.plan.schema import Plan
from tpuctl.text import load_tokenizer
from tpuctl.train.data.corpus import open_corpus
from tpuctl.train.data.stream import Stream, TokenizerRef, eval_stream, prepare_tokenizer, train_stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """The streams of a run, as every host will read them. ``real_vocab``: how many ids the tokenizer has."""

    train: Stream
    held_out: Stream | None
    real_vocab: int


def prepare(plan: Plan) -> Text:
    """The text of a plan.

    Raises:
        DataError: it can't be read as the plan says.
    """
    uri, eval_uri = plan.data.uri, plan.data.eval_uri
    column = plan.data.text_column
    corpus = open_corpus(uri, text_column=column)
    tokenizer = TokenizerRef(name=plan.data.tokenizer, directory=plan.run.directory, vocab_size=plan.model.vocab_size)
    prepare_tokenizer(tokenizer, corpus=corpus)
    held_out = None
    if eval_uri is not None:
        held_out = eval_stream(
            plan.data, plan.train, corpus=open_corpus(eval_uri, text_column=column), tokenizer=tokenizer
        )
    return Text(
        train=train_stream(plan.data, plan.train, corpus=corpus, tokenizer=tokenizer),
        held_out=held_out,
        real_vocab=load_tokenizer(
            tokenizer.name, directory=Path(tokenizer.directory), vocab_size=tokenizer.vocab_size
        ).vocab_size,
    )
