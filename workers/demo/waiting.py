"""How the demo waits for a condition that will become true."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 600.0
"""Seconds. On a machine that is busy with other work everything may take many times as long, and that is no failure."""

_LOOK_S: Final = 0.05


async def happens(met: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
    """Wait until `met` answers True; returns False if it does not in time. The wait can be cancelled, as by Ctrl-C."""
    give_up = time.monotonic() + within_s
    while not await asyncio.to_thread(met):
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(_LOOK_S)
    return True
