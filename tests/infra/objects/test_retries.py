"""Waits and pace, by a clock that the test moves."""

import math
from itertools import pairwise

import pytest

from infra.objects.object_deletes import DeleteRate
from infra.objects.s3_responses import RequestRetries
from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.retrying_clock import Backoff, Clock
from logstore.stop_checks import use_stop_check
from tests.infra.objects.peer import fault, scripted
from tests.infra.objects.test_store import OK, in_turn, store_at


class Moved:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    @property
    def clock(self) -> Clock:
        """As the product takes it."""
        return Clock(monotonic_s=self, sleep=self.sleep)

    def __call__(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept.append(seconds)
        self.now += seconds


def test_waits_double_up_to_the_longest_and_are_jittered() -> None:
    """Between half and the whole of 0.1, 0.2, 0.4 ... s, never the same for all: no herd."""
    clock = Moved()
    retries = RequestRetries(backoff=Backoff(longest_s=0.8), clock=clock.clock)
    for failures in range(1, 7):
        retries.pause(failures)
    for slept, longest in zip(clock.slept, [0.1, 0.2, 0.4, 0.8, 0.8, 0.8], strict=True):
        assert longest / 2 <= slept <= longest
    assert len(set(clock.slept)) == 6


def test_ask_gives_up_by_time_as_well_as_by_attempts() -> None:
    """Slow failures end the asking before the attempts are used up."""
    clock = Moved()
    retries = RequestRetries(backoff=Backoff(attempts=100, longest_s=1.0), give_up_after_s=5.0, clock=clock.clock)
    with pytest.raises(StoreUnavailable):
        retries.call(lambda: (_ for _ in ()).throw(StoreUnavailable("down")))
    assert 4.0 <= clock.now - 100.0 < 5.0


def test_ask_passes_other_errors_at_once() -> None:
    """What asking again cannot help is not asked again."""
    clock = Moved()
    with pytest.raises(PreconditionFailed):
        RequestRetries(clock=clock.clock).call(lambda: (_ for _ in ()).throw(PreconditionFailed("no")))
    assert clock.slept == []


def test_retry_after_of_the_store_is_waited_for() -> None:
    """A store that names its wait gets it, up to the longest of ours."""
    clock = Moved()
    retries = RequestRetries(clock=clock.clock)
    with scripted(in_turn(fault(503, "SlowDown", Retry_After="2"), OK)) as peer:
        store_at(peer, retries).put_if_absent("key", b"", metadata={})
    assert len(clock.slept) == 1
    assert 2.0 <= clock.slept[0] <= 2.2


def test_pace_of_requests_under_way_at_a_throttle_counts_one_cut() -> None:
    """Eight threads throttled together halve the page once, not eight times."""
    clock = Moved()
    pace = DeleteRate(clock=clock, sleep=clock.sleep)
    starts = [pace.wait_for_turn(1000) for _ in range(8)]
    clock.now += 0.2
    for start in starts:
        pace.record_throttle(start)
    assert (pace.keys_per_request, pace._rate) == (500, 5000)
    clock.now += 1
    pace.record_throttle(pace.wait_for_turn(500))
    assert (pace.keys_per_request, pace._rate) == (250, 3500)


def test_pace_spaces_starts_after_a_throttle_and_recovers() -> None:
    """The rate keeps requests apart; success lets page and rate grow back, slowly, until neither holds back."""
    clock = Moved()
    pace = DeleteRate(clock=clock, sleep=clock.sleep)
    for _ in range(20):
        pace.record_throttle(pace.wait_for_turn(pace.keys_per_request))
        clock.now += 10
    assert (pace.keys_per_request, pace._rate) == (25, 25)
    starts = [pace.wait_for_turn(25) for _ in range(3)]
    assert [two - one for one, two in pairwise(starts)] == [1.0, 1.0]
    pages = []
    for _ in range(200):
        pages.append(pace.keys_per_request)
        pace.record_success(pace.keys_per_request)
    assert all(0 <= two - one <= 25 for one, two in pairwise(pages))
    assert (pace.keys_per_request, pace._rate) == (1000, math.inf)


def test_retries_ask_no_second_time_for_what_was_ended() -> None:
    """The first time it asks all the same, for what cleans up after the end."""
    clock, asked = Moved(), []

    def attempt() -> None:
        asked.append(clock.now)
        raise StoreUnavailable("down")

    def end() -> None:
        raise InterruptedError

    with use_stop_check(end), pytest.raises(InterruptedError):
        RequestRetries(clock=clock.clock).call(attempt)
    assert len(asked) == 1
