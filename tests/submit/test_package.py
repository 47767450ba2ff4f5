from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.fakes.jobs_server import JobsServer
from tests.fakes.plans import a_plan
from tpuctl.connection import Connection
from tpuctl.errors import ExitCode, UsageError
from tpuctl.plan.schema import plan_loads
from tpuctl.submit.files import collect, largest_paths
from tpuctl.submit.package import LIMIT_BYTES, PackageTooLargeError, build_package, job_package, upload
from tpuctl.submit.ray_jobs import RayJobs

MIB = 1024**2


def names_in(content: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def write(directory: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_job_package_holds_our_sources_and_the_plan_and_no_rubbish() -> None:
    plan = a_plan(secrets={"HF_TOKEN": "hf_test123"})
    names = names_in(job_package(plan).content)
    assert {"plan.json", "tpuctl/__init__.py", "tpuctl/plan/schema.py", "tpuctl/topology/table.json"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert plan_loads(zipfile.ZipFile(io.BytesIO(job_package(plan).content)).read("plan.json").decode()) == plan


def test_job_package_unpacked_elsewhere_runs_by_itself(tmp_path: Path) -> None:
    zipfile.ZipFile(io.BytesIO(job_package(a_plan()).content)).extractall(tmp_path)
    code = "import tpuctl.plan.schema as s; print(s.__file__); s.plan_loads(open('plan.json').read())"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(str(tmp_path))


def test_build_package_same_content_is_same_bytes_whatever_order_and_time(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1", "b": "2"})
    first = build_package({"a": tmp_path / "a", "b": tmp_path / "b"})
    os.utime(tmp_path / "a", (1, 1))
    assert build_package({"b": tmp_path / "b", "a": tmp_path / "a"}) == first
    assert first.uri.startswith("gcs://_ray_pkg_")
    assert build_package({"a": b"1", "b": b"3"}).uri != first.uri
    assert build_package({"ab": b"1", "": b"2"}).uri != build_package({"a": b"b1", "": b"2"}).uri


def test_build_package_keeps_scripts_executable(tmp_path: Path) -> None:
    write(tmp_path, {"run.sh": "#!/bin/sh\n"})
    (tmp_path / "run.sh").chmod(0o755)
    entry = zipfile.ZipFile(io.BytesIO(build_package({"run.sh": tmp_path / "run.sh"}).content)).infolist()[0]
    assert entry.external_attr >> 16 == 0o755


def test_build_package_over_the_limit_says_size_limit_and_what_is_large(tmp_path: Path) -> None:
    write(tmp_path, {"weights.bin": random.Random(0).randbytes(5 * MIB // 4), "train.py": "pass"})
    with pytest.raises(PackageTooLargeError) as caught:
        build_package({path.name: path for path in tmp_path.iterdir()}, limit_bytes=MIB)
    assert "1.3 MiB in 2 files" in caught.value.message
    assert "less than 1 MiB" in caught.value.message
    assert "weights.bin (1.2 MiB)" in caught.value.message
    assert ".gitignore" in (caught.value.hint or "")
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == ExitCode.USAGE


def test_build_package_limit_is_that_of_rays_dashboard() -> None:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    assert LIMIT_BYTES == DASHBOARD_CLIENT_MAX_SIZE


def test_collect_30_000_files_and_a_large_git_folder_is_fast_and_leaves_it_out(tmp_path: Path) -> None:
    for folder in range(100):
        (tmp_path / f"d{folder}").mkdir()
        for number in range(300):
            (tmp_path / f"d{folder}" / f"{number}.txt").touch()
    write(
        tmp_path, {".git/objects/pack": b"x" * MIB, ".gitignore": "*.log\n", "a.log": "x", "d1/.gitignore": "7.txt\n"}
    )
    began = time.process_time()
    files = collect(tmp_path)
    assert time.process_time() - began < 10
    assert len(files) == 30_000 + 2 - 1
    assert not [name for name in files if name.startswith(".git/") or name.endswith(".log")]


def test_collect_honours_nested_ignore_files_and_their_exceptions(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.json\n/out/\n",
            "a.json": "", "out/x.py": "", "sub/out/y.py": "", "sub/.gitignore": "!keep.json\n",
            "sub/keep.json": "", "sub/drop.json": "", "main.py": "", "__pycache__/m.pyc": "", ".venv/bin/python": "",
        },
    )  # fmt: skip
    assert sorted(collect(tmp_path)) == [".gitignore", "main.py", "sub/.gitignore", "sub/keep.json", "sub/out/y.py"]


def test_collect_takes_a_needed_file_although_it_is_ignored(tmp_path: Path) -> None:
    write(
        tmp_path, {".gitignore": "*.json\nhidden/\n", "configs/model.json": "{}", "hidden/deep/w.bin": "", "x.json": ""}
    )
    files = collect(tmp_path, needed=["configs/model.json", "./hidden/deep/w.bin"])
    assert sorted(files) == [".gitignore", "configs/model.json", "hidden/deep/w.bin"]


def test_collect_of_a_needed_file_that_is_missing_or_outside_says_so_before_anything_is_sent(tmp_path: Path) -> None:
    work = tmp_path / "work"
    write(tmp_path, {"work/main.py": "", "outside.json": ""})
    with pytest.raises(UsageError, match="has no such file"):
        collect(work, needed=["configs/model.json"])
    with pytest.raises(UsageError, match="outside the working directory"):
        collect(work, needed=["../outside.json"])
    with pytest.raises(UsageError, match="no such directory"):
        collect(tmp_path / "nowhere")


def test_collect_of_links_follows_them_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/data.txt": "1", "work/main.py": ""})
    (tmp_path / "work" / "data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "work" / "self").symlink_to(tmp_path / "work")
    (tmp_path / "work" / "dangling").symlink_to(tmp_path / "nowhere")
    assert sorted(collect(tmp_path / "work")) == ["data/data.txt", "main.py"]


def test_largest_paths_blames_folders_of_many_small_files_and_single_large_files() -> None:
    sizes = {f"cache/{n // 100}/{n}": 10 for n in range(10_000)} | {"a/b/big.bin": 50_000, "small": 1}
    assert largest_paths(sizes, count=3) == [("cache/", 100_000), ("a/b/big.bin", 50_000), ("small", 1)]


def test_upload_sends_a_package_once() -> None:
    package = build_package({"a": b"1"})
    with JobsServer() as server:
        jobs = RayJobs(Connection(server.url))
        assert upload(jobs, package)
        assert not upload(jobs, package)
        assert server.packages == {package.uri: package.content}
        assert [method for method, _ in server.requests] == ["GET", "PUT", "GET"]


def test_upload_refused_by_a_smaller_limit_is_one_line() -> None:
    with JobsServer() as server:
        server.package_limit = 10
        with pytest.raises(UsageError, match=r"takes no package of .* MiB") as caught:
            upload(RayJobs(Connection(server.url)), build_package({"a": b"1"}))
    assert "\n" not in caught.value.message
