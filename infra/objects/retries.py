"""Retries of requests to the object store, and the rate at which deletes ask it."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from infra.objects.answers import retry_after_s
from logstore.clock import Backoff, Clock
from logstore.errors import ServiceRefused, StoreUnavailable

T = TypeVar("T")
_UNLIMITED = math.inf
_PAGE_GROWTH = 25  # keys that an accepted page adds to the next one
_RATE_GROWTH = 0.05  # of the rate at the last cut, added by each accepted page
_RATE_CUT = 0.7
_RATE_FREE = 10.0  # times the rate at the last cut: no need to hold back any more
_FIRST_WINDOW_S = 0.1  # at the first throttle, one page in this time is the first guess of a bearable rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Bounded attempts at one request; see `Backoff` for the pauses between them."""

    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=6))
    give_up_after_s: float = 120.0  # no new attempt begins later than this after the first
    clock: Clock = field(default_factory=Clock)

    def ask(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it answers, and wait longer where the store asks for it.

        Raises:
            StoreUnavailable, ServiceRefused: The last attempt's error. A refusal that cannot pass by itself, and every
                other error, is raised at once.
        """
        return self.clock.patiently(
            attempt,
            deadline_s=self.clock.monotonic_s() + self.give_up_after_s,
            backoff=self.backoff,
            may_pass=_may_pass,
            wanted_s=lambda error: min(self.backoff.longest_s, retry_after_s(error)),
        )

    def wait(self, failures: int) -> None:
        """Sleep after the given number of rounds that failed in part, 1 or more."""
        self.clock.sleep(self.backoff.pause_s(failures))


def _may_pass(error: Exception) -> bool:
    return isinstance(error, StoreUnavailable) or (isinstance(error, ServiceRefused) and error.may_pass)


class DeleteRate:
    """How many keys one request names, and how many keys a second are asked for: both adapt to throttling.

    Additive growth, multiplicative cuts. Several threads may be throttled at the same time: only the first of these
    answers cuts the rate, because a request that started before the last cut changes nothing.

    Source: Apache Iceberg #7127, comment by an S3A maintainer: a page of 1,000 keys counts as 1,000 writes, so
    its retry sends 1,000 more to a store that is overloaded already; S3A uses pages of 200.
    """

    def __init__(
        self,
        *,
        ceiling: int = 1000,
        floor: int = 25,
        slowest_keys_per_s: float = 25.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ceiling, self._floor, self._slowest = ceiling, min(floor, ceiling), slowest_keys_per_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._page = ceiling
        self._rate = self._rate_at_cut = _UNLIMITED  # keys a second that requests may name together
        self._next_start = self._last_cut = -_UNLIMITED

    @property
    def page(self) -> int:
        """Keys per bulk request, at this moment."""
        return self._page

    def wait_for_turn(self, keys: int) -> float:
        """Wait until a request that names `keys` keys may start; returns its start, to be handed to `throttled`."""
        with self._lock:
            now = self._clock()
            start = max(now, self._next_start)
            self._next_start = start + keys / self._rate
        if start > now:
            self._sleep(start - now)
        return start

    def accepted(self, keys: int) -> None:
        """A request that named `keys` keys succeeded: the next one may name a few more."""
        if self._page == self._ceiling and self._rate == _UNLIMITED:
            return
        share = keys / self._page  # single deletes recover as slowly as pages do
        with self._lock:
            self._page = min(self._ceiling, self._page + math.ceil(_PAGE_GROWTH * share))
            self._rate += self._rate_at_cut * _RATE_GROWTH * share
            if self._rate > self._rate_at_cut * _RATE_FREE:
                self._rate = _UNLIMITED

    def throttled(self, start: float) -> None:
        """The request that started at `start` was throttled: halve the page, cut the rate."""
        with self._lock:
            if start <= self._last_cut:
                return
            self._last_cut = self._clock()
            self._page = max(self._floor, self._page // 2)
            cut = self._page / _FIRST_WINDOW_S if self._rate == _UNLIMITED else self._rate * _RATE_CUT
            self._rate = self._rate_at_cut = max(self._slowest, cut)
