"""Ownership of topics without ZooKeeper: what all workers of a test would be told."""

from logstore.catalog.ownership.fences import Fences
from logstore.errors import NotOwner, SextonError
from logstore.ownership import BundleId, Lease, bundle_of_topic
from logstore.ports.bundle_owners import OtherBundleOwner
from logstore.validated_names import TopicName


class FakeBundleOwnership:
    """Who owns which bundle, and whether anybody can be asked; shared by the workers of a test."""

    def __init__(self, fences: Fences) -> None:
        """Begin with nobody, over a catalog's fences."""
        self._fences = fences
        self._leases: dict[BundleId, Lease] = {}
        self.trouble: SextonError | None = None
        """What every lookup meets, if anything."""
        self.patience_s: list[float] = []
        """Of each lookup."""

    def acquire(self, worker_id: str, topic: str) -> Lease:
        """Give the topic's bundle to a worker, whoever had it."""
        bundle = self._bundle(TopicName.from_encoded(topic))
        (self._leases[bundle],) = self._fences.raise_fences([bundle], worker_id)
        return self._leases[bundle]

    def forget(self) -> None:
        """Nobody owns anything, as after all sessions ended."""
        self._leases.clear()

    def found(self, topic: TopicName) -> Lease | None:
        """What ZooKeeper and the catalog would say."""
        return self._leases.get(self._bundle(topic))

    @property
    def asked(self) -> int:
        """How often somebody looked an owner up."""
        return len(self.patience_s)

    def ask(self, patience_s: float) -> None:
        """A question to ZooKeeper; raises `trouble`."""
        self.patience_s.append(patience_s)
        if self.trouble:
            raise self.trouble

    def _bundle(self, topic: TopicName) -> BundleId:
        return bundle_of_topic(topic, bundle_count=self._fences.count_bundles())


class FakeOwners:
    """The `TopicOwners` port of one worker."""

    def __init__(self, ownership: FakeBundleOwnership, worker_id: str) -> None:
        """See what `ownership` has."""
        self._ownership, self._worker_id = ownership, worker_id
        self.stale: Lease | None = None
        """What it still believes to have, as one that was paused does."""

    def find_owner(self, topic: TopicName, *, patience_s: float) -> Lease | OtherBundleOwner | None:
        self._ownership.ask(patience_s)
        lease = self._ownership.found(topic)
        if lease is None or lease.worker_id == self._worker_id:
            return lease
        return OtherBundleOwner(worker_id=lease.worker_id)

    def get_lease(self, topic: TopicName) -> Lease:
        lease = self._ownership.found(topic)
        if self.stale:
            return self.stale
        if lease is None or lease.worker_id != self._worker_id:
            expected = f"worker {self._worker_id} to own it"
            raise NotOwner(0, expected=expected, found="that it does not own it")
        return lease


class UnownedTopics:
    """The `TopicOwners` port where no worker owns anything."""

    def find_owner(self, topic: TopicName, *, patience_s: float) -> None: ...

    def get_lease(self, topic: TopicName) -> Lease:
        raise NotOwner(0, expected="an owner", found=f"none of {topic}")
