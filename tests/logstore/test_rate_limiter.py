"""A rate limiter waits for what was used, and saves nothing up."""

import math
from itertools import accumulate

import pytest

from logstore.rate_limiter import RateLimiter


def test_a_pause_does_not_allow_a_higher_rate_later() -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    limiter = RateLimiter(100, clock=lambda: now[0], sleep=sleep)
    limiter.wait_after_use(50)
    now[0] += 10  # nothing is used meanwhile
    limiter.wait_after_use(200)
    limiter.wait_after_use(100)
    assert slept == [0.5, 2.0, 1.0]
    assert limiter.used_units == 350


@pytest.mark.parametrize("rate", [0.5, 1, 50, 99.9, 2_000, math.inf])
def test_batches_keep_the_rate_at_any_time(rate: float) -> None:
    """A batch has what the rate allows in a second, or one item: no more ever ran ahead."""
    now, times, batches = [0.0], list[float](), list[list[int]]()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    limiter = RateLimiter(rate, clock=lambda: now[0], sleep=sleep)
    items = list(range(250))
    for batch in limiter.iterate_batches(items, 100):
        times.append(now[0])
        batches.append(list(batch))
    assert [item for batch in batches for item in batch] == items
    assert max(map(len, batches)) == max(1, int(min(rate, 100)))
    for used, time_s, batch in zip(accumulate(map(len, batches)), times, batches, strict=True):
        assert used - len(batch) <= rate * time_s * (1 + 1e-9) if rate < math.inf else time_s == 0
    assert now[0] == pytest.approx(len(items) / rate)


def test_pauses_that_are_too_short_are_added_up() -> None:
    slept = list[float]()
    limiter = RateLimiter(1_000_000, clock=lambda: 0.0, sleep=slept.append)
    for _ in range(25):
        limiter.wait_after_use(100)
    assert slept[0] == pytest.approx(0.001)
