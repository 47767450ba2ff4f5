"""Making a run's text ready, once and in one process: the corpus found or built, the tokenizer trained."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.entrypoints.corpus import dataset_uris
from tpuctl.entrypoints.emit import tell_note
from tpuctl.plan.schema import TrainingPlan
from tpuctl.storage import join
from tpuctl.text import Tokenizer
from tpuctl.text.place import TokenizerRef
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import open_corpus
from tpuctl.train.data.stream import Stream, eval_stream, prepare_tokenizer, require_document, train_stream


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """The streams of a run, as every host will read them."""

    train: Stream
    held_out: Stream | None

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of both."""
        return self.train.tokenizer.load()


def prepare(plan: TrainingPlan) -> Text:
    """The text of a plan.

    Raises:
        DataError: it can't be read as the plan says.
        WeightsError: the built-in model that its tokenizer belongs to can't be fetched.
    """
    data, columns = plan.data, Columns.of(plan.data)
    uris = dataset_uris(data.uri, eval_uri=data.eval_uri, directory=join(plan.run.directory, "dataset"))
    model_folder(data.tokenizer, tell=tell_note)  # to tell of it: whoever loads the tokenizer finds it there
    corpus = open_corpus(uris.train_uri, columns=columns, tell=tell_note)
    tokenizer = TokenizerRef(name=plan.data.tokenizer, directory=plan.run.directory, vocab_size=plan.model.vocab_size)
    prepare_tokenizer(tokenizer, corpus=corpus)
    held_out = None
    if uris.eval_uri is not None:
        held_out = eval_stream(
            data, plan.train, corpus=open_corpus(uris.eval_uri, columns=columns, tell=tell_note), tokenizer=tokenizer
        )
    text = Text(train=train_stream(data, plan.train, corpus=corpus, tokenizer=tokenizer), held_out=held_out)
    for stream in (text.train, text.held_out):
        if stream is not None:
            require_document(stream)
    return text
