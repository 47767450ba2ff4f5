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
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.text import TOKENIZER_FILE, load_tokenizer
from tpuctl.text.bpe import tokenizer_config
from tpuctl.train.data.columns import Columns, Kind
from tpuctl.train.data.corpus import open_corpus
from tpuctl.train.data.stream import train_tokenizer


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
        UsageError: the folder has a tokenizer.
        DataError: the dataset can't be read.
    """
    folder = Path(request.folder)
    path = folder / TOKENIZER_FILE
    if path.exists():
        raise UsageError(f"{path} exists", hint="choose another folder; a tokenizer is never overwritten")
    with tempfile.TemporaryDirectory() as scratch:
        uri = dataset_uris(request.uri, eval_uri=None, directory=scratch).train_uri
        corpus = open_corpus(uri, columns=Columns(kind=request.kind, names=(request.column,)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer_config.json").write_text(tokenizer_config(), encoding="utf-8")
        train_tokenizer(corpus, vocab_size=request.vocab_size, path=path)
    ids = load_tokenizer(str(path), directory=folder, vocab_size=request.vocab_size).vocab_size
    return Trained(path=str(path), ids=ids, rows=corpus.num_rows, files=len(corpus.files))


def main() -> NoReturn:
    """Answer the request on stdin with one JSON object on stdout: what was trained, or why it wasn't."""
    try:
        answer: dict[str, Any] = asdict(train(Request(**json.load(sys.stdin))))
    except TpuctlError as error:
        answer = {"error": error.message, "hint": error.hint, "usage": isinstance(error, UsageError)}
    print(json.dumps(answer))
    sys.exit(0)


if __name__ == "__main__":
    main()
