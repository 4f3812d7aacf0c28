"""Which worker owns a topic, and does its background work, and which one acquired each bundle last; and both ports."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from logstore.names import TopicName
from logstore.ownership import BundleId, Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherOwner:
    """A worker with a live session whose node the topic's bundle has; it may be gone the moment after."""

    worker_id: str


class Owners(Protocol):
    """Ownership as one worker knows it."""

    def lookup(self, topic: TopicName, *, patience_s: float) -> Lease | OtherOwner | None:
        """Where the topic's work belongs: here under the lease, at another worker, or anywhere (None: no owner).

        This worker may stand in the node and have no lease yet, or none while its connection is away: it then
        names itself as it would another.

        Args:
            topic: Whose.
            patience_s: How long ZooKeeper, or the catalog, may take to answer.

        Raises:
            StoreUnavailable, SessionLost: There was no answer, which does not say that there is no owner.
            ServiceFailed: ZooKeeper refuses this worker, and will again.
        """

    def lease_of(self, topic: TopicName) -> Lease:
        """What this worker writes under for the topic's bundle; asks no service.

        Raises:
            NotOwner: It has none now.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A bundle that was acquired, `counter` times so far."""

    bundle: BundleId
    counter: int
    worker_id: str  # whose the last time was
    raised_us: int  # when that was, by the catalog's clock


class Fences(Protocol):
    """A counter per bundle. Only the worker that raised it last may write under a lease.

    Not part of PIP-57, whose owner may act for as long as it has not noticed that its session expired.
    """

    def count_bundles(self) -> int:
        """How many the catalog has; it never changes."""

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        """Acquire bundles: from its commit on, no write under an earlier lease of any of them is accepted.

        It waits for those that are being written, and is waited for by those that come later. A write that does not
        end because its worker was paused in it is waited for some seconds: its bundle is then missing from the answer,
        which keeps the caller from no other one. Nor does an answer say that the caller is the owner: for that the
        caller must hold each bundle's node, and read it again after this.

        Idempotency: none, and none is needed. A repeated call fences what the first one gave, whose answer was lost.

        Returns:
            A lease of each that could be acquired, ascending by bundle.

        Raises:
            InvalidInput: Not a bundle of this catalog, or a worker without a name.
        """

    def fence(self, bundle: BundleId) -> Fence | None:
        """The bundle's last fence, or None if it was never acquired."""

    def fences(self) -> list[Fence]:
        """Bundles that were ever acquired, ascending."""

    def verify(self, lease: Lease) -> None:
        """Ask whether the lease is the last one of its bundle; it may be overtaken the moment after.

        Raises:
            NotOwner: It is not.
        """
