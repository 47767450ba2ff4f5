"""Batch k is a pure function of (dataset, seed, k): over host splits, restarts and places on disk."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.tiny_training import DATA, TRAIN
from tests.train.data.parquet_folders import (
    BYTES,
    assert_equal,
    lane_documents,
    rows_of,
    stream_over,
    take,
    take_all,
    words,
    write,
)
from tpuctl.text.place import TokenizerRef
from tpuctl.train.batch import HostBatch
from tpuctl.train.data.documents import FAULTS
from tpuctl.train.data.groups import GroupBudget
from tpuctl.train.data.packing import start_cursor
from tpuctl.train.data.stream import Stream, eval_stream, prepare_tokenizer, read_stream

SEEDS = range(5)


def folder_of(tmp_path: Path, *, seed: int) -> tuple[Path, list[str]]:
    """One to four files of a few to some dozens of rows, and their texts."""
    rng = np.random.default_rng(seed)
    texts = []
    for file in range(rng.integers(1, 5)):
        rows = [f"{file}/{text}" for text in words(rng, rng.integers(1, 40))]
        write(tmp_path / f"{file}.parquet", rows, rows_per_group=int(rng.integers(1, 9)))
        texts += rows
    return tmp_path, texts


def random_stream(tmp_path: Path, *, seed: int) -> Stream:
    folder, _ = folder_of(tmp_path, seed=seed)
    rng = np.random.default_rng(1000 + seed)
    return stream_over(
        folder,
        lanes=4,
        seed=seed,
        sequence_length=int(rng.integers(3, 50)),
        packing=bool(rng.integers(2)),
        epochs=int(rng.integers(3)),
        shuffle=bool(rng.integers(2)),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("hosts", [2, 4])
def test_stream_split_over_hosts_gives_the_same_rows(tmp_path: Path, seed: int, hosts: int) -> None:
    stream = random_stream(tmp_path, seed=seed)
    whole = take(stream, 25)
    for rows in np.split(np.arange(stream.lanes), hosts):
        for found, expected in zip(take(stream, 25, rows=rows), whole, strict=True):
            assert_equal(found, rows_of(expected, rows))


@pytest.mark.parametrize("seed", SEEDS)
def test_stream_resumed_at_any_step_goes_on_as_if_unbroken(tmp_path: Path, seed: int) -> None:
    stream = random_stream(tmp_path, seed=seed)
    unbroken = take(stream, 20)
    for step in range(19):
        for found, expected in zip(take(stream, 2, cursor=unbroken[step].cursor), unbroken[step + 1 :], strict=False):
            assert_equal(found, expected)


def test_stream_resumed_on_other_hosts_goes_on_as_if_unbroken(tmp_path: Path) -> None:
    stream = random_stream(tmp_path, seed=3)
    unbroken = take(stream, 12)
    cursor = unbroken[5].cursor
    for rows in ([0, 1], [2, 3], [0], [3, 1]):
        resumed = take(stream, 6, rows=rows, cursor=cursor[rows])
        for found, expected in zip(resumed, unbroken[6:], strict=True):
            assert_equal(found, rows_of(expected, rows))


def test_stream_resumed_sees_no_row_twice_and_misses_none(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [f"{row:04}" for row in range(20)])
    stream = stream_over(tmp_path, lanes=2, sequence_length=5)
    first = take(stream, 4)
    rest = take(stream, 6, cursor=first[-1].cursor)
    seen = [text for row in range(2) for text in lane_documents(first + rest, row)]
    assert Counter(seen) == Counter(f"{row:04}".encode() for row in range(20))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("packing", [True, False])
def test_stream_predicts_every_byte_of_every_document_once_per_epoch(
    tmp_path: Path, seed: int, shuffle: bool, packing: bool
) -> None:
    folder, texts = folder_of(tmp_path, seed=seed)
    stream = stream_over(folder, epochs=2, seed=seed, shuffle=shuffle, packing=packing, sequence_length=11)
    batches = take_all(stream)
    found = Counter(text for row in range(stream.lanes) for text in lane_documents(batches, row))
    assert found == Counter(2 * [text.encode() for text in texts])
    assert sum(batch.num_bytes.sum() for batch in batches) == 2 * sum(len(text.encode()) for text in texts)


def test_stream_of_another_seed_has_another_order(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, seed=1)
    first, second = (take(stream_over(folder, seed=seed), 1)[0].tokens for seed in (1, 2))
    assert (first != second).any()


def test_stream_epochs_differ_in_order(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [f"{row:02}" for row in range(40)])
    stream = stream_over(tmp_path, lanes=1, sequence_length=120)
    first, second = (lane_documents([batch], 0) for batch in take(stream, 2))
    assert Counter(first) == Counter(second)
    assert first != second


def test_stream_unshuffled_follows_the_files(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", [f"b{row}" for row in range(5)])
    write(tmp_path / "a.parquet", [f"a{row}" for row in range(5)])
    stream = stream_over(tmp_path, lanes=1, sequence_length=30, shuffle=False)
    assert lane_documents(take(stream, 1), 0) == [f"{file}{row}".encode() for file in "ab" for row in range(5)]


def test_stream_does_not_depend_on_where_the_dataset_lies_or_in_which_order_it_was_written(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path / "first", seed=2)
    copy = tmp_path / "second"
    copy.mkdir()
    for path in sorted(folder.iterdir(), reverse=True):
        shutil.copy(path, copy / path.name)
    stream, moved = stream_over(folder), stream_over(copy)
    assert stream.corpus.fingerprint == moved.corpus.fingerprint
    for found, expected in zip(take(moved, 10), take(stream, 10), strict=True):
        assert_equal(found, expected)


def test_stream_from_other_memory_budget_is_the_same(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, seed=4)
    stream = stream_over(folder)
    tight = GroupBudget(memory_bytes=0, disk_bytes=0)
    spooled = read_stream(stream, lanes=range(4), cursor=start_cursor(4), budget=tight)
    for expected in take(stream, 30):
        assert_equal(next(spooled).batch, expected)


def test_stream_of_three_rows_feeds_four_lanes(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["one", "two", "three"])
    stream = stream_over(tmp_path)
    for batch in take(stream, 50):
        assert batch.loss_mask.all()
    ended = take_all(replace(stream, epochs=1))
    assert [batch.loss_mask.any(axis=1).tolist() for batch in ended] == [[True, True, True, False]]


def test_stream_of_one_row_feeds_every_lane_for_ever(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["x"])
    for batch in take(stream_over(tmp_path, lanes=8, shuffle=False), 20):
        assert (lane_documents([batch], 7)[0], batch.loss_mask.all()) == (b"x", True)


def test_stream_shorter_than_the_run_repeats_and_tells_its_epoch(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [f"{row}" for row in range(6)])
    batches = take(stream_over(tmp_path, packing=False), 20)
    assert all(batch.loss_mask.any(axis=1).all() for batch in batches)
    epochs = [int(batch.cursor[:, 3].min()) for batch in batches]
    assert epochs == sorted(epochs)
    assert (epochs[0], epochs[-1]) == (0, 20 * 4 // 6)


def test_stream_that_has_ended_stays_masked_and_keeps_its_cursor(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [f"{row}" for row in range(6)])
    *_, last = batches = take(stream_over(tmp_path, packing=False, epochs=1), 5)
    assert [int(batch.loss_mask.any(axis=1).sum()) for batch in batches] == [4, 2, 0, 0, 0]
    for column in ("tokens", "targets", "segment_ids", "positions", "loss_mask", "num_bytes"):
        assert not getattr(last, column).any()
    np.testing.assert_array_equal(last.cursor, batches[1].cursor)


def test_stream_document_longer_than_many_rows_is_cut_without_loss(tmp_path: Path) -> None:
    long = "".join(chr(97 + place % 26) for place in range(1000))
    write(tmp_path / "a.parquet", [long])
    batches = take(stream_over(tmp_path, lanes=1, sequence_length=7), 143)
    assert lane_documents(batches, 0) == [long.encode()]
    assert [int(batch.positions.max()) for batch in batches[:3]] == [6, 6, 6]


def test_stream_skips_nulls_and_empty_texts_and_counts_them(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [None, "one", "", None, "two", ""])
    stream = stream_over(tmp_path, lanes=2, epochs=1)
    found = {text for row in range(2) for text in lane_documents(take_all(stream), row)}
    assert found == {b"one", b"two"}
    *_, last = (piece for piece, _ in zip(read_stream(stream, lanes=[0, 1], cursor=start_cursor(2)), range(3)))  # noqa: B905
    assert dict(zip(FAULTS, last.faults.tolist(), strict=True)) == dict.fromkeys(FAULTS, 0) | {"empty": 4}
    assert stream.corpus.null_rows == 2


def test_stream_unshuffled_lane_is_not_tied_to_an_empty_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["one", "", "two", ""])
    assert all(batch.loss_mask.all() for batch in take(stream_over(tmp_path, shuffle=False), 10))


def test_stream_over_a_grown_dataset_goes_on_from_an_old_cursor(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [f"old {row}" for row in range(20)])
    before = stream_over(tmp_path, epochs=1)
    cursor = take_all(before)[-1].cursor
    write(tmp_path / "b.parquet", [f"new {row}" for row in range(20)])
    grown = stream_over(tmp_path, epochs=1)
    assert grown.corpus.fingerprint != before.corpus.fingerprint
    assert take(grown, 1, cursor=cursor)[0].loss_mask.all()


def test_stream_over_a_shrunk_dataset_goes_on_from_an_old_cursor(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["x" * 100 for _ in range(400)], rows_per_group=200)
    cursor = take(stream_over(tmp_path, lanes=1), 40)[-1].cursor
    write(tmp_path / "a.parquet", ["y", "z"])
    assert take(stream_over(tmp_path, lanes=1), 1, cursor=cursor)[0].loss_mask.all()


def test_stream_spec_survives_pickling(tmp_path: Path) -> None:
    stream = random_stream(tmp_path, seed=0)
    assert pickle.loads(pickle.dumps(stream)) == stream


def test_batches_tokens_and_targets_are_one_text_shifted_by_one(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, seed=0)
    for batch in take(stream_over(folder), 20):
        for row in range(4):
            _assert_well_packed(batch, row)


def _assert_well_packed(batch: HostBatch, row: int) -> None:
    segments, positions = batch.segment_ids[row], batch.positions[row]
    same = segments[1:] == segments[:-1]
    np.testing.assert_array_equal(batch.tokens[row][1:][same], batch.targets[row][:-1][same])
    np.testing.assert_array_equal(positions[1:], np.where(same, positions[:-1] + 1, 0))
    assert positions[0] == 0
    assert set(np.diff(segments)) <= {0, 1}
    assert segments[0] == 1
    np.testing.assert_array_equal(batch.loss_mask[row], (segments > 0).astype(np.int32))


def test_eval_stream_reads_once_in_the_same_order_whatever_the_seed(tmp_path: Path) -> None:
    folder, texts = folder_of(tmp_path, seed=0)
    corpus, tokenizer = stream_over(folder).corpus, stream_over(folder).tokenizer
    train = replace(TRAIN, global_batch=4, sequence_length=16)
    one, other = (
        take_all(eval_stream(replace(DATA, seed=seed), train, corpus=corpus, tokenizer=tokenizer)) for seed in (1, 2)
    )
    for found, expected in zip(one, other, strict=True):
        assert_equal(found, expected)
    assert sum(batch.num_bytes.sum() for batch in one) == sum(len(text.encode()) for text in texts)


def test_stream_with_its_own_bpe_credits_every_byte(tmp_path: Path) -> None:
    folder, texts = folder_of(tmp_path / "data", seed=2)
    tokenizer = TokenizerRef(name="bpe:300", directory=str(tmp_path / "run"), vocab_size=300)
    stream = stream_over(folder, epochs=1, tokenizer=tokenizer)
    prepare_tokenizer(tokenizer, corpus=stream.corpus)
    batches = take_all(stream)
    assert sum(batch.num_bytes.sum() for batch in batches) == sum(len(text.encode()) for text in texts)
    assert max(batch.tokens.max() for batch in batches) < 300


def test_prepare_tokenizer_keeps_that_of_a_former_attempt(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path / "data", seed=2)
    tokenizer = TokenizerRef(name="bpe:300", directory=str(tmp_path), vocab_size=300)
    prepare_tokenizer(tokenizer, corpus=stream_over(folder).corpus)
    first = (tmp_path / "tokenizer.json").read_bytes()
    write(folder / "more.parquet", ["quite other text"] * 100)
    prepare_tokenizer(tokenizer, corpus=stream_over(folder).corpus)
    assert (tmp_path / "tokenizer.json").read_bytes() == first


def test_prepare_tokenizer_of_bytes_writes_nothing(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path / "data", seed=2)
    prepare_tokenizer(replace(BYTES, directory=str(tmp_path / "run")), corpus=stream_over(folder).corpus)
    assert not (tmp_path / "run").exists()


def test_stream_of_plain_text_needs_nothing_that_only_conversations_need() -> None:
    script = (
        "import sys, tpuctl.train.data.feed, tpuctl.entrypoints.prepare; "
        "print([name for name in ('jinja2', 'sentencepiece', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
