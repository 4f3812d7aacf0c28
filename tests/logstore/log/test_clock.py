"""Patience with services that may come back."""

from collections.abc import Callable

import pytest

from logstore.errors import LedgerFenced, OutcomeUnknown, SextonError, StoreUnavailable
from logstore.log.services import Clock
from tests.logstore.log.world import World


def _clock(world: World) -> Clock:
    return Clock(now_us=lambda: world.catalog.now_us, monotonic_s=world._monotonic_s, sleep=world._sleep)


def _failing(error: SextonError, times: int) -> tuple[list[int], Callable[[], str]]:
    asked: list[int] = []

    def ask() -> str:
        asked.append(1)
        if len(asked) <= times:
            raise error
        return "answer"

    return asked, ask


@pytest.mark.parametrize("error", [StoreUnavailable("planned"), OutcomeUnknown("planned")])
def test_patience_asks_five_times_with_growing_pauses(world: World, error: SextonError) -> None:
    """Four failures are ridden out, the fifth is told (apache/pulsar#26431: retries always back off)."""
    _, ask = _failing(error, 4)
    assert _clock(world).retry(ask, deadline_s=float("inf")) == "answer"
    assert all(0.05 * 2**at <= pause <= 0.1 * 2**at for at, pause in enumerate(world.slept))
    asked, ask = _failing(error, 5)
    with pytest.raises(type(error)):
        _clock(world).retry(ask, deadline_s=float("inf"))
    assert len(asked) == 5


def test_patience_ends_with_the_deadline(world: World) -> None:
    """No pause reaches beyond it."""
    asked, ask = _failing(StoreUnavailable("planned"), 5)
    with pytest.raises(StoreUnavailable):
        _clock(world).retry(ask, deadline_s=world._monotonic_s() + 0.04)
    assert len(asked) == 1
    assert world.slept == []


def test_patience_is_for_what_may_change(world: World) -> None:
    """A refusal is told at once."""
    asked, ask = _failing(LedgerFenced("planned"), 1)
    with pytest.raises(LedgerFenced):
        _clock(world).retry(ask, deadline_s=float("inf"))
    assert len(asked) == 1


def test_clock_of_the_process_tells_its_time() -> None:
    """Microseconds since 1970, and a monotonic clock beside it."""
    clock = Clock()
    assert 1_600_000_000_000_000 < clock.now_us() < 10_000_000_000_000_000
    assert clock.monotonic_s() <= clock.monotonic_s()
