"""A process that acquires each bundle that it meets, as an owner that was started a moment ago."""

from logstore.catalog.ownership.fences import Fences
from logstore.errors import NotOwner
from logstore.ownership import BundleId, Lease, bundle_of_topic
from logstore.validated_names import TopicName

WORKER_ID: str = "faults"


class AcquiringTopicOwners:
    """The `TopicOwners` port of a process whose every write for a topic carries a lease."""

    def __init__(self, fences: Fences) -> None:
        self._fences = fences
        self._leases: dict[BundleId, Lease] = {}

    def find_owner(self, topic: TopicName, *, patience_s: float) -> Lease:
        """Here, always: under the lease it has, if that is still the last one."""
        try:
            lease = self.get_lease(topic)
            self._fences.require_newest_lease(lease)
        except NotOwner:
            (lease,) = self._fences.raise_fences([self._bundle_of(topic)], WORKER_ID)
            self._leases[lease.bundle] = lease
        return lease

    def get_lease(self, topic: TopicName) -> Lease:
        bundle = self._bundle_of(topic)
        if bundle not in self._leases:
            raise NotOwner(bundle, expected=f"worker {WORKER_ID} to own it", found="that it never did")
        return self._leases[bundle]

    def _bundle_of(self, topic: TopicName) -> BundleId:
        return bundle_of_topic(topic, bundle_count=self._fences.count_bundles())
