"""One set of simulated clusters for all tests here, started by whoever is first, ended with the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.command import Command


@pytest.fixture(scope="package")
def tpuctl(tmp_path_factory: pytest.TempPathFactory, state_dir: Path) -> Iterator[Command]:
    command = Command(state_dir=state_dir, cwd=tmp_path_factory.mktemp("e2e"))
    yield command
    assert command("cluster", "down", "--all").code == 0


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real text, enough for a few steps: this package's own sources, the errors held out."""
    root = tmp_path_factory.mktemp("text")
    sources = sorted((Path(__file__).parents[2] / "tpuctl").rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in sources]
    held_out = [path.name == "errors.py" for path in sources]
    for name, wanted in (("train", False), ("held-out", True)):
        (root / name).mkdir()
        rows = [text for text, held in zip(texts, held_out, strict=True) if held is wanted]
        pq.write_table(pa.table({"text": rows}), root / name / "part-0.parquet", row_group_size=16)
    return root
