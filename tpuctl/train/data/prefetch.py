"""Work ahead of the consumer in a thread, a bounded number of items deep."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

_END = object()


def prefetched[T](items: Generator[T], *, depth: int) -> Generator[T]:
    """The items of a generator that a thread keeps ``depth`` ahead; its errors are raised here, in their place.

    Closing this generator ends the thread and closes the one it reads.
    """
    ahead: deque[Future[Any]] = deque()
    with closing(items), ThreadPoolExecutor(max_workers=1, thread_name_prefix="tpuctl-prefetch") as pool:
        try:
            ahead.extend(pool.submit(next, items, _END) for _ in range(depth))
            while (item := ahead.popleft().result()) is not _END:
                ahead.append(pool.submit(next, items, _END))
                yield item
        finally:
            for future in ahead:
                future.cancel()
