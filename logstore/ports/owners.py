"""Who does the background work of a topic, and its port."""

from dataclasses import dataclass
from typing import Protocol

from logstore.names import TopicName
from logstore.ownership import Lease


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
