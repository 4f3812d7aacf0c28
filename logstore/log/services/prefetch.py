"""Fetching a few items ahead of their reader, in threads that all readers of a process share."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import Final, TypeVar

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")

_AHEAD: Final = 2
_THREADS: Final = 4


class Prefetcher:
    """A few threads, shared by all readers of a process and started with the first that goes beyond one item."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefetch")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def run(self, items: Iterator[_Item], fetch: Callable[[_Item], _Value]) -> Iterator[tuple[_Item, _Value]]:
        """Each item with its value, in order.

        The first item is fetched alone, since many readers want no more; from then on up to 2 are ahead. What
        `fetch` raises is raised at that item's turn.
        """
        under_way: deque[tuple[_Item, Future[_Value]]] = deque()
        try:
            for item in islice(items, 1):
                yield item, fetch(item)
            for item in items:
                under_way.append((item, self._pool.submit(copy_context().run, fetch, item)))
                if len(under_way) > _AHEAD:
                    ready, future = under_way.popleft()
                    yield ready, future.result()
            while under_way:
                ready, future = under_way.popleft()
                yield ready, future.result()
        finally:
            for _, future in under_way:
                future.cancel()
