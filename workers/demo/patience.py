"""How long the demo waits for what is bound to happen."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 600.0
"""A machine may be busy with other work, and then all takes many times as long: that is no broken promise."""

_LOOK_S: Final = 0.05


async def happens(met: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
    """Wait until it is so; False where it is not in time. The wait can be cancelled, as by Ctrl-C."""
    give_up = time.monotonic() + within_s
    while not await asyncio.to_thread(met):
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(_LOOK_S)
    return True
