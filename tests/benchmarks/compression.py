"""Bits per byte on the held-out files of the built-in dataset: what a trained model has to be compared with.

    python -m tests.benchmarks.compression [--vocabulary 2048] [--folder FOLDER]

Needs no cluster and no devices. Takes about a minute, most of it for xz of the whole training text.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

from tpuctl.entrypoints.corpus import build
from tpuctl.text import load_tokenizer
from tpuctl.text.place import TokenizerRef
from tpuctl.train.baselines import Baseline, baselines, compressed_bits_per_byte, gzip_9, xz_9
from tpuctl.train.data.columns import Columns
from tpuctl.train.data.corpus import Corpus, iter_texts, open_corpus
from tpuctl.train.data.stream import prepare_tokenizer

MEANING = """\
Bits per byte: bits to tell the held-out files, over their UTF-8 bytes. Every row also tells where files end.
  given nothing           the held-out files alone, one after the other, joined by zero bytes.
  given all training text size(training + held-out) - size(training). gzip can look back 32 KiB only, so it gains
                          nothing; xz looks back 64 MiB, which is everything.
  trigram                 interpolated Kneser-Ney, no cut-offs, counted on the training files; over bytes, and over
                          the ids of a byte-level BPE trained on the training files."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=2048, help="ids of the BPE")
    parser.add_argument("--folder", type=Path, help="where the dataset lies or is put; default: a temporary one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as scratch:
        uris = build(arguments.folder or Path(scratch))
        train, held_out = (
            open_corpus(str(uri), columns=Columns.text("text")) for uri in (uris.train_uri, uris.eval_uri)
        )
        name = f"bpe:{arguments.vocabulary}"
        prepare_tokenizer(TokenizerRef(name=name, directory=scratch, vocab_size=arguments.vocabulary), corpus=train)
        tokenizer = load_tokenizer(name, directory=Path(scratch), vocab_size=arguments.vocabulary)
        rows = [*baselines(train, held_out, tokenizer=tokenizer), *given_all(train, held_out)]
    print_table(rows)


def given_all(train: Corpus, held_out: Corpus) -> list[Baseline]:
    """The compressors once more, after they have seen the training text."""
    seen, texts = list(iter_texts(train)), list(iter_texts(held_out))
    return [
        Baseline(
            name=name,
            given="all training text",
            bits_per_byte=compressed_bits_per_byte(texts, compress=compress, given=seen),
        )
        for name, compress in (("gzip -9", gzip_9), ("xz -9", xz_9))
    ]


def print_table(rows: list[Baseline]) -> None:
    print(f"\n{'':30} {'given':52} {'bits per byte':>13}")
    for row in rows:
        print(f"{row.name:30} {row.given:52} {row.bits_per_byte:13.3f}")
    print(f"\n{MEANING}")


if __name__ == "__main__":
    main()
