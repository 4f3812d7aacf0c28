"""The end of a worker that was told to end: what it has in hand ends too, or is left to others, within a bound.

From the signal on the worker is not ready and takes no task. For `drain_timeout` what it has in hand goes on. Then it
is cancelled, and stops after the request or the transaction in hand. A request that hangs cannot be stopped, so after
`LEAVE_S` more the process ends all the same, as if it were killed: which is safe at any moment, because every effect
may be repeated, and Temporal gives the activity to another worker once its heartbeat is missed. That holds from the
signal to the end of the process: also for a worker that was still starting, and for requests of no activity, such as a
look at a bucket, for whose threads Python waits at its own end.
"""

import logging
import os
import threading
from typing import Final

from workers.hosting.interceptors import RunningActivities

LEAVE_S: Final = 10.0
"""So long after `drain_timeout` a worker ends at the latest, in seconds."""

_FAILED: Final = 1
_TOLD_WITHIN_S: Final = 1.0

_log = logging.getLogger(__name__)


class LastMoment:
    """Ends the process with code 1 where it takes longer to end by itself than a drain may."""

    def __init__(self, drain_timeout_s: float, in_hand: RunningActivities, *, leave_s: float = LEAVE_S) -> None:
        """Count from nothing yet; `leave_s` is for tests."""
        self._timer = threading.Timer(drain_timeout_s + leave_s, _leave, [in_hand])
        self._timer.daemon = True
        self._begun = False

    def begin(self) -> None:
        """Count from now on; it was told before, or not. Nothing takes it back."""
        if not self._begun:
            self._begun = True
            self._timer.start()


def _leave(in_hand: RunningActivities) -> None:
    try:
        telling = threading.Thread(target=_tell, args=[in_hand], daemon=True)
        telling.start()
        telling.join(_TOLD_WITHIN_S)  # a log that nobody reads any more takes no line, and lets nobody close it
    finally:
        os._exit(_FAILED)


def _tell(in_hand: RunningActivities) -> None:
    _log.error("%d activities did not end, or a request hangs: they are left to other workers", in_hand.activities)
    logging.shutdown()
