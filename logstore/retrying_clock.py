"""Clock of this process, replaceable in tests, and the loop that retries failed calls.

Three loops retry by other rules (ADR 17): `Database.write`, kazoo's `KazooRetry`, and Temporal's `RetryPolicy`.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from logstore.errors import OutcomeUnknown, RetryableError
from logstore.stop_checks import raise_if_stopped

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Number of attempts, and pauses between them. Pauses double. Half of a pause is random, to spread callers."""

    attempts: int = 5  # 1 or more, including the first attempt
    first_s: float = 0.1
    longest_s: float = 5.0

    def pause_s(self, failures: int) -> float:
        longest = min(self.longest_s, self.first_s * 2 ** min(failures - 1, 30))
        return random.uniform(longest / 2, longest)  # noqa: S311 - guards nothing


_DEFAULT_BACKOFF: Final = Backoff()
"""Pauses of 0.75 to 1.5 s in total. They suffice for a short disturbance, but not for an outage."""


def _is_transient(error: Exception) -> bool:
    return isinstance(error, RetryableError | OutcomeUnknown)


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Source of time. Decisions that destroy data use the clock of the catalog or of the store instead."""

    now_us: Callable[[], int] = _now_us  # microseconds since 1970, UTC
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def retry(
        self,
        call: Callable[[], _Result],
        *,
        deadline_s: float,
        backoff: Backoff = _DEFAULT_BACKOFF,
        is_retryable: Callable[[Exception], bool] = _is_transient,
        extra_pause_s: Callable[[Exception], float] = lambda _: 0.0,
    ) -> _Result:
        """Repeat `call` with growing pauses until it succeeds. If attempts or time run out, raise the last error.

        Args:
            call: Call that is safe to repeat.
            deadline_s: Time of `monotonic_s` before which every pause must end.
            backoff: Number of attempts, and the pauses between them.
            is_retryable: Whether to try again. The default accepts `RetryableError` and `OutcomeUnknown`.
            extra_pause_s: Seconds to add to the pause, for example because the service asks for them.
        """
        failures = 0
        while True:
            try:
                return call()
            except Exception as error:
                failures += 1
                if failures >= backoff.attempts or not is_retryable(error):
                    raise
                pause_s = backoff.pause_s(failures) + extra_pause_s(error)
                if self.monotonic_s() + pause_s >= deadline_s:
                    raise
            self.sleep(pause_s)
            raise_if_stopped()  # not before the first attempt, so that a clean-up after a stop is tried once
