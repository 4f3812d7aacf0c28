"""This process's time, injectable, and the one loop that repeats a call which may work the next time.

Beside it stand three that decide something else: `Database.write` repeats a whole transaction for as long as others
hold its locks, kazoo's `KazooRetry` a call within one session, and Temporal's `RetryPolicy` an activity (ADR 17).
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from logstore.errors import OutcomeUnknown, RetryableError
from logstore.units import raise_if_stopped

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How often a call is repeated, and after which pauses.

    A pause is twice the one before, and half of it is random, so that many callers do not come back as one.
    """

    attempts: int = 5  # 1 or more, the first included
    first_s: float = 0.1
    longest_s: float = 5.0

    def pause_s(self, failures: int) -> float:
        """The pause after this number of failures in a row, 1 or more."""
        longest = min(self.longest_s, self.first_s * 2 ** min(failures - 1, 30))
        return random.uniform(longest / 2, longest)  # noqa: S311 - guards nothing


_BLIP: Final = Backoff()
"""0.75 to 1.5 s in all: a blip, and not an outage."""


def _may_pass(error: Exception) -> bool:
    return isinstance(error, RetryableError | OutcomeUnknown)


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where time comes from. No decision that destroys rests on it: those use the catalog's or the store's."""

    now_us: Callable[[], int] = _now_us  # microseconds since 1970, UTC
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def retry(
        self,
        ask: Callable[[], _Result],
        *,
        deadline_s: float,
        backoff: Backoff = _BLIP,
        may_pass: Callable[[Exception], bool] = _may_pass,
        wanted_s: Callable[[Exception], float] = lambda _: 0.0,
    ) -> _Result:
        """Ask until it works, a few times, with growing pauses.

        Args:
            ask: Safe to repeat.
            deadline_s: On this clock's `monotonic_s`; no pause reaches beyond it.
            backoff: How often, and with which pauses.
            may_pass: Whether a repetition can help; by default it can with `RetryableError` and `OutcomeUnknown`.
            wanted_s: Seconds by which the service itself wants the pause to be longer.

        Raises:
            Exception: That of the last attempt: the first one that cannot pass, or that of the last attempt allowed,
                or the one after which the pause would reach the deadline.
        """
        failures = 0
        while True:
            try:
                return ask()
            except Exception as error:
                failures += 1
                if failures >= backoff.attempts or not may_pass(error):
                    raise
                pause_s = backoff.pause_s(failures) + wanted_s(error)
                if self.monotonic_s() + pause_s >= deadline_s:
                    raise
            self.sleep(pause_s)
            raise_if_stopped()  # not before the first attempt: what cleans up after an end is asked for once
