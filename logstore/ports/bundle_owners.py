"""Ownership of topics by workers, the fences of bundles, and the ports of both."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from logstore.ownership import BundleId, Lease
from logstore.validated_names import TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBundleOwner:
    """Another worker that owns the topic's bundle, as of the read of its node."""

    worker_id: str


class TopicOwners(Protocol):
    """Ownership of topics from the view of one worker."""

    def find_owner(self, topic: TopicName, *, patience_s: float) -> Lease | OtherBundleOwner | None:
        """Return this worker's lease, the other owner, or `None` if the topic has no owner.

        If this worker is in the owner node but has no lease, it is returned as `OtherBundleOwner`.

        `patience_s` is the longest wait for ZooKeeper or the catalog.

        Raises:
            StoreUnavailable, SessionLost: There was no answer. The topic may have an owner.
            ServiceFailed: ZooKeeper refuses this worker. A retry does not help.
        """

    def get_lease(self, topic: TopicName) -> Lease:
        """Return this worker's lease of the topic's bundle, without a request.

        Raises:
            NotOwner: The worker has no lease on the bundle now.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Fence of a bundle that was acquired `counter` times."""

    bundle: BundleId
    counter: int
    worker_id: str  # of the last acquisition
    raised_us: int  # time of the last acquisition, by the catalog's clock


class Fences(Protocol):
    """Fences of bundles. Only the worker that raised a fence last may write under a lease.

    PIP-57 has no fences. Its owner may act until it notices that its session expired.
    """

    def count_bundles(self) -> int:
        """Return the number of bundles of the catalog, which never changes."""

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        """Raise the fences of bundles. After the commit, all writes under earlier leases are refused.

        The call waits some seconds for a running write, whose worker may be paused. If the write does not end, the
        bundle is missing in the result. A lease alone does not make the caller the owner. The caller must also hold the
        bundle's node, and read it again after this call.

        Idempotency: not needed. A repeated call fences the leases of the first call, whose answer was lost.

        Returns:
            The new leases, ascending by bundle.

        Raises:
            InvalidInput: A bundle is not in this catalog, or the worker has no name.
        """

    def get_fence(self, bundle: BundleId) -> Fence | None:
        """Return the bundle's fence, or `None` if the bundle was never acquired."""

    def list_fences(self) -> list[Fence]:
        """Return the fences of all bundles that were ever acquired, ascending by bundle."""

    def require_newest_lease(self, lease: Lease) -> None:
        """Check that the lease is the newest of its bundle now.

        Raises:
            NotOwner: The lease is not the newest.
        """
