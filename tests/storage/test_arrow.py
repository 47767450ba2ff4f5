"""pyarrow's own filesystem on the emulator, as Ray is given it."""

from __future__ import annotations

import pickle
from pathlib import Path

from pyarrow import fs

from tests.fakes.gcs_process import GcsService
from tpuctl.storage import client_env, open_storage
from tpuctl.storage.arrow import arrow_filesystem

URI = "gs://tpu-test/ray/deep/file"


def test_arrow_filesystem_writes_lists_and_reads_in_a_bucket_and_carries_its_endpoint(gcs: GcsService) -> None:
    filesystem, path = arrow_filesystem(URI)
    assert path == "tpu-test/ray/deep/file"
    content = bytes(range(256)) * 40_000
    filesystem = pickle.loads(pickle.dumps(filesystem))
    with filesystem.open_output_stream(path) as stream:
        stream.write(content)
    assert open_storage(URI).read(URI).data == content
    listed = filesystem.get_file_info(fs.FileSelector("tpu-test/ray", recursive=True))
    assert {item.path for item in listed if item.is_file} == {path}
    with filesystem.open_input_file(path) as file:
        assert file.read_at(10, 300) == content[300:310]
    filesystem.delete_file(path)
    assert list(open_storage(URI).list("gs://tpu-test/ray")) == []


def test_arrow_filesystem_of_a_path_is_the_local_one(tmp_path: Path) -> None:
    assert arrow_filesystem(str(tmp_path)) == (fs.LocalFileSystem(), str(tmp_path))


def test_client_env_names_the_endpoint_to_every_client_and_holds_no_credential() -> None:
    found = client_env("http://127.0.0.1:4443")
    assert {key for key, value in found.items() if value == "http://127.0.0.1:4443"} == {
        "TPUCTL_GCS_ENDPOINT", "STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT", "TENSORSTORE_GCS_HTTP_URL",
    }  # fmt: skip
    assert not [key for key in found if "CREDENTIAL" in key or "TOKEN" in key or "KEY" in key]
    assert client_env(None).keys() == {"EPATH_USE_TF", "FSSPEC_GCS"}
