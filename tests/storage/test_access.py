from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.gcs_process import GcsService
from tpuctl.storage import BucketMissingError, ForbiddenError
from tpuctl.storage.access import require_writable

RUN = "gs://tpu-test/runs/one"


def test_require_writable_of_a_good_place_leaves_nothing(gcs: GcsService, tmp_path: Path) -> None:
    require_writable(RUN)
    assert gcs.buckets.of("tpu-test") == {}
    require_writable(str(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name != ".lock"] == []


def test_require_writable_of_a_missing_bucket_says_so(gcs: GcsService) -> None:
    with pytest.raises(BucketMissingError, match="there is no bucket 'no-such'") as caught:
        require_writable("gs://no-such/runs/one")
    assert "gcloud storage buckets create" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("op", "right"),
    [
        ("insert", "storage.objects.create"),
        ("read", "storage.objects.get"),
        ("list", "storage.objects.list"),
        ("delete", "storage.objects.delete"),
        ("bucket", "storage.buckets.get"),
    ],
)
def test_require_writable_names_the_one_right_that_is_missing(gcs: GcsService, op: str, right: str) -> None:
    words = f"tpu@x.iam does not have {right} access to it. Permission '{right}' denied on resource."
    gcs.fail(op=op, status=403, message=words, times=None)
    with pytest.raises(ForbiddenError, match=rf"gs://tpu-test.*the right {right} is missing"):
        require_writable(RUN)
