"""Port of the rows of subscriptions."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from logstore.cursors.cursor_state import CursorSnapshot, CursorState
from logstore.positions import LedgerId, Position, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCursor:
    """Row of a cursor. `Subscriptions` returns the complete state of a cursor that has a snapshot."""

    name: str
    state: CursorState  # with a snapshot: only acknowledgements that are not in the snapshot
    created_us: int
    snapshot_ledger: LedgerId | None = None  # cursor ledger with the earlier acknowledgements; None: no snapshot
    seeks: int = 0  # number of times that a seek replaced the state
    releases: int = 0  # raised when an abort, an expiry, a seek or a rebuild of the catalog gives entries back


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSnapshotCondition:
    """Values that a cursor's row must still have when the cursor's snapshot is replaced or moved into the row."""

    topic_id: TopicId
    subscription: str
    expected: LedgerId | None  # ledger of the present snapshot
    seeks: int


class Cursors(Protocol):
    def create_subscription(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        """Create a subscription, or return the existing subscription unchanged.

        The cursor begins before the first listed entry, or with `latest` after the last listed entry. The call locks
        the topic's list and raises the list version, so a concurrent detach runs entirely before or after the call.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """

    def get_cursor(self, topic_id: TopicId, name: str) -> StoredCursor:
        """Return the subscription. Raise `UnknownObject` if the topic or the subscription does not exist."""

    def list_cursors(self, topic_id: TopicId) -> list[StoredCursor]:
        """Return the topic's subscriptions, ascending by name."""

    def find_cursors_with_snapshot(self, topic_ids: Collection[TopicId]) -> dict[TopicId, list[str]]:
        """Return the names of subscriptions with a snapshot, ascending, by topic. Skip topics without a snapshot."""

    def seek_cursor(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        """Replace the cursor's state, so that `position` is the next entry.

        `seeks` and `releases` rise. The call locks the topic's list and raises the list version. If the cursor has a
        snapshot, the same transaction files an intent for the snapshot's ledger.

        Raises:
            UnknownObject: The topic or the subscription does not exist.
            PreconditionFailed: The topic is not ACTIVE.
            InvalidInput: The position is after the end of the log.
        """

    def publish_snapshot(
        self,
        condition: CursorSnapshotCondition,
        snapshot: CursorSnapshot,
        *,
        size_bytes: int,
        sha256: str | None = None,
    ) -> bool:
        """Make a newborn cursor ledger the cursor's snapshot. Return whether the cursor has this snapshot now.

        The ledger becomes listed and CLOSED. The same transaction files an intent for the previous snapshot's ledger
        (apache/pulsar#982). The row keeps acknowledgements that are newer than the snapshot.

        `condition` has two values of the row from which the snapshot was made: the ledger of the present snapshot, and
        the number of seeks. Acknowledgements may be added meanwhile. The snapshot is refused if one of the two values
        has changed, if the row does not exist, or if the topic is not ACTIVE. A refused call files an intent for the
        newborn ledger (apache/pulsar#350). A repeated call returns the same result.
        """

    def move_snapshot_into_row(
        self, condition: CursorSnapshotCondition, snapshot: CursorSnapshot, *, limit_bytes: int
    ) -> bool:
        """Move a small snapshot back into the row, and file an intent for the snapshot's ledger.

        Return whether this call moved the snapshot. Nothing changes if the row differs from `condition`, if the
        complete state takes more than `limit_bytes`, or if the topic is not ACTIVE.
        """
