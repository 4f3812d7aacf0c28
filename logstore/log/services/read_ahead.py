"""What readers of a process share: a cache of values that were read, and threads that fetch a few items ahead."""

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
    """The values that were used last, by their keys. Threads share it; a value never changes."""

    def __init__(self, most_bytes: int, size: Callable[[V], int], *, least: int = 0) -> None:
        """Keep at most `most_bytes` bytes as measured by `size`, but always the `least` values that were used last."""
        self._most, self._size, self._least = most_bytes, size, least
        self._values: OrderedDict[K, V] = OrderedDict()  # the one that was used last at the end
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        """What all values take together."""
        return sum(self._size(one) for one in list(self._values.values()))

    def read(self, key: K, fetch: Callable[[], V]) -> V:
        """The value of a key, from the cache or, if it is not there, from `fetch`, whose errors are passed on."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        found = fetch()
        with self._lock:
            self._values[key] = found
            held = self.memory_bytes
            while held > self._most and len(self._values) > self._least:
                held -= self._size(self._values.popitem(last=False)[1])
        return found


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
