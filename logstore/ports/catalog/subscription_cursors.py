"""Subscriptions and their port."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from logstore.cursors.cursor_state import CursorSnapshot, CursorState
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCursor:
    """Row of a cursor. After a snapshot the row has only a part of the state. `Subscriptions` returns all of it."""

    name: str
    state: CursorState  # if there is a snapshot: only the acknowledgements since then
    created_us: int
    snapshot_ledger: LedgerId | None = None  # cursor ledger with the other acknowledgements
    seeks: int = 0  # number of times that a seek replaced the state
    releases: int = 0  # raised when an abort, an expiry, a seek or a rebuild of the catalog gives entries back


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSnapshotCondition:
    """Condition for a change of a cursor's snapshot: the row still has these values."""

    topic_id: TopicId
    subscription: str
    expected: LedgerId | None  # ledger of the present snapshot
    seeks: int


class Cursors(Protocol):
    """Rows of subscriptions."""

    def create_subscription(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        """Create a subscription before the first listed entry or after the last one. Return an existing one unchanged.

        The call locks the ledger list and raises its list version. So it commits before or after a detach decides.

        Raises:
            UnknownObject: The topic does not exist.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def get_cursor(self, topic_id: TopicId, name: str) -> StoredCursor:
        """Return the subscription.

        Raises:
            UnknownObject: The topic or the subscription does not exist.
        """

    def list_cursors(self, topic_id: TopicId) -> list[StoredCursor]:
        """Return the topic's subscriptions, ascending by name."""

    def find_cursors_with_snapshot(self, topic_ids: Collection[TopicId]) -> dict[TopicId, list[str]]:
        """Return the names of subscriptions with a snapshot, ascending, by topic. Topics without any are absent."""

    def seek_cursor(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        """Replace the cursor's state, so that `position` is its next entry. Lock the list like `subscribe`.

        `seeks` and `releases` rise. The same transaction retires the ledger of a snapshot.

        Raises:
            UnknownObject: The topic or the subscription does not exist.
            InvalidInput: The position is after the end.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def publish_snapshot(
        self, change: CursorSnapshotCondition, snapshot: CursorSnapshot, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """Make a newborn cursor ledger the cursor's snapshot: listed, CLOSED, its one segment registered.

        The row keeps later acknowledgements. The same transaction retires the previous snapshot's ledger
        (apache/pulsar#982).

        The change is refused if the row differs from `change` or is gone, or if the topic is not ACTIVE. The same
        transaction then files an intent for the newborn ledger (apache/pulsar#350).

        `change` is the row from which the snapshot was made. The content has no more than was acknowledged at some
        moment since `change`.

        Returns:
            Whether the ledger is the cursor's snapshot now, also after a repeated call.
        """

    def move_snapshot_into_row(
        self, change: CursorSnapshotCondition, snapshot: CursorSnapshot, *, limit_bytes: int
    ) -> bool:
        """Move a small snapshot back into the row, and retire its ledger in the same transaction.

        Nothing changes if the row differs from `change`, if the complete state takes more than `limit_bytes`, or if the
        topic is not ACTIVE. Return whether this call moved the snapshot.
        """
