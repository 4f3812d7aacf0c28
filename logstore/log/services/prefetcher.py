"""Threads that fetch items before a reader asks for the items. All readers of a process share these threads."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import Final, TypeVar

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")
_ITEMS_AHEAD: Final = 2
_THREADS: Final = 4


class Prefetcher:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefetch")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def fetch_ahead(self, items: Iterator[_Item], fetch: Callable[[_Item], _Value]) -> Iterator[tuple[_Item, _Value]]:
        """Yield each item with its value, in order. If `fetch` fails for an item, raise the error instead of this item.

        The first item is fetched alone, because many readers need only one item. Then up to 2 items are fetched ahead.
        """
        pending: deque[tuple[_Item, Future[_Value]]] = deque()
        try:
            for item in islice(items, 1):
                yield item, fetch(item)
            for item in items:
                pending.append((item, self._pool.submit(copy_context().run, fetch, item)))
                if len(pending) > _ITEMS_AHEAD:
                    pending_item, future = pending.popleft()
                    yield pending_item, future.result()
            while pending:
                pending_item, future = pending.popleft()
                yield pending_item, future.result()
        finally:
            for _, future in pending:
                future.cancel()
