"""Work beside the serving of queues: snapshots of transaction buffers are written when they are due.

Each worker does so, for topics that no other has taken. A coordinator would have to stay awake for it, or to wait for
it, and a snapshot is worth neither: nothing waits for one, and what a worker that dies has taken is due again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from logstore.errors import SextonError

_EVERY_S: Final = 1.0  # a fifth of the time after which a snapshot is due

_log = logging.getLogger(__name__)


async def write_snapshots(write_due: Callable[[], int], *, every_s: float = _EVERY_S) -> None:
    """Write what is due, again and again, until cancelled; a catalog that does not answer is logged once.

    Args:
        write_due: Writes a page of snapshots, and says how many were due.
        every_s: Between two looks where nothing was due.
    """
    told = False
    while True:
        try:
            done, told = await asyncio.to_thread(write_due), False
        except SextonError as error:
            if not told:
                _log.warning("no snapshot of transactions is written, because the catalog does not answer: %s", error)
            done, told = 0, True
        if not done:
            await asyncio.sleep(every_s)
