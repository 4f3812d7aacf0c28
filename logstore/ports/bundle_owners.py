"""Ports of bundle owners and of fences."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from logstore.ownership import BundleId, Lease
from logstore.validated_names import TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBundleOwner:
    """Another worker that owned the topic's bundle when the bundle's node was read."""

    worker_id: str


class TopicOwners(Protocol):
    def find_owner(self, topic: TopicName, *, patience_s: float) -> Lease | OtherBundleOwner | None:
        """Return this worker's lease, another bundle owner, or `None` if the topic has no bundle owner.

        If the bundle's node names this worker but this worker has no lease, the result is an `OtherBundleOwner`.
        `patience_s` is the longest wait for ZooKeeper or the catalog.

        Raises:
            StoreUnavailable, SessionLost: There was no answer. The topic may have a bundle owner.
            ServiceFailed: ZooKeeper refuses this worker. A retry does not help.
        """

    def get_lease(self, topic: TopicName) -> Lease:
        """Return this worker's lease of the topic's bundle, without a request. Raise `NotOwner` if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Fence of a bundle. `counter` is the number of acquisitions of the bundle."""

    bundle: BundleId
    counter: int
    worker_id: str  # worker of the last acquisition
    raised_us: int  # time of the last acquisition, by the catalog's clock


class Fences(Protocol):
    """Fences of bundles. After a worker has raised a bundle's fence, only this worker may write for the bundle.

    In PIP-57, which has no fences, a bundle owner may write until it notices that its session has expired.
    """

    def count_bundles(self) -> int: ...

    def raise_fences(self, bundles: Collection[BundleId], worker_id: str) -> list[Lease]:
        """Raise the fences of bundles. Return the new leases, ascending by bundle.

        After the commit, writes under earlier leases are refused. For each bundle, the call waits some seconds for
        running writes under the earlier lease. If such a write does not end, for example because its worker is paused,
        the result has no lease of this bundle. A lease alone does not make the caller the bundle owner. The caller must
        also have the bundle's node in ZooKeeper, and must read the node again after this call.

        Idempotency: none. A repeated call raises the fences again, and the leases of the first call become outdated.

        Raises:
            InvalidInput: A bundle is not in this catalog, or the worker has no name.
        """

    def get_fence(self, bundle: BundleId) -> Fence | None: ...

    def list_fences(self) -> list[Fence]:
        """Return the fences of all bundles that were ever acquired, ascending by bundle."""

    def require_newest_lease(self, lease: Lease) -> None:
        """Raise `NotOwner` if the bundle has a newer lease."""
