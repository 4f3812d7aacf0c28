"""Values that were read, kept for a while within a bound of bytes: what is asked next is often the same."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by their keys, those that were used last. Threads share it; a value never changes."""

    def __init__(self, most_bytes: int, size: Callable[[V], int], *, least: int = 0) -> None:
        """Keep so many bytes at most by `size`, and the `least` values that were used last, however large they are."""
        self._most, self._size, self._least = most_bytes, size, least
        self._values: OrderedDict[K, V] = OrderedDict()  # the one that was used last at the end
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        """What all values take together."""
        return sum(self._size(one) for one in list(self._values.values()))

    def read(self, key: K, fetch: Callable[[], V]) -> V:
        """The value of a key, from here or else by `fetch`, whose errors are passed on."""
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
