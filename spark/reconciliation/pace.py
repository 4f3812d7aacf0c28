"""The rate of one task of a scrub."""

import time
from collections.abc import Callable


class Pace:
    """Keeps what a task reads at or below a rate, on average from each wait on; a rest is not made up for."""

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep `bytes_per_s`, above 0."""
        self._bytes_per_s, self._clock, self._sleep = bytes_per_s, clock, sleep
        self._free_at = clock()
        self.spent = 0

    def spend(self, size_bytes: int) -> None:
        """Count bytes that were read, and wait for as long as the rate asks for them."""
        self.spent += size_bytes
        now = self._clock()
        self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_s
        self._sleep(self._free_at - now)
