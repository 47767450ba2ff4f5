"""How a stop request travels: SIGTERM at the driver, a key in the cluster's store, a flag in every worker.

The driver is the process ``tpuctl stop`` reaches. The workers are on other hosts and in the middle of a step;
each looks for the key from a thread and votes in its next batch, so that all leave after the same step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

from tpuctl.entrypoints.emit import emit

NAMESPACE = b"tpuctl"
POLL_SECONDS = 1.0


def forward_sigterm(job: str) -> None:
    """From now on SIGTERM at this process asks the workers of ``job`` to save and end."""

    def forward(_signal: int, _frame: FrameType | None) -> None:
        request_stop(job)

    signal.signal(signal.SIGTERM, forward)


def request_stop(job: str) -> None:
    """Ask the workers of ``job`` to save and end."""
    _internal_kv_put(_key(job), b"stop", namespace=NAMESPACE)
    emit("note", text="stop requested: what is done is saved first")


@contextmanager
def stop_watch(job: str) -> Iterator[Callable[[], bool]]:
    """Says for the length of the block whether ``job`` was asked to stop."""
    watch = StopWatch(job)
    try:
        yield watch.asked
    finally:
        watch.close()


class StopWatch:
    """Knows, without blocking, whether ``job`` was asked to stop."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop-watch", daemon=True)
        self._thread.start()

    def asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._asked.is_set()

    def close(self) -> None:
        """End the watching thread."""
        self._ended.set()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        while not self._asked.is_set() and not self._ended.wait(POLL_SECONDS):
            if _internal_kv_get(_key(self._job), namespace=NAMESPACE) is not None:
                self._asked.set()


def _key(job: str) -> bytes:
    return f"stop/{job}".encode()
