"""Threads that beat for an activity are started where no cancellation can be raised."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from activities.beating import beating
from activities.deletion.pulse import Pulse


@contextmanager
def _in_pulse() -> Iterator[None]:
    with Pulse(lambda: None):
        yield


@pytest.mark.parametrize("alive", [beating, _in_pulse])
def test_beating_thread_starts_shielded_from_cancellation(
    alive: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.11 raises in a thread that is being started what is meant for its parent, which then waits for ever."""
    shielded, started = threading.Event(), []
    start = threading.Thread.start

    @contextmanager
    def shield() -> Iterator[None]:
        shielded.set()
        yield
        shielded.clear()

    def watched(thread: threading.Thread) -> None:
        started.append(shielded.is_set())
        start(thread)

    def work() -> None:
        with alive():
            assert not shielded.is_set()

    monkeypatch.setattr(activity, "shield_thread_cancel_exception", shield)
    monkeypatch.setattr(threading.Thread, "start", watched)
    ActivityEnvironment().run(work)
    assert started == [True]
