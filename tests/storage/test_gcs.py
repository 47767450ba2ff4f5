"""gs:// over loopback: what the service promises holds through our storage, also while it fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.auth.credentials import Credentials
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY

from tests.fakes.gcs_emulator import Emulator, emulator
from tests.fakes.gcs_process import GcsService
from tpuctl.errors import ExitCode, StorageError
from tpuctl.storage import (
    ABSENT,
    BucketMissingError,
    ChangedError,
    ForbiddenError,
    NotFoundError,
    UnreachableStorageError,
    open_storage,
)
from tpuctl.storage.gcs import GcsStorage, process_client

BASE = "gs://tpu-test/run"
QUICK = DEFAULT_RETRY.with_timeout(8).with_delay(initial=0.02, maximum=0.2)


@pytest.fixture
def storage(gcs: GcsService) -> GcsStorage:
    return GcsStorage(retry=QUICK)


def test_write_then_read_gives_bytes_and_generation(storage: GcsStorage) -> None:
    generation = storage.write(f"{BASE}/deep/er", b"one")
    blob = storage.read(f"{BASE}/deep/er")
    assert (blob.data, blob.generation) == (b"one", generation)
    stat = storage.stat(f"{BASE}/deep/er")
    assert (stat.size, stat.generation) == (3, generation)
    assert storage.write(f"{BASE}/deep/er", b"one") != generation
    assert storage.exists(f"{BASE}/deep/er")
    assert not storage.exists(f"{BASE}/deep")


def test_read_range_ends_where_the_object_does_and_moves_no_more_than_asked(
    storage: GcsStorage, gcs: GcsService
) -> None:
    uri = f"{BASE}/file"
    storage.write(uri, b"0123456789")
    ranges = [(2, 5), (8, 99), (20, 30), (3, 3)]
    assert [storage.read_range(uri, start, end) for start, end in ranges] == [b"234", b"89", b"", b""]
    with pytest.raises(NotFoundError):
        storage.read_range(uri + "x", 0, 1)


@pytest.mark.parametrize("call", ["read", "stat"])
def test_missing_object_and_missing_bucket_are_told_apart(storage: GcsStorage, call: str) -> None:
    with pytest.raises(NotFoundError, match=r"gs://tpu-test/none: not found"):
        getattr(storage, call)("gs://tpu-test/none")
    for attempt in (getattr(storage, call), storage.exists, storage.delete, lambda uri: storage.write(uri, b"")):
        with pytest.raises(BucketMissingError, match="there is no bucket 'no-such'"):
            attempt("gs://no-such/none")


def test_missing_right_is_named_and_is_the_users_to_mend(storage: GcsStorage, gcs: GcsService) -> None:
    words = "tpu@x does not have storage.objects.create access to the Google Cloud Storage object."
    gcs.fail(op="insert", status=403, message=words, times=None)
    with pytest.raises(ForbiddenError, match=r"gs://tpu-test/run/x: the right storage\.objects\.create") as caught:
        storage.write(f"{BASE}/x", b"")
    assert caught.value.exit_code == ExitCode.USAGE
    assert "roles/storage.objectAdmin" in (caught.value.hint or "")


def test_conditional_write_and_delete_hold_generations(storage: GcsStorage) -> None:
    uri = f"{BASE}/lock"
    old = storage.write(uri, b"first", if_generation=ABSENT)
    with pytest.raises(ChangedError):
        storage.write(uri, b"second", if_generation=ABSENT)
    new = storage.write(uri, b"third", if_generation=old)
    with pytest.raises(ChangedError):
        storage.write(uri, b"fourth", if_generation=old)
    with pytest.raises(ChangedError):
        storage.delete(uri, if_generation=old)
    storage.delete(uri, if_generation=new)
    storage.delete(uri)
    assert not storage.exists(uri)


def test_create_by_many_at_once_is_won_by_exactly_one(storage: GcsStorage) -> None:
    start = threading.Barrier(8)

    def attempt(number: int) -> int | None:
        start.wait(10)
        try:
            storage.write(f"{BASE}/lock", str(number).encode(), if_generation=ABSENT)
        except ChangedError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(attempt, range(8)) if number is not None]
    assert len(winners) == 1
    assert storage.read(f"{BASE}/lock").data == str(winners[0]).encode()


def test_create_whose_answer_was_lost_is_known_as_our_own(storage: GcsStorage, gcs: GcsService) -> None:
    fault = gcs.fail(op="insert", lost_reply=True)
    generation = storage.write(f"{BASE}/lock", b"token-of-mine", if_generation=ABSENT)
    assert fault.hits == 1
    assert storage.stat(f"{BASE}/lock").generation == generation
    gcs.fail(op="delete", lost_reply=True)
    storage.delete(f"{BASE}/lock", if_generation=generation)
    assert not storage.exists(f"{BASE}/lock")


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "times": 2},
        {"status": 429, "times": 2},
        {"reset": True},
        {"op": "read", "truncate_at": 200_000},
        {"op": "read", "corrupt": True},
        {"op": "insert_multipart", "accept_bytes": 100_000},
        {"op": "insert", "lost_reply": True},
    ],
    ids=str,
)
def test_passing_fault_is_overcome_and_the_content_is_right(storage: GcsStorage, gcs: GcsService, fault: dict) -> None:
    content = bytes(range(256)) * 2000
    struck = gcs.fail(**fault)
    storage.write(f"{BASE}/file", content)
    assert storage.read(f"{BASE}/file").data == content
    assert struck.hits >= 1


def test_file_upload_that_breaks_off_goes_on_where_it_broke(
    storage: GcsStorage, gcs: GcsService, tmp_path: Path
) -> None:
    source = tmp_path / "weights"
    source.write_bytes(bytes(range(251)) * 40_000)
    cut = gcs.fail(op="resumable_put", accept_bytes=1_300_000)
    storage.put_file(source, f"{BASE}/weights")
    storage.get_file(f"{BASE}/weights", tmp_path / "deep" / "back")
    assert (tmp_path / "deep" / "back").read_bytes() == source.read_bytes()
    assert cut.hits == 1
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["back"]


def test_bytes_that_stay_damaged_are_an_error_and_leave_no_file(
    storage: GcsStorage, gcs: GcsService, tmp_path: Path
) -> None:
    storage.write(f"{BASE}/file", b"content")
    gcs.fail(op="read", corrupt=True, times=None)
    with pytest.raises(StorageError, match="arrive damaged"):
        storage.get_file(f"{BASE}/file", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_service_that_keeps_failing_is_given_up_with_the_reason(gcs: GcsService) -> None:
    gcs.fail(status=503, times=None)
    with pytest.raises(UnreachableStorageError, match=r"gave up after .*503 injected") as caught:
        GcsStorage(retry=QUICK.with_timeout(1)).read(f"{BASE}/file")
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


def test_list_skips_directory_markers_and_gives_odd_names_exactly(storage: GcsStorage, gcs: GcsService) -> None:
    names = ["a b", "a%20b", "c+d[1]%3A.parquet", "deep/é?#x", "deep//two"]
    for name in names:
        storage.write(f"{BASE}/{name}", name.encode())
    for marker in ("run/", "run/deep/"):
        gcs.buckets.put("tpu-test", marker, b"placeholder", query={}, metadata={})
    storage.write("gs://tpu-test/run-other/x", b"")
    assert sorted(storage.list(BASE)) == sorted(f"{BASE}/{name}" for name in names)
    assert list(storage.list(BASE)) == list(storage.list(BASE + "/"))
    for name in names:
        assert storage.read(f"{BASE}/{name}").data == name.encode()


def test_list_of_thousands_comes_a_page_at_a_time(storage: GcsStorage, gcs: GcsService) -> None:
    gcs.buckets.fill("tpu-test", "run/{:05}", 2500, b"")
    assert list(storage.list(BASE)) == [f"{BASE}/{number:05}" for number in range(2500)]
    assert gcs.requests("list") == 3


class Renewable(Credentials):
    """Credentials that get their tokens from the emulator and believe that each is good for ever."""

    def __init__(self, service: Emulator) -> None:
        super().__init__()
        self._service = service

    def refresh(self, request: object) -> None:
        self.token = self._service.new_token()["access_token"]


def test_token_that_runs_out_is_renewed_midway() -> None:
    with emulator("tpu-test", token_seconds=3600) as service:
        options = {"api_endpoint": service.endpoint}
        client = Client(project="-", credentials=Renewable(service), client_options=options)
        storage = GcsStorage(lambda: client, retry=QUICK)
        storage.write(f"{BASE}/x", b"one")
        service.tokens.update(dict.fromkeys(service.tokens, 0.0))
        assert storage.read(f"{BASE}/x").data == b"one"
        assert len(service.tokens) > 1


def test_open_storage_after_a_fork_has_a_client_of_its_own(gcs: GcsService, monkeypatch: pytest.MonkeyPatch) -> None:
    here = process_client()
    assert process_client() is here
    monkeypatch.setattr("tpuctl.storage.gcs.os.getpid", lambda: -1)
    assert process_client() is not here


def test_open_storage_of_a_bucket_is_the_same_seam(gcs: GcsService) -> None:
    uri = f"{BASE}/x"
    open_storage(uri).write(uri, b"seam")
    assert open_storage(uri).read(uri).data == b"seam"
