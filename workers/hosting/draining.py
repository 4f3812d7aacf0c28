"""The end of a worker that was told to end: what it has in hand ends too, or is left to others, within a bound.

From the signal on the worker is not ready and takes no task. For `drain_timeout` what it has in hand goes on. Then it
is cancelled, and stops after the request or the transaction in hand. A request that hangs cannot be stopped, so after
`LEAVE_S` more the process ends all the same, as if it were killed: which is safe at any moment, for every effect may
be repeated, and Temporal gives the activity to another worker once its heartbeat is missed.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from workers.hosting.interceptors import RunningActivities

LEAVE_S: Final = 10.0
"""So long after `drain_timeout` a worker ends at the latest, in seconds."""

_FAILED: Final = 1

_log = logging.getLogger(__name__)


@contextmanager
def ended_at_the_latest(drain_timeout_s: float, in_hand: RunningActivities) -> Iterator[None]:
    """End the process with code 1 where the block takes longer than a drain may."""
    timer = threading.Timer(drain_timeout_s + LEAVE_S, _leave, [in_hand])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave(in_hand: RunningActivities) -> None:
    _log.error("%d activities did not end: they are left to other workers", in_hand.activities)
    logging.shutdown()
    os._exit(_FAILED)
