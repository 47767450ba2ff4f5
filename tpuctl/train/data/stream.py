"""A stream: one corpus read through all lanes of a batch. Its spec is small, picklable and the same on every host."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from tpuctl.errors import DataError
from tpuctl.plan.chat_schema import ChatPlan
from tpuctl.plan.train_schema import DataPlan, TrainPlan
from tpuctl.text import bpe_vocab_size, train_bpe
from tpuctl.text.place import TokenizerRef, train_once
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.columns import row_texts
from tpuctl.train.data.corpus import Corpus, iter_rows
from tpuctl.train.data.documents import Documents, TextDocuments, make_at
from tpuctl.train.data.faults import Faults
from tpuctl.train.data.groups import GroupBudget, GroupCache
from tpuctl.train.data.lanes import Lane, LaneSource
from tpuctl.train.data.order import ChunkOrder
from tpuctl.train.data.packing import empty_batch

# The rarest merge of a vocabulary should still be seen often; more text than that only costs start-up time.
_SAMPLE_CHARACTERS_PER_ID = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """What the batches depend on. ``lanes`` is the global batch in rows, whatever the number of hosts."""

    corpus: Corpus
    tokenizer: TokenizerRef
    lanes: int
    sequence_length: int
    packing: bool
    epochs: int
    shuffle: bool
    seed: int
    chat: ChatPlan | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One step of some lanes. ``faults``: how many of each the lanes have met since they were opened."""

    batch: HostBatch
    faults: Int32[np.ndarray, " faults"]


def train_stream(data: DataPlan, train: TrainPlan, *, corpus: Corpus, tokenizer: TokenizerRef) -> Stream:
    """The training stream of a plan."""
    return Stream(
        corpus=corpus,
        tokenizer=tokenizer,
        lanes=train.global_batch,
        sequence_length=train.sequence_length,
        packing=data.packing,
        epochs=data.epochs,
        shuffle=data.shuffle,
        seed=data.seed,
        chat=data.chat,
    )


def eval_stream(data: DataPlan, train: TrainPlan, *, corpus: Corpus, tokenizer: TokenizerRef) -> Stream:
    """The held-out stream of a plan: once through, in one fixed order.

    It is shuffled whatever the plan says, so that the first ``eval_batches`` are a fair sample of the whole.
    """
    return Stream(
        corpus=corpus,
        tokenizer=tokenizer,
        lanes=train.global_batch,
        sequence_length=train.sequence_length,
        packing=data.packing,
        epochs=1,
        shuffle=True,
        seed=0,
        chat=data.chat,
    )


def prepare_tokenizer(ref: TokenizerRef, *, corpus: Corpus) -> None:
    """Train the tokenizer of a run that wants its own, unless a former attempt has. One process of a run calls this."""
    size = bpe_vocab_size(ref.name)
    if size is not None:
        train_once(ref, _sample(corpus, characters=size * _SAMPLE_CHARACTERS_PER_ID))


def train_tokenizer(corpus: Corpus, *, vocab_size: int, path: Path) -> None:
    """Train a byte-level BPE on a sample of the corpus that is always the same, and write it to ``path``."""
    train_bpe(_sample(corpus, characters=vocab_size * _SAMPLE_CHARACTERS_PER_ID), vocab_size=vocab_size, path=path)


def read_stream(
    stream: Stream, *, lanes: Sequence[int], cursor: Int32[np.ndarray, "rows 4"], budget: GroupBudget | None = None
) -> Generator[Piece]:
    """The rows of some lanes, step by step, for ever. ``cursor`` has a row for each of ``lanes``, in that order.

    Raises:
        DataError: a file or row that can't be read; names it.
    """
    faults = Faults()
    source = LaneSource(
        order=ChunkOrder(stream.corpus, lanes=stream.lanes, seed=stream.seed, shuffle=stream.shuffle),
        groups=GroupCache(stream.corpus, lanes=len(lanes), budget=budget),
        documents=_documents(stream),
        faults=faults,
        lanes=stream.lanes,
        epochs=stream.epochs,
        packing=stream.packing,
    )
    opened = [Lane(source, number=lane, cursor=at) for lane, at in zip(lanes, cursor, strict=True)]
    while True:
        batch = empty_batch(len(opened), sequence_length=stream.sequence_length)
        for row, lane in enumerate(opened):
            lane.fill(batch, row)
        yield Piece(batch=batch, faults=faults.counts)


def require_document(stream: Stream) -> None:
    """Make sure that a stream of conversations has one to learn from: a lane would look for it for ever.

    Raises:
        DataError: every row is refused; says why the first one is.
    """
    if stream.chat is None:
        return
    documents, first = _documents(stream), ""
    for place, row in iter_rows(stream.corpus):
        made = make_at(documents, row, place=place)
        if made.document is not None:
            return
        first = first or f"{place}: {made.detail}"
    raise DataError(f"{stream.corpus.uri}: no conversation in it can be learned from. {first}")


def _documents(stream: Stream) -> Documents:
    tokenizer = stream.tokenizer.load()
    if stream.chat is None:
        return TextDocuments(tokenizer)
    # Here, since a cluster's image needs Jinja only where conversations are learned.
    from tpuctl.text.chat import chat_of
    from tpuctl.train.data.conversations import ChatDocuments

    chat = chat_of(tokenizer, folder=stream.tokenizer.folder(), template=stream.chat.template)
    return ChatDocuments(chat, rules=stream.chat, sequence_length=stream.sequence_length)


def _sample(corpus: Corpus, *, characters: int) -> Iterator[str]:
    """Texts for the tokenizer: rows in a fixed random order, so that no one file settles the vocabulary."""
    order = ChunkOrder(corpus, lanes=1, seed=0, shuffle=True)
    groups = GroupCache(corpus, lanes=1)
    left = characters
    for position in range(order.num_chunks):
        chunk = order.chunk(position)
        for row in range(chunk.start, chunk.start + chunk.rows):
            found = groups.text(0, file=chunk.file, group=chunk.group, row=row)
            for text in row_texts(found, kind=corpus.columns.kind) if found else ():
                yield text
                left -= len(text)
            if left <= 0:
                return
