"""The whole path with everything in a bucket: dataset, run directory, checkpoints, tokenizer, lease and history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import BUCKET
from tests.e2e.command import Command
from tests.fakes.gcs_process import GcsService
from tpuctl.runs.lease import current_holder
from tpuctl.runs.record import read_metrics, read_record

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RUN = f"gs://{BUCKET}/runs/bucket"
RECIPE = f"""
kind = "train"
[run]
name = "bucket"
directory = "{RUN}"
[slice]
accelerator = "v4"
topology = "2x2x2"
[model]
preset = "tiny-1m"
[data]
uri = "gs://{BUCKET}/text/train"
eval_uri = "gs://{BUCKET}/text/held-out"
tokenizer = "bpe:300"
[train]
steps = 10
global_batch = 8
sequence_length = 128
log_every = 1
eval_batches = 1
[checkpoint]
every = 10
keep = 1
[job]
start_timeout = "90s"
"""


@pytest.fixture
def command(tpuctl: Command, gcs: GcsService, text_folder: Path) -> Command:
    for path in text_folder.rglob("*.parquet"):
        name = f"text/{path.relative_to(text_folder).as_posix()}"
        gcs.buckets.put(BUCKET, name, path.read_bytes(), query={}, metadata={})
    return tpuctl.within(TPUCTL_GCS_ENDPOINT=gcs.endpoint)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_train_in_a_bucket_resumes_there_while_every_seventh_request_fails(
    command: Command, recipe: Path, gcs: GcsService
) -> None:
    first = command("train", recipe)
    assert first.code == 0, first.everything
    fault = gcs.fail(every=7, times=None, status=503)

    second = command("train", recipe, "--set", "train.steps=14")

    gcs.serve_well()
    assert second.code == 0, second.everything
    assert "resuming from step 10" in second.out, second.everything
    assert fault.hits > 10
    items = read_metrics(RUN)
    assert [item["step"] for item in items if item["event"] == "step"] == list(range(1, 15))
    record = read_record(RUN)
    assert record is not None
    assert [attempt.status for attempt in record.attempts] == ["succeeded", "succeeded"]
    assert current_holder(RUN) is None
    kept = {name.split("/")[3] for name in gcs.buckets.of(BUCKET) if name.startswith("runs/bucket/checkpoints/")}
    assert kept == {"14"}


def test_train_into_a_missing_bucket_or_without_a_right_exits_2_before_any_slice_is_taken(
    command: Command, recipe: Path, gcs: GcsService
) -> None:
    missing = command("train", recipe, "--set", "run.directory=gs://no-such-bucket/run")
    assert missing.code == 2, missing.everything
    assert "there is no bucket 'no-such-bucket'" in missing.err
    words = "tpu@x does not have storage.objects.create access to the Google Cloud Storage object."
    gcs.fail(op="insert", status=403, message=words, times=None)
    forbidden = command("train", recipe)
    assert forbidden.code == 2, forbidden.everything
    assert "the right storage.objects.create is missing" in forbidden.err
    assert "reserved" not in forbidden.out
