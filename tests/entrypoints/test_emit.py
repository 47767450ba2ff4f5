from __future__ import annotations

import logging

import pytest

from tpuctl.entrypoints.emit import warnings_as_notes
from tpuctl.runs.events import parse_line


def test_warnings_as_notes_prints_each_warning_of_ours_once(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tpuctl")
    before = list(logger.handlers)
    try:
        warnings_as_notes()
        warnings_as_notes()
        logging.getLogger("tpuctl.train.data.faults").warning("%s: %d rows", "here", 3)
        logging.getLogger("tpuctl.train.data.faults").info("nothing to tell")
        logging.getLogger("other").warning("nothing of ours")
    finally:
        logger.handlers = before
    (item,) = [parse_line(line) for line in capsys.readouterr().out.splitlines()]
    assert item is not None
    assert (item["event"], item["text"]) == ("note", "here: 3 rows")
