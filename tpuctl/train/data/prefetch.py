"""Work ahead of the consumer in a thread, a bounded number of items deep."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

_END = object()


class Prefetched[T]:
    """The items of a generator that a thread keeps ``depth`` ahead, from now on; its errors come in their place.

    ``close`` waits for the item in the making, ends the thread and closes the generator.
    """

    def __init__(self, items: Generator[T], *, depth: int) -> None:
        self._items = items
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tpuctl-prefetch")
        self._ahead: deque[Future[Any]] = deque(self._submit() for _ in range(depth))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._ahead:
            raise StopIteration
        item: T = self._ahead.popleft().result()
        if item is _END:
            self.close()
            raise StopIteration
        self._ahead.append(self._submit())
        return item

    def close(self) -> None:
        """Stop working ahead; may be called twice."""
        self._ahead.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._items.close()

    def _submit(self) -> Future[Any]:
        return self._pool.submit(next, self._items, _END)
