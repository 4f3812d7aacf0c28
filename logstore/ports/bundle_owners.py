"""Port of bundle owners."""

from dataclasses import dataclass
from typing import Protocol

from logstore.ownership import Lease
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
