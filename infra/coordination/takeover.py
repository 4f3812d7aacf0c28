"""When a worker takes a free bundle, when it leaves one to other workers, and when it has lost one to them."""

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from logstore.errors import RetryableError
from logstore.ownership import BundleId, Lease, OwnershipView, ranking, to_take
from logstore.ports.catalog import Fences

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverTimes:
    """How long a worker waits before it takes a bundle or looks at its fences again."""

    takeover_grace_s: float = 1.0  # how long the next in a bundle's ranking waits for the one before it
    rest_s: float = 10.0  # how long a bundle that was taken from this worker is left to others
    fences_s: float = 5.0  # between two looks at the fences of what this worker holds


class Takeover:
    """Bundles that this worker leaves to others for now, and bundles that it keeps for another worker.

    Times are of one monotonic clock.
    """

    def __init__(self, worker_id: str, times: TakeoverTimes) -> None:
        """Leave and keep no bundle yet."""
        self._worker_id, self._times = worker_id, times
        self._free_since: dict[BundleId, float] = {}
        self._resting: dict[BundleId, float] = {}  # until when
        self._minded: dict[BundleId, float] = {}  # for a live worker whose turn it was: until when it is kept

    @property
    def minded(self) -> frozenset[BundleId]:
        """Bundles that must not be released: the worker whose turn it was would not take them yet."""
        return frozenset(self._minded)

    def rest(self, bundles: Iterable[BundleId], now: float) -> None:
        """Leave bundles to others that were taken from this worker, or that it could not acquire."""
        self._resting |= dict.fromkeys(bundles, now + self._times.rest_s)

    def make_way(self, bundles: Iterable[BundleId], now: float) -> None:
        """Leave bundles to others that were released for one of them; it takes them at once."""
        self._resting |= dict.fromkeys(bundles, now + self._times.takeover_grace_s)

    def due(self, view: OwnershipView, now: float) -> set[BundleId]:
        """The free bundles whose turn has come for this worker."""
        self._free_since = {bundle: self._free_since.get(bundle, now) for bundle in view.free}
        self._resting = {bundle: until for bundle, until in self._resting.items() if until > now}
        free_for_s = {bundle: now - since for bundle, since in self._free_since.items()}
        due = to_take(view, self._worker_id, free_for_s=free_for_s, takeover_grace_s=self._times.takeover_grace_s)
        return set(due) - self._resting.keys()

    def mind(self, bundles: Iterable[BundleId], view: OwnershipView, now: float) -> None:
        """Keep bundles that it was another worker's turn to take; that worker may be resting.

        Released at once, such a bundle would move between the two workers again and again.

        Source: apache/pulsar#14736.
        """
        self._minded = {bundle: until for bundle, until in self._minded.items() if until > now}
        takers = {worker_id: view.workers[worker_id] for worker_id in view.takers}
        left = [bundle for bundle in bundles if ranking(bundle, takers)[:1] != [self._worker_id]]
        self._minded |= dict.fromkeys(left, now + self._times.rest_s)


class LostFences:
    """Looks at the fences now and then; used by one thread."""

    def __init__(self, fences: Fences, *, every_s: float) -> None:
        """Look every `every_s` seconds, for the first time after as long."""
        self._fences, self._every_s = fences, every_s
        self._looked_at = time.monotonic()

    def of(self, leases: Collection[Lease]) -> list[BundleId]:
        """Bundles of the leases that are not the last of theirs; none between two looks, or without an answer."""
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
