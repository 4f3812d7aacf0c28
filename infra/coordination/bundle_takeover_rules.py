"""Rules for taking free bundles, leaving bundles to other workers, and detecting leases older than their fence."""

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from logstore.catalog.ownership.fences import Fences
from logstore.errors import RetryableError
from logstore.ownership import BundleId, Lease, OwnershipView, bundles_to_take, rank_workers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverTimes:
    takeover_grace_s: float = 1.0  # wait of each worker in a bundle's ranking for the worker before it
    rest_s: float = 10.0  # after a worker has lost a bundle, until the worker may take the bundle again
    fence_check_interval_s: float = 5.0  # between two checks of the fences


class BundleTakeoverRules:
    """Bundles that this worker leaves to other workers for now, and bundles that it must not release yet.

    In each method, `now` is the time of the monotonic clock in seconds.
    """

    def __init__(self, worker_id: str, times: TakeoverTimes) -> None:
        self._worker_id, self._times = worker_id, times
        self._free_since: dict[BundleId, float] = {}
        self._left_until: dict[BundleId, float] = {}
        self._reserved_until: dict[BundleId, float] = {}

    @property
    def reserved(self) -> frozenset[BundleId]:
        """Bundles that this worker must not release yet, although another worker ranks first for them."""
        return frozenset(self._reserved_until)

    def leave_to_others(self, bundles: Iterable[BundleId], now: float) -> None:
        self._left_until |= dict.fromkeys(bundles, now + self._times.rest_s)

    def leave_briefly(self, bundles: Iterable[BundleId], now: float) -> None:
        """Leave each released bundle, for `takeover_grace_s`, to the worker that ranks first and takes it at once."""
        self._left_until |= dict.fromkeys(bundles, now + self._times.takeover_grace_s)

    def find_due_bundles(self, view: OwnershipView, now: float) -> set[BundleId]:
        self._free_since = {bundle: self._free_since.get(bundle, now) for bundle in view.free_bundles}
        self._left_until = {bundle: until for bundle, until in self._left_until.items() if until > now}
        free_for_s = {bundle: now - since for bundle, since in self._free_since.items()}
        due = bundles_to_take(
            view, self._worker_id, free_for_s=free_for_s, takeover_grace_s=self._times.takeover_grace_s
        )
        return set(due) - self._left_until.keys()

    def reserve(self, bundles: Iterable[BundleId], view: OwnershipView, now: float) -> None:
        """Keep each of `bundles` for which another worker ranks first: do not release it for `rest_s` seconds.

        Without a reservation, this worker would release the bundle at once. Source: apache/pulsar#14736.
        """
        self._reserved_until = {bundle: until for bundle, until in self._reserved_until.items() if until > now}
        takers = {worker_id: view.workers[worker_id] for worker_id in view.available_workers}
        taken_over = [bundle for bundle in bundles if rank_workers(bundle, takers)[:1] != [self._worker_id]]
        self._reserved_until |= dict.fromkeys(taken_over, now + self._times.rest_s)


class FenceChecker:
    """Comparison of leases with fences every `interval_s`. Not thread-safe."""

    def __init__(self, fences: Fences, *, interval_s: float) -> None:
        self._fences, self._interval_s = fences, interval_s
        self._checked_at_s = time.monotonic()

    def find_overtaken_bundles_if_due(self, leases: Collection[Lease]) -> list[BundleId]:
        """Return the bundles whose fence was raised after this worker acquired its lease.

        The result is empty if no comparison is due yet, or if the catalog does not answer.
        """
        now = time.monotonic()
        if not leases or now - self._checked_at_s < self._interval_s:
            return []
        self._checked_at_s = now
        try:
            fences = self._fences.list_fences()
        except RetryableError as error:
            _log.info("fences are looked at again later: %s", error)
            return []
        valid_leases = {Lease(bundle=fence.bundle, fence=fence.counter, worker_id=fence.worker_id) for fence in fences}
        return [lease.bundle for lease in leases if lease not in valid_leases]
