"""Retries of requests to the object store, and the adaptive rate of deletes."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from infra.objects.s3_responses import retry_after_s
from logstore.errors import ServiceRefused, StoreUnavailable
from logstore.retrying_clock import Backoff, Clock

T = TypeVar("T")
_UNLIMITED = math.inf
_KEYS_ADDED_PER_SUCCESS = 25  # to the next request, after a successful one
_RATE_GROWTH_PER_SUCCESS = 0.05  # share of the rate at the last cut that a successful request adds
_RATE_CUT_FACTOR = 0.7
_RATE_RELEASE_FACTOR = 10.0  # multiple of the rate at the last cut from which the rate is unlimited again
_FIRST_CUT_WINDOW_S = 0.1  # the first throttle sets the rate to one request in this time


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetries:
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=6))
    give_up_after_s: float = 120.0  # after the first attempt; no new attempt begins later
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def once(cls) -> Self:
        """Return retries that make one attempt, for commands whose user waits and can run the command again."""
        return cls(backoff=Backoff(attempts=1))

    def call(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds. Wait longer between attempts if the store asks for it.

        Raises:
            StoreUnavailable, ServiceRefused: The error of the last attempt. Other errors, and refusals that will not
                pass, are raised at once.
        """
        return self.clock.retry(
            attempt,
            deadline_s=self.clock.monotonic_s() + self.give_up_after_s,
            backoff=self.backoff,
            is_retryable=_should_retry,
            extra_pause_s=lambda error: min(self.backoff.longest_s, retry_after_s(error)),
        )

    def pause(self, failures: int) -> None:
        self.clock.sleep(self.backoff.pause_s(failures))


def _should_retry(error: Exception) -> bool:
    return isinstance(error, StoreUnavailable) or (isinstance(error, ServiceRefused) and error.may_pass)


class DeleteRate:
    """Adaptive limits for deletes: keys per request, and keys per second. Thread-safe.

    Both limits grow additively, and are cut multiplicatively if the store throttles. If several threads are throttled,
    only the first one cuts the limits: a throttled request has no effect if it started before the last cut.

    Source: Apache Iceberg #7127: a request with 1,000 keys counts as 1,000 writes, and so does its retry.
    """

    def __init__(
        self,
        *,
        max_keys_per_request: int = 1000,
        min_keys_per_request: int = 25,
        min_keys_per_s: float = 25.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._max_keys, self._min_keys = max_keys_per_request, min(min_keys_per_request, max_keys_per_request)
        self._min_keys_per_s = min_keys_per_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._keys_per_request = max_keys_per_request
        self._rate = self._rate_at_cut = _UNLIMITED  # keys per second of all requests together
        self._next_start_s = self._last_cut_s = -_UNLIMITED

    @property
    def keys_per_request(self) -> int:
        return self._keys_per_request

    def wait_for_turn(self, key_count: int) -> float:
        """Wait until a request with `key_count` keys may start. Return the start time for `record_throttle`."""
        with self._lock:
            now_s = self._clock()
            start_s = max(now_s, self._next_start_s)
            self._next_start_s = start_s + key_count / self._rate
        if start_s > now_s:
            self._sleep(start_s - now_s)
        return start_s

    def record_success(self, key_count: int) -> None:
        if self._keys_per_request == self._max_keys and self._rate == _UNLIMITED:
            return
        share = key_count / self._keys_per_request  # the limits grow by deleted keys, also with single deletes
        with self._lock:
            self._keys_per_request = min(
                self._max_keys, self._keys_per_request + math.ceil(_KEYS_ADDED_PER_SUCCESS * share)
            )
            self._rate += self._rate_at_cut * _RATE_GROWTH_PER_SUCCESS * share
            if self._rate > self._rate_at_cut * _RATE_RELEASE_FACTOR:
                self._rate = _UNLIMITED

    def record_throttle(self, start_s: float) -> None:
        """Halve the keys per request and cut the rate, unless the request started before the last cut."""
        with self._lock:
            if start_s <= self._last_cut_s:
                return
            self._last_cut_s = self._clock()
            self._keys_per_request = max(self._min_keys, self._keys_per_request // 2)
            cut = (
                self._keys_per_request / _FIRST_CUT_WINDOW_S
                if self._rate == _UNLIMITED
                else self._rate * _RATE_CUT_FACTOR
            )
            self._rate = self._rate_at_cut = max(self._min_keys_per_s, cut)
