"""The emulated Cloud Storage in a process of its own: some clients hold this one's interpreter lock while they wait."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.managers import BaseManager
from typing import Any

from tests.fakes.gcs_emulator import Emulator
from tests.fakes.gcs_emulator_faults import Faults, Tally
from tests.fakes.gcs_emulator_objects import Buckets


class GcsService:
    """The emulator as tests see it. ``buckets`` answers as ``gcs_emulator_objects.Buckets`` does, with copies."""

    def __init__(self, manager: Any) -> None:
        self._faults = manager.faults()
        self._tally = manager.tally()
        self.buckets = manager.buckets()
        self.endpoint: str = manager.endpoint().url()

    def fail(self, **fields: Any) -> FaultInForce:
        """Put a fault in force, with the fields of ``gcs_emulator_faults.Fault``."""
        return FaultInForce(self._faults, self._faults.add(**fields))

    def serve_well(self) -> None:
        """Take all faults back."""
        self._faults.clear()

    def requests(self, operation: str | None = None) -> int:
        """How many requests there were, of an operation or in all, since the test began."""
        count: int = self._tally.of(operation)
        return count

    def reset(self, bucket: str) -> None:
        """One empty bucket, no faults, nothing counted."""
        self.buckets.create(bucket)
        self._faults.clear()
        self._tally.clear()


class FaultInForce:
    """A fault that was put in force."""

    def __init__(self, faults: Any, number: int) -> None:
        self._faults, self._number = faults, number

    @property
    def hits(self) -> int:
        """How many requests it has struck."""
        count: int = self._faults.hits(self._number)
        return count


@contextmanager
def gcs_process(*buckets: str) -> Iterator[GcsService]:
    """A running emulator with these buckets; it ends with the block, or with this process."""
    with _Manager(ctx=multiprocessing.get_context("spawn")) as manager:
        service = GcsService(manager)
        for bucket in buckets:
            service.buckets.create(bucket)
        yield service


class _Endpoint:
    def url(self) -> str:
        """The URL of the emulator."""
        return _emulator().endpoint


@cache
def _emulator() -> Emulator:
    """The emulator of the process it is called in, running."""
    server = Emulator()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return server


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in the emulator's process"
    parent.join()
    os._exit(0)


def _buckets() -> Buckets:
    return _emulator().buckets


def _faults() -> Faults:
    return _emulator().faults


def _tally() -> Tally:
    return _emulator().tally


class _Manager(BaseManager):
    pass


_Manager.register("endpoint", _Endpoint)
_Manager.register("buckets", _buckets)
_Manager.register("faults", _faults)
_Manager.register("tally", _tally)
