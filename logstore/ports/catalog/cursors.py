"""Subscriptions and their port."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from logstore.cursors.state import CursorSnapshot, CursorState
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCursor:
    """A cursor row.

    Its state is the whole of it only while it has no snapshot; a caller that needs the whole asks `Subscriptions`.
    """

    name: str
    state: CursorState  # with a snapshot: what was acknowledged since
    created_us: int
    snapshot_ledger: LedgerId | None = None  # the cursor ledger that holds the rest
    seeks: int = 0  # how often the state was replaced
    releases: int = (
        0  # raised whenever entries are given back: by an abort, an expiry, a seek, a rebuild of the catalog
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChange:
    """A change of a cursor's snapshot: refused unless the row still is as it was when it was read."""

    topic_id: TopicId
    subscription: str
    expected: LedgerId | None  # the snapshot's ledger
    seeks: int


class Cursors(Protocol):
    """Subscriptions."""

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        """Create the subscription at the first listed entry, or behind the last one; an existing one is returned.

        Locks the ledger list and raises its version, so it commits before a detach decides or after.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def get(self, topic_id: TopicId, name: str) -> StoredCursor:
        """The subscription.

        Raises:
            UnknownObject: There is none.
        """

    def all(self, topic_id: TopicId) -> list[StoredCursor]:
        """The topic's subscriptions, ascending by name."""

    def outgrown(self, topic_ids: Collection[TopicId]) -> dict[TopicId, list[str]]:
        """Subscriptions whose state outgrew their row, and is in a ledger: names, ascending; other topics are absent.

        What they have acknowledged is not read.
        """

    def seek(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        """Set the cursor so that `position` is its next entry; locks the list like `subscribe`.

        It replaces the whole state: `seeks` and `releases` rise, and a snapshot's ledger is retired in the same
        transaction.

        Raises:
            UnknownObject: No such topic or subscription.
            InvalidInput: The position lies beyond the end.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def publish_snapshot(
        self, change: SnapshotChange, snapshot: CursorSnapshot, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """Let a newborn cursor ledger hold the cursor's state: listed, CLOSED, its one segment registered.

        The row keeps what was acknowledged meanwhile and is not in the snapshot; the predecessor's ledger is
        retired: out of its list, with an intent that no workflow works on yet (apache/pulsar#982).

        Returns whether the ledger is the cursor's now (true again when repeated). When the row has changed its
        snapshot or was sought, is gone, or its topic is not ACTIVE, an intent for the newborn is filed in the same
        transaction (apache/pulsar#350).

        Args:
            change: What the snapshot was made from.
            snapshot: The newborn and what it holds: no more than was acknowledged at some moment since `change`.
            size_bytes: Of its segment's object.
            sha256: Of its segment's object, hexadecimal; None: not known.
        """

    def fold_snapshot(self, change: SnapshotChange, snapshot: CursorSnapshot, *, limit_bytes: int) -> bool:
        """Take a snapshot that has become small back into the row, and retire its ledger in the same transaction.

        Returns whether this call did; not when the row has changed its snapshot or was sought, when the whole
        state takes more than `limit_bytes`, or when the topic is not ACTIVE.

        Args:
            change: The row as it was read, its snapshot included.
            snapshot: That snapshot.
            limit_bytes: What the row may hold.
        """
