"""Values of the catalog: cursors."""

from dataclasses import dataclass

from logstore.cursors.cursor_state import CursorState
from logstore.positions import LedgerId, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCursor:
    """Cursor of a subscription. `Subscriptions` returns the complete state of a cursor that has a snapshot."""

    name: str
    state: CursorState  # in the catalog, with a snapshot: only acknowledgements that are not in the snapshot
    created_us: int
    snapshot_ledger: LedgerId | None = None  # cursor ledger with the earlier acknowledgements; None: no snapshot
    seeks: int = 0  # number of times that a seek replaced the state
    releases: int = 0  # raised when an abort, an expiry, a seek or a rebuild of the catalog gives entries back
    lost_snapshot: LedgerId | None = None  # lost cursor ledger: the state lacks its acknowledgements


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSnapshotCondition:
    """Values that a cursor's row must still have when the cursor's snapshot is replaced or moved into the row."""

    topic_id: TopicId
    subscription: str
    expected: LedgerId | None  # ledger of the present snapshot
    seeks: int
