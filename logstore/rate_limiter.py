"""Limit of what one task uses per second, such as bytes that it reads, or requests."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")


_MIN_SLEEP_S: Final = 0.001  # shorter pauses take longer than they should, and are added to the next one


class RateLimiter:
    """Limiter of the units that a task uses per second. A pause does not allow a higher rate later."""

    def __init__(
        self,
        units_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.units_per_s, self._clock, self._sleep = units_per_s, clock, sleep
        self._free_at = clock()
        self.used_units = 0

    def wait_after_use(self, units: int) -> None:
        self.used_units += units
        now = self._clock()
        self._free_at = max(self._free_at, now) + units / self.units_per_s
        if self._free_at - now >= _MIN_SLEEP_S:
            self._sleep(self._free_at - now)

    def iterate_batches(self, items: Sequence[T], max_items: int) -> Iterator[Sequence[T]]:
        """Yield the items, at most those of one second together. Wait after the use of each batch, also of the last."""
        step = max(1, int(min(max_items, self.units_per_s)))
        for start in range(0, len(items), step):
            batch = items[start : start + step]
            yield batch
            self.wait_after_use(len(batch))
