"""Ownership without ZooKeeper: a setting declares a single worker the bundle owner of all bundles.

The worker raises every fence when it starts. If a second worker is started by mistake, it raises all fences again, and
the catalog refuses writes under the first worker's leases.
"""

import threading
from typing import Final

from infra.coordination.bundle_holdings import OwnershipObserver
from logstore.catalog.ownership.fences import Fences
from logstore.errors import CatalogBusy, NotOwner, SextonError
from logstore.ownership import BundleId, Lease, bundle_of_topic
from logstore.validated_names import TopicName

_MAX_RAISES: Final = 40  # each waits for seconds; together they outlast PostgreSQL's timeout of a paused transaction


class SingleOwner:
    def __init__(self, worker_id: str, fences: Fences, events: OwnershipObserver | None = None) -> None:
        self._worker_id, self._fences, self._events = worker_id, fences, events or OwnershipObserver()
        self._bundle_count = fences.count_bundles()
        self._leases: dict[BundleId, Lease] = {}
        self.stopping = threading.Event()
        self.failure: SextonError | None = None  # always None: there is no session to lose

    def start(self) -> None:
        """Acquire all bundles.

        Raises:
            CatalogBusy: A write under an earlier lease does not end.
        """
        missing = [BundleId(bundle) for bundle in range(self._bundle_count)]
        for _ in range(_MAX_RAISES):
            self._acquire(missing)
            missing = [bundle for bundle in missing if bundle not in self._leases]
            if not missing or self.stopping.is_set():
                break
        if missing:
            raise CatalogBusy(f"bundles {missing[:10]}: a write under an earlier lease does not end")
        self._events.on_lease_count(len(self._leases))

    def _acquire(self, bundles: list[BundleId]) -> None:
        with self._events.trace_acquisition(bundles):
            leases = {lease.bundle: lease for lease in self._fences.raise_fences(bundles, self._worker_id)}
            self._events.on_acquired(leases.values())
        self._leases |= leases

    def stop(self) -> None:
        self.stopping.set()
        self._leases = {}
        self._events.on_lease_count(0)

    def find_owner(self, topic: TopicName, *, patience_s: float) -> Lease | None:
        del patience_s  # the catalog has its own timeout
        try:
            lease = self.get_lease(topic)
            self._fences.require_newest_lease(lease)
        except NotOwner:
            return None
        return lease

    def get_lease(self, topic: TopicName) -> Lease:
        bundle = bundle_of_topic(topic, bundle_count=self._bundle_count)
        lease = self._leases.get(bundle)
        if lease is None:
            raise NotOwner(bundle, expected=f"worker {self._worker_id} to own it", found="that it has stopped")
        return lease

    def leases(self) -> list[Lease]:
        return [lease for _, lease in sorted(self._leases.items())]
