"""Signs of life: heartbeats to Temporal, and claims renewed with them."""

import time
from collections.abc import Callable

from temporalio import activity

_RENEW_EVERY_S = 15.0  # a quarter of a claim: three renewals may fail before it lapses


class Pulse:
    """Heartbeats per unit of work; renews the claim at most every 15 s."""

    def __init__(self, renew: Callable[[], None]) -> None:
        """Renew at once, so that work starts under a live claim.

        Raises:
            ClaimHeld: Another workflow is at work.
        """
        self._renew = renew
        self._examined = 0
        self._objects = 0
        renew()
        self._renewed = time.monotonic()

    def examined(self) -> None:
        """Count one ledger looked at."""
        self._examined += 1
        self._beat()

    def deleted(self, objects: int) -> None:
        """Count objects that storage confirmed."""
        self._objects += objects
        self._beat()

    def _beat(self) -> None:
        activity.heartbeat(self._examined, self._objects)
        if time.monotonic() - self._renewed >= _RENEW_EVERY_S:
            self._renew()
            self._renewed = time.monotonic()
