"""The package that travels with a job: tpuctl's own sources and the plan, as one content-addressed zip.

The cluster then needs nothing of ours installed. The address is a digest of names and contents, so the same package is
sent once, and the zip's bytes are the same wherever it is made. Secrets travel in the plan inside it and nowhere else.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tpuctl
from tpuctl.errors import UsageError
from tpuctl.plan.schema import Plan, plan_dumps
from tpuctl.submit.files import Files, collect, largest_paths
from tpuctl.submit.jobs import Jobs

LIMIT_BYTES = 100 * 1024**2
"""What Ray's dashboard takes in one request (``DASHBOARD_CLIENT_MAX_SIZE``); it must stay below."""

PLAN_NAME = "plan.json"

# Zip knows no earlier time, and any fixed one will do.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MIB = 1024**2


class PackageTooLargeError(UsageError):
    """More than the cluster takes in one package."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A zip and the URI by which Ray's runtime environments name it."""

    uri: str
    content: bytes


def job_package(plan: Plan, *, working_files: Files | None = None) -> Package:
    """The package of a job; ``working_files`` are the user's own.

    Raises:
        UsageError: one of them has the name of one of ours.
        PackageTooLargeError: the zip would not fit; nothing has been sent.
    """
    ours: dict[str, Path | bytes] = {f"tpuctl/{name}": path for name, path in _own_sources().items()}
    ours[PLAN_NAME] = plan_dumps(plan).encode()
    theirs = working_files or {}
    taken = sorted(name for name in theirs if name in ours or name.startswith("tpuctl/"))
    if taken:
        raise UsageError(
            f"the working directory has {taken[0]}, and tpuctl's own file of that name travels with every job",
            hint='rename it, or leave it behind: [job] exclude = ["/plan.json", "/tpuctl/"]',
        )
    return build_package({**theirs, **ours})


def build_package(files: Mapping[str, Path | bytes], *, limit_bytes: int = LIMIT_BYTES) -> Package:
    """A package of these files, by their names in it.

    Raises:
        PackageTooLargeError: the message has the size, the limit and the five largest paths.
    """
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            content, executable = _content(files[name])
            digest.update(f"{len(name)} {name} {executable} {len(content)} ".encode())
            digest.update(content)
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if executable else 0o644) << 16
            archive.writestr(entry, content)
            if buffer.tell() >= limit_bytes:
                raise _too_large(files, limit_bytes)
    if buffer.tell() >= limit_bytes:
        raise _too_large(files, limit_bytes)
    # "_ray_pkg_" is what Ray's garbage collection of packages goes by.
    return Package(uri=f"gcs://_ray_pkg_{digest.hexdigest()[:40]}.zip", content=buffer.getvalue())


def upload(jobs: Jobs, package: Package) -> bool:
    """Send the package unless the cluster has it; True if it was sent."""
    if jobs.has_package(package.uri):
        return False
    jobs.upload_package(package.uri, package.content)
    return True


def _own_sources() -> Files:
    return collect(Path(tpuctl.__file__).parent, honour_ignore_files=False)


def _content(source: Path | bytes) -> tuple[bytes, bool]:
    if isinstance(source, bytes):
        return source, False
    return source.read_bytes(), bool(source.stat().st_mode & 0o100)


def _too_large(files: Mapping[str, Path | bytes], limit_bytes: int) -> PackageTooLargeError:
    sizes = {name: len(file) if isinstance(file, bytes) else file.stat().st_size for name, file in files.items()}
    largest = ", ".join(f"{path} ({_mib(size)})" for path, size in largest_paths(sizes, count=5))
    return PackageTooLargeError(
        f"the job's files are {_mib(sum(sizes.values()))} in {len(sizes):,} files; zipped, Ray takes less than "
        f"{limit_bytes / _MIB:.0f} MiB; largest: {largest}",
        hint="put what the job does not need into .gitignore, and let it read data from storage",
    )


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
