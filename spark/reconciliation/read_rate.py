"""Limit of the bytes per second that one task of a scrub reads."""

import time
from collections.abc import Callable


class ReadRateLimiter:
    """Limiter of the bytes that a task reads per second. A pause in reading does not allow a higher rate later."""

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._free_at = clock()
        self.read_bytes = 0

    def wait_after_read(self, size_bytes: int) -> None:
        self.read_bytes += size_bytes
        now = self._clock()
        self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s
        self._sleep(self._free_at - now)
