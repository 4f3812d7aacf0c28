"""Subscriptions and their port."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from logstore.cursors.state import CursorSnapshot, CursorState
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCursor:
    """Row of a cursor. With a snapshot its state is incomplete, and `Subscriptions` has the complete one."""

    name: str
    state: CursorState  # with a snapshot: acknowledgements since it
    created_us: int
    snapshot_ledger: LedgerId | None = None  # cursor ledger with the other acknowledgements
    seeks: int = 0  # replacements of the state
    releases: int = 0  # raised by each abort, expiry, seek and rebuild of the catalog that gives entries back


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChange:
    """Change of a cursor's snapshot, if the row has these values."""

    topic_id: TopicId
    subscription: str
    expected: LedgerId | None  # ledger of the present snapshot
    seeks: int


class Cursors(Protocol):
    """Rows of subscriptions."""

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        """Create a subscription before the first listed entry or after the last one. Return an existing one unchanged.

        The call locks the ledger list and raises its version, so that it commits before or after a detach decides.

        Raises:
            UnknownObject: The topic does not exist.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def get(self, topic_id: TopicId, name: str) -> StoredCursor:
        """Return the subscription.

        Raises:
            UnknownObject: It does not exist.
        """

    def all(self, topic_id: TopicId) -> list[StoredCursor]:
        """Return the topic's subscriptions, ascending by name."""

    def outgrown(self, topic_ids: Collection[TopicId]) -> dict[TopicId, list[str]]:
        """Return the names of subscriptions with a snapshot, ascending, by topic. Topics without any are absent."""

    def seek(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        """Replace the cursor's state, so that `position` is its next entry. It locks the list like `subscribe`.

        `seeks` and `releases` rise, and the same transaction retires a snapshot's ledger.

        Raises:
            UnknownObject: The topic or the subscription does not exist.
            InvalidInput: The position is after the end.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def publish_snapshot(
        self, change: SnapshotChange, snapshot: CursorSnapshot, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """Make a newborn cursor ledger the cursor's snapshot: listed, CLOSED, its one segment registered.

        The row keeps later acknowledgements. The same transaction retires the predecessor's ledger (apache/pulsar#982).

        Returns whether the ledger is the cursor's snapshot now, also if repeated. It is refused if the row differs from
        `change` or is gone, or if the topic is not ACTIVE. The same transaction then files an intent for the newborn
        ledger (apache/pulsar#350).

        Args:
            change: Row from which the snapshot was made.
            snapshot: Newborn ledger and its content: no more than was acknowledged at some moment since `change`.
            size_bytes: Size of its segment's object.
            sha256: Digest of that object, hexadecimal, if it is known.
        """

    def fold_snapshot(self, change: SnapshotChange, snapshot: CursorSnapshot, *, limit_bytes: int) -> bool:
        """Move a small snapshot back into the row, and retire its ledger in the same transaction.

        Returns whether this call did. It does not if the row differs from `change`, if the complete state takes more
        than `limit_bytes`, or if the topic is not ACTIVE.
        """
