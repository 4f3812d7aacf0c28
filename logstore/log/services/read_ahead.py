"""Cache of read values, and threads that prefetch. The readers of a process share both."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ReadCache(Generic[K, V]):
    """Thread-safe cache of the most recently used values. Values never change."""

    def __init__(self, max_bytes: int, size_of: Callable[[V], int], *, min_values: int = 0) -> None:
        """Keep at most `max_bytes` bytes, as measured by `size_of`, but always the last `min_values` values."""
        self._most, self._size, self._least = max_bytes, size_of, min_values
        self._values: OrderedDict[K, V] = OrderedDict()  # the most recently used value is at the end
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        return sum(self._size(value) for value in list(self._values.values()))

    def read(self, key: K, fetch: Callable[[], V]) -> V:
        """Return the value of a key, from the cache or from `fetch`. Errors of `fetch` are raised."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = fetch()
        with self._lock:
            self._values[key] = value
            total_bytes = self.memory_bytes
            while total_bytes > self._most and len(self._values) > self._least:
                total_bytes -= self._size(self._values.popitem(last=False)[1])
        return value


_Item = TypeVar("_Item")
_Value = TypeVar("_Value")

_ITEMS_AHEAD: Final = 2
_THREADS: Final = 4


class Prefetcher:
    """Threads that fetch items ahead, for all readers of a process."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefetch")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, items: Iterator[_Item], fetch: Callable[[_Item], _Value]) -> Iterator[tuple[_Item, _Value]]:
        """Yield each item with its value, in order. An error of `fetch` is raised when its item would be yielded.

        The first item is fetched alone, because many readers need no more. Later, up to 2 items are fetched ahead.
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
