"""The demo waits for what is bound to happen as long as a busy machine needs, and Ctrl-C ends a wait."""

import asyncio
from itertools import count

import pytest

from workers.demo.temporary_homes import WAIT_TIMEOUT_S, wait_until


def test_wait_ends_when_it_has_happened() -> None:
    """After a few looks."""
    looks = count()
    assert asyncio.run(wait_until(lambda: next(looks) >= 3))
    assert next(looks) == 4


def test_wait_for_what_never_comes_ends_in_time() -> None:
    """The demo then says what did not happen."""
    assert not asyncio.run(wait_until(lambda: False, within_s=0.0))


def test_wait_can_be_cancelled() -> None:
    """It holds no thread: a demo that is interrupted ends at once, however long it would wait."""
    assert WAIT_TIMEOUT_S > 60

    async def interrupted() -> None:
        waiting = asyncio.ensure_future(wait_until(lambda: False))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(asyncio.wait_for(interrupted(), 30))
