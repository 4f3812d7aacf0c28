"""A rate limiter waits for what was used, and saves nothing up."""

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
