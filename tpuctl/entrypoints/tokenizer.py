"""Training a tokenizer on a dataset, outside any run. As a command it reads its request as JSON from stdin.

``tpuctl tokenizer train`` starts it as ``python -m tpuctl.entrypoints.tokenizer``, so that the control side loads none
of what it needs. Imports no ray and no jax.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from tpuctl.entrypoints.corpus import dataset_uris
from tpuctl.errors import DataError, TpuctlError, UsageError
from tpuctl.storage import BucketMissingError, NotFoundError, join, open_storage
from tpuctl.text import TOKENIZER_FILE, load_tokenizer
from tpuctl.text.bpe import tokenizer_config
from tpuctl.train.data.columns import Columns, Kind
from tpuctl.train.data.corpus import Corpus, open_corpus
from tpuctl.train.data.stream import train_tokenizer

_FLAGS = {
    "data.text_column": "--text-column",
    "data.messages_column": "--messages-column",
    "data.uri": "DATA",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Which tokenizer to train: a byte-level BPE of at most ``vocab_size`` ids, on ``uri``, into ``folder``."""

    uri: str
    kind: Kind
    column: str
    vocab_size: int
    folder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What came of it. Little text gives fewer ids than were asked for."""

    path: str
    ids: int
    rows: int
    files: int


def train(request: Request) -> Trained:
    """Train a tokenizer and write it into its folder, with a ``tokenizer_config.json`` beside it.

    Raises:
        UsageError: the folder has a tokenizer, or the dataset is none or has no such column.
        StorageError: a place that can't be reached, read or written to.
    """
    storage = open_storage(request.folder)
    uri = join(request.folder, TOKENIZER_FILE)
    if storage.exists(uri):
        raise UsageError(f"{uri} exists", hint="choose another folder; a tokenizer is never overwritten")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = _corpus(request, scratch=scratch)
        # Before the training, so that a folder that takes no files is known of before the long part.
        storage.write(join(request.folder, "tokenizer_config.json"), tokenizer_config().encode())
        path = Path(scratch) / TOKENIZER_FILE
        train_tokenizer(corpus, vocab_size=request.vocab_size, path=path)
        ids = load_tokenizer(str(path), directory=path.parent, vocab_size=request.vocab_size).vocab_size
        storage.put_file(path, uri)
    return Trained(path=uri, ids=ids, rows=corpus.num_rows, files=len(corpus.files))


def main() -> NoReturn:
    """Answer the request on stdin with one JSON object on stdout: what was trained, or why it wasn't."""
    try:
        answer: dict[str, Any] = asdict(train(Request(**json.load(sys.stdin))))
    except TpuctlError as error:
        answer = {"error": error.message, "hint": error.hint, "usage": isinstance(error, UsageError)}
    print(json.dumps(answer))
    sys.exit(0)


def _corpus(request: Request, *, scratch: str) -> Corpus:
    """The dataset. What is wrong with it is wrong with the command line, and said in the words of that."""
    try:
        uri = dataset_uris(request.uri, eval_uri=None, directory=scratch).train_uri
        return open_corpus(uri, columns=Columns(kind=request.kind, names=(request.column,)))
    except (DataError, NotFoundError, BucketMissingError) as error:
        raise UsageError(_in_flags(error.message), hint=_in_flags(error.hint or "") or None) from error


def _in_flags(text: str) -> str:
    """The words of a recipe's keys as those of the command line."""
    for key, flag in _FLAGS.items():
        text = text.replace(key, flag)
    return text


if __name__ == "__main__":
    main()
