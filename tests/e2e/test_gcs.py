"""The shipped quickstart with everything in a bucket: dataset, run directory, checkpoints, export; as on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import BUCKET
from tests.e2e.command import Command, Done
from tests.fakes.gcs_process import GcsService
from tpuctl.entrypoints.corpus import build
from tpuctl.runs.lease import current_holder
from tpuctl.runs.record import read_metrics, read_record

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.toml"
TEXT = f"gs://{BUCKET}/text"
RUN = f"gs://{BUCKET}/runs/quickstart"
FEW_STEPS = (
    "train.steps=12",
    "train.log_every=1",
    "train.eval_every=6",
    "train.eval_batches=2",
    "checkpoint.every=6",
    "optim.warmup_steps=3",
    "optim.decay_steps=9",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The quickstart's own text, as ``python -m tpuctl.entrypoints.corpus`` writes it, and the run of it on a disk."""

    folder: Path
    run: Path
    done: Done


def quickstart(text: object, run: object, *more: str) -> list[str]:
    """The words that train the shipped recipe for a few steps on that text, into that directory."""
    places = [f"data.uri={text}/train.parquet", f"data.eval_uri={text}/held-out.parquet", f"run.directory={run}"]
    return ["train", str(RECIPE), *(word for key in (*places, *FEW_STEPS, *more) for word in ("--set", key))]


@pytest.fixture(scope="module")
def on_disk(tpuctl: Command, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The unbroken run that all others are compared with."""
    root = tmp_path_factory.mktemp("quickstart")
    folder = Path(build(root).train_uri).parent
    return Corpus(folder=folder, run=root / "run", done=tpuctl(*quickstart(folder, root / "run")))


@pytest.fixture
def command(tpuctl: Command, gcs: GcsService, on_disk: Corpus) -> Iterator[Command]:
    for path in on_disk.folder.glob("*.parquet"):
        gcs.buckets.put(BUCKET, f"text/{path.name}", path.read_bytes(), query={}, metadata={})
    yield tpuctl.within(TPUCTL_GCS_ENDPOINT=gcs.endpoint)
    gcs.serve_well()


def losses(run: str) -> dict[int, float]:
    return {item["step"]: item["loss"] for item in read_metrics(run) if item["event"] == "step"}


def test_quickstart_in_a_bucket_does_what_it_does_on_a_disk_while_every_seventh_request_fails(
    command: Command, on_disk: Corpus, gcs: GcsService, tmp_path: Path
) -> None:
    assert on_disk.done.code == 0, on_disk.done.everything
    fault = gcs.fail(every=7, times=None, status=503)

    first = command(*quickstart(TEXT, RUN, "train.steps=6"))
    second = command(*quickstart(TEXT, RUN))
    exported = command("export", RUN, f"gs://{BUCKET}/out")

    gcs.serve_well()
    assert first.code == 0, first.everything
    assert second.code == 0, second.everything
    assert "resuming from step 6" in second.out, second.everything
    assert "AdaptiveReadaheadCache" not in first.out + second.out
    assert fault.hits > 50
    assert losses(RUN) == losses(str(on_disk.run))
    assert list(losses(RUN)) == list(range(1, 13))
    record = read_record(RUN)
    assert record is not None
    assert [attempt.status for attempt in record.attempts] == ["succeeded", "succeeded"]
    assert current_holder(RUN) is None
    found = {name: item.data for name, item in gcs.buckets.of(BUCKET).items()}
    kept = {name.split("/")[3] for name in found if name.startswith("runs/quickstart/checkpoints/")}
    assert kept == {"6", "12"}

    assert (exported.code, exported.out) == (0, f"gs://{BUCKET}/out\n"), exported.everything
    assert command("export", on_disk.run, tmp_path / "out").code == 0
    wanted = {f"out/{path.name}": path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert {"out/config.json", "out/model.safetensors", "out/tokenizer.json"} <= set(wanted)
    assert {name: data for name, data in found.items() if name.startswith("out/")} == wanted


def test_train_into_a_missing_bucket_or_without_a_right_exits_2_before_any_slice_is_taken(
    command: Command, gcs: GcsService
) -> None:
    missing = command(*quickstart(TEXT, "gs://no-such-bucket/run"))
    assert missing.code == 2, missing.everything
    assert "there is no bucket 'no-such-bucket'" in missing.err
    words = "tpu@x does not have storage.objects.create access to the Google Cloud Storage object."
    gcs.fail(op="insert", status=403, message=words, times=None)
    forbidden = command(*quickstart(TEXT, RUN))
    assert forbidden.code == 2, forbidden.everything
    assert "the right storage.objects.create is missing" in forbidden.err
    assert "reserved" not in forbidden.out
