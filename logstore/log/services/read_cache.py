"""A cache of values that were read, bounded in bytes: the next read often asks for the same value."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

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
