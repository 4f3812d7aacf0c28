"""Leases whose fence another raised although the owner's node stands.

Raising is not conditional on the node. A worker that is paused between its node and its raise, for longer than its
session lives, raises the fence of whoever owns the bundle by then; so does one that owns without ZooKeeper, started
beside the others by mistake. The owner's node stands, so nobody else would ever take the bundle, and all that is
written under its lease would be refused for as long as its session lives. So it looks, and acquires again.
"""

import logging
import time
from collections.abc import Collection

from logstore.errors import RetryableError
from logstore.ownership import BundleId, Lease
from logstore.ports.catalog import Fences

_log = logging.getLogger(__name__)


class LostFences:
    """Looks at the fences now and then; used by one thread."""

    def __init__(self, fences: Fences, *, every_s: float) -> None:
        """Look for the first time after so many seconds."""
        self._fences, self._every_s = fences, every_s
        self._looked_at = time.monotonic()

    def of(self, leases: Collection[Lease]) -> list[BundleId]:
        """Bundles of the leases that are not the last of theirs; none between two looks, or where nobody answers."""
        now = time.monotonic()
        if not leases or now - self._looked_at < self._every_s:
            return []
        self._looked_at = now
        try:
            found = self._fences.fences()
        except RetryableError as error:
            _log.info("fences are looked at again later: %s", error)
            return []
        last = {Lease(bundle=one.bundle, fence=one.counter, worker_id=one.worker_id) for one in found}
        return [lease.bundle for lease in leases if lease not in last]
