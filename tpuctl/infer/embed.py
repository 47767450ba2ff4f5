"""The embed task: a text's tokens through an encoder, pooled to one vector, as a list column of fixed size."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from tpuctl.errors import WeightsError
from tpuctl.infer.prompts import read_prompts
from tpuctl.infer.row_texts import texts_of
from tpuctl.infer.task import Tell, Worked, tell_nobody
from tpuctl.model_folder import read_json
from tpuctl.modelspec.encoder import EncoderSpec
from tpuctl.nn.embedder import Embedder, EmbedderOptions
from tpuctl.plan.infer_schema import PoolingKind, TaskPlan
from tpuctl.text import Tokenizer
from tpuctl.text.place import TokenizerRef


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbedOptions:
    """``max_length`` is in tokens, those that begin and end a text counted in."""

    column: str
    pooling: PoolingKind
    normalise: bool
    truncate: bool
    max_length: int
    batch_rows: int


class EmbedTask:
    """Texts to vectors on all devices of this host, each with a share of a batch's rows."""

    def __init__(self, uri: str, tokenizer: Tokenizer, options: EmbedOptions) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._turn = threading.Lock()
        self._embedder = Embedder(
            uri,
            EmbedderOptions(
                pooling=options.pooling,
                normalise=options.normalise,
                max_length=options.max_length,
                batch_rows=options.batch_rows,
            ),
        )

    @classmethod
    def of(cls, plan: TaskPlan, uri: str) -> Self:
        """The task of a plan with the model in a folder.

        Raises:
            WeightsError: no encoder there, or none that takes texts that long.
            DataError: no tokenizer there, or one with ids that the model has no row for.
        """
        assert plan.text_column is not None, "plan.infer fills it in"
        length = plan.max_length or _own_length(uri)
        spec = EncoderSpec.of_config(read_json(uri, "config.json") or {})
        if length > spec.max_length:
            raise WeightsError(f"task.max_length = {length} is more than the {spec.max_length} positions of {uri}")
        options = EmbedOptions(
            column=plan.text_column,
            pooling=plan.pooling,
            normalise=plan.normalise,
            truncate=plan.too_long == "truncate",
            max_length=length,
            batch_rows=plan.batch_rows,
        )
        tokenizer = TokenizerRef(name=uri, directory=uri, vocab_size=spec.vocab_size).load()
        return cls(uri, tokenizer, options)

    def work(self, rows: pa.Table, *, tell: Tell = tell_nobody) -> Worked:
        """A vector for each text; one that is null, no UTF-8 or too long is a bad row."""
        texts = texts_of(rows, self._options.column)
        bad = dict(texts.bad)
        tokens = self._tokens(texts.texts, bad)
        good = np.array(sorted(tokens), np.int64)
        with self._turn:
            began = time.monotonic()
            vectors = self._embedder.numbered(tokens)
            tell(len(vectors))
            busy = time.monotonic() - began
        flat = np.array([vectors[row] for row in good], np.float32).reshape(-1)
        column = pa.FixedSizeListArray.from_arrays(pa.array(flat), self._embedder.size)
        return Worked(
            columns=pa.table({"embedding": column}),
            good=good,
            bad=tuple(sorted(bad.items())),
            tokens=sum(map(len, tokens.values())),
            busy_seconds=busy,
        )

    def _tokens(self, texts: dict[int, str], bad: dict[int, str]) -> dict[int, list[int]]:
        """The token ids of each row that is good."""
        found, limit = {}, self._options.max_length
        read = read_prompts(self._tokenizer, texts)
        bad |= read.bad
        for row, ids in read.ids.items():
            if len(ids) > limit and not self._options.truncate:
                bad[row] = f"{len(ids)} tokens are more than {limit}"
            else:
                # The last token is the one that ends every text.
                found[row] = ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
        return found


def _own_length(uri: str) -> int:
    """The length that the model was made for: sentence-transformers' own file says it, else the config does."""
    own = read_json(uri, "sentence_bert_config.json") or {}
    config = read_json(uri, "config.json") or {}
    return int(own.get("max_seq_length") or config["max_position_embeddings"])
