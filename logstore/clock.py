"""This process's time, injectable, and patience with services that may come back."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from logstore.errors import OutcomeUnknown, RetryableError

_Result = TypeVar("_Result")

_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.1
"""Doubled by every try and drawn from half to whole: 0.75 to 1.5 s in all, a blip and not an outage."""


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where time comes from. No decision that destroys rests on it: those use the catalog's or the store's."""

    now_us: Callable[[], int] = _now_us  # microseconds since 1970, UTC
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def patiently(self, ask: Callable[[], _Result], *, deadline_s: float) -> _Result:
        """Ask until it works, a few times, with growing pauses.

        Args:
            ask: Safe to repeat.
            deadline_s: On this clock's `monotonic_s`; no pause reaches beyond it.

        Raises:
            RetryableError, OutcomeUnknown: The last try's, after 5 tries or when the next pause would pass the
                deadline.
        """
        for earlier in range(_TRIES - 1):
            try:
                return ask()
            except (RetryableError, OutcomeUnknown):
                pause = _FIRST_PAUSE_S * 2**earlier * random.uniform(0.5, 1)  # noqa: S311 - spreads a herd
                if self.monotonic_s() + pause >= deadline_s:
                    raise
                self.sleep(pause)
        return ask()
