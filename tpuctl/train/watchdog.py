"""The watchdog: a run that makes no progress ends, and says where each of its threads stood."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self

# A step takes seconds, an evaluation minutes; half an hour without either is a hang.
DEFAULT_SECONDS = 1800.0

EXIT_CODE = 1


class Watchdog:
    """Calls ``on_silence`` from a thread of its own when no ``beat`` came for ``seconds``. Watches while entered."""

    def __init__(self, *, seconds: float, on_silence: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_silence = on_silence
        self._last_beat = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self) -> None:
        """There was progress."""
        self._last_beat = time.monotonic()

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while (left := self._last_beat + self._seconds - time.monotonic()) > 0:
            if self._ended.wait(left):
                return
        self._on_silence()


def end_process() -> NoReturn:
    """Write the stack of every thread to the log and end this process, whatever its threads wait for."""
    sys.stdout.flush()
    stream = sys.__stderr__ or sys.stderr
    faulthandler.dump_traceback(file=stream, all_threads=True)
    stream.flush()
    os._exit(EXIT_CODE)
