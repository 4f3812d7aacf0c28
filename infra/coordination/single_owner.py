"""Ownership without ZooKeeper: a single worker owns everything, because a setting says so.

It raises every fence when it starts. Should a second one be started by mistake, its raise fences the first: that one's
writes under its leases are refused from then on, and it goes on with work that needs none.
"""

import threading
from typing import Final

from infra.coordination.holdings import OwnershipEvents
from logstore.errors import CatalogBusy, NotOwner, SextonError
from logstore.names import TopicName
from logstore.ownership import BundleId, Lease, bundle_of
from logstore.ports.catalog import Fences

_TRIES: Final = 40  # of seconds each: longer than PostgreSQL lets a paused transaction live


class SingleOwner:
    """The `Owners` port without coordination."""

    def __init__(self, worker_id: str, fences: Fences, events: OwnershipEvents | None = None) -> None:
        """Own nothing yet."""
        self._worker_id, self._fences, self._events = worker_id, fences, events or OwnershipEvents()
        self._bundles = fences.bundles()
        self._leases: dict[BundleId, Lease] = {}
        self.stopping = threading.Event()
        self.failure: SextonError | None = None  # never: there is no session to lose

    def start(self) -> None:
        """Acquire all bundles.

        Raises:
            StoreUnavailable, CatalogBusy: The catalog did not answer, or an earlier owner's write does not end.
        """
        missing = [BundleId(bundle) for bundle in range(self._bundles)]
        for _ in range(_TRIES):
            self._acquire(missing)
            missing = [bundle for bundle in missing if bundle not in self._leases]
            if not missing or self.stopping.is_set():
                break
        if missing:
            raise CatalogBusy(f"bundles {missing[:10]}: a write under an earlier lease does not end")
        self._events.holds(len(self._leases))

    def _acquire(self, bundles: list[BundleId]) -> None:
        with self._events.acquiring(bundles):
            given = {lease.bundle: lease for lease in self._fences.raise_fences(bundles, self._worker_id)}
            self._events.acquired(given.values())
        self._leases |= given

    def stop(self) -> None:
        """Own nothing any more."""
        self.stopping.set()
        self._leases = {}
        self._events.holds(0)

    def lookup(self, topic: TopicName, *, patience_s: float) -> Lease | None:
        """See `Owners.lookup`: here, unless another worker has acquired everything since."""
        del patience_s  # the catalog has its own
        try:
            lease = self.lease_of(topic)
            self._fences.verify(lease)
        except NotOwner:
            return None
        return lease

    def lease_of(self, topic: TopicName) -> Lease:
        """See `Owners.lease_of`."""
        bundle = bundle_of(topic, bundles=self._bundles)
        lease = self._leases.get(bundle)
        if lease is None:
            raise NotOwner(bundle, expected=f"worker {self._worker_id} to own it", found="that it has stopped")
        return lease

    def leases(self) -> list[Lease]:
        """All that this worker holds, ascending by bundle."""
        return [lease for _, lease in sorted(self._leases.items())]
