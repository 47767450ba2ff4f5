"""A tokenizer wherever its files lie: made in the run directory once, or brought to each host."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tpuctl.builtin_models.fetch import model_folder
from tpuctl.errors import DataError
from tpuctl.model_folder import CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILES
from tpuctl.storage import ABSENT, ChangedError, NotFoundError, is_gcs, join, open_storage
from tpuctl.text.bpe import train_bpe
from tpuctl.text.load import SENTENCEPIECE_FILE, TOKENIZER_FILE, bpe_vocab_size, load_tokenizer, tokenizer_path
from tpuctl.text.tokenizer import Tokenizer

# What may lie beside a tokenizer and belong to it; a model's weights, which lie there too, do not.
_FILES = (*TOKENIZER_FILES, GENERATION_FILE, CONFIG_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRef:
    """How to load a tokenizer in any process: its name in the plan, the run directory, the model's rows.

    The name is that of ``load_tokenizer``, or a path in a bucket, or a built-in model's.
    """

    name: str
    directory: str
    vocab_size: int

    def load(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            DataError: it isn't there, can't be read, or has ids the model has no row for.
            StorageError: its bucket can't be read.
            WeightsError: the built-in model it belongs to can't be fetched.
        """
        name, directory = self._local()
        return load_tokenizer(name, directory=directory, vocab_size=self.vocab_size)

    def folder(self) -> Path | None:
        """Where the tokenizer's files lie on this host; None for one that has none. Raises as ``load`` does."""
        name, directory = self._local()
        return None if name == "bytes" else tokenizer_path(name, directory=directory).parent

    def _local(self) -> tuple[str, Path]:
        """Its name, and the directory it is in, with the files brought here."""
        if bpe_vocab_size(self.name) is not None and is_gcs(self.directory):
            return self.name, _brought_here(self.directory, needed=(TOKENIZER_FILE,))
        name = _local_name(self.name) if is_gcs(self.name) else model_folder(self.name)
        return name, Path(self.directory)


def train_once(ref: TokenizerRef, texts: Iterable[str]) -> None:
    """Train the tokenizer of a run that wants its own into the run directory, unless it is there already."""
    vocab_size = bpe_vocab_size(ref.name)
    uri = join(ref.directory, TOKENIZER_FILE)
    storage = open_storage(uri)
    if vocab_size is None or storage.exists(uri):
        return
    with tempfile.TemporaryDirectory(prefix="tpuctl-tokenizer-") as folder:
        path = tokenizer_path(ref.name, directory=Path(folder))
        train_bpe(texts, vocab_size=vocab_size, path=path)
        try:
            storage.write(uri, path.read_bytes(), if_generation=ABSENT)
        except ChangedError:
            return  # another process was faster, with the same text


def _local_name(uri: str) -> str:
    """The local path that stands for a tokenizer in a bucket, its files brought there: a file, or a folder of them."""
    folder, _, last = uri.rstrip("/").rpartition("/")
    if last.endswith((".json", ".model")):
        return str(_brought_here(folder, needed=(last,)) / last)
    return str(_brought_here(uri, needed=(TOKENIZER_FILE, SENTENCEPIECE_FILE)))


def _brought_here(folder: str, *, needed: tuple[str, ...]) -> Path:
    """A local folder with the tokenizer's files, which other processes of this host find there too.

    It is named for the generations of the files, so that a run begun anew never finds those of the old.
    """
    storage = open_storage(folder)
    found: dict[str, str] = {}
    for name in dict.fromkeys([*needed, *_FILES]):
        try:
            found[name] = storage.stat(join(folder, name)).generation
        except NotFoundError:
            continue
    if not any(name in found for name in needed):
        raise DataError(f"no tokenizer at {folder}: there is no {' and no '.join(needed)}")
    key = hashlib.sha256(repr((folder, sorted(found.items()))).encode()).hexdigest()[:24]
    here = Path(tempfile.gettempdir()) / f"tpuctl-tokenizers-{os.getuid()}" / key
    for name in found:
        if not (here / name).exists():
            storage.get_file(join(folder, name), here / name)
    return here
