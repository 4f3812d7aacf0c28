"""Cache of values that the readers of a process share, bounded by bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ReadCache(Generic[K, V]):
    """Thread-safe cache of the most recently used values. The value of a key must never change."""

    def __init__(self, max_bytes: int, size_of: Callable[[V], int], *, min_values: int = 0) -> None:
        """Keep at most `max_bytes`, measured by `size_of`. The `min_values` most recently used values always stay."""
        self._max_bytes, self._size_of, self._min_values = max_bytes, size_of, min_values
        self._values: OrderedDict[K, V] = OrderedDict()  # the most recently used value is at the end
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        return sum(self._size_of(value) for value in list(self._values.values()))

    def get_or_fetch(self, key: K, fetch: Callable[[], V]) -> V:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = fetch()
        with self._lock:
            self._values[key] = value
            total_bytes = self.memory_bytes
            while total_bytes > self._max_bytes and len(self._values) > self._min_values:
                total_bytes -= self._size_of(self._values.popitem(last=False)[1])
        return value
