"""Snapshots of transaction buffers in the catalog, and their port."""

from dataclasses import dataclass
from typing import Final, Protocol

from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.buffer import NOWHERE, Buffer

SNAPSHOT_CHANGES: Final = 1_000
"""Transactions settled in a topic, after which its next snapshot is due at once."""

SNAPSHOT_AFTER_S: Final = 5.0
"""After the first transaction that is settled, with however few more, it is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """What the catalog says of a topic's snapshot."""

    ledger_id: LedgerId | None = None  # None: there is none
    read_to: Position = NOWHERE  # the last entry that it knows of
    due_us: int | None = None  # when the next one is to be written; None: nothing has changed


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSwitch:
    """A newborn ledger that is to be a topic's snapshot, if its predecessor still is what the writer saw."""

    topic_id: TopicId
    expected: LedgerId | None
    read_to: Position  # the last entry that the newborn knows of


class TransactionSnapshots(Protocol):
    """Which ledger holds the snapshot of each topic's buffer."""

    def current(self, topic_id: TopicId) -> StoredSnapshot:
        """The topic's snapshot; an empty answer where there is none, or no such topic."""

    def buffer(self, topic_id: TopicId) -> Buffer:
        """The topic's buffer at one moment, out of rows alone; what is decided is in it as decided."""

    def take_due(self, *, limit: int, lease_s: float) -> list[TopicId]:
        """Topics whose next snapshot is due now, oldest first; they are given to no other worker within the lease.

        Idempotency: a topic whose taker dies is due again after the lease; two snapshots do no harm.
        """

    def publish(
        self, switch: SnapshotSwitch, ledger_id: LedgerId, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """Let a newborn ledger be the topic's snapshot: listed, CLOSED, its one segment registered.

        The predecessor is retired in the same transaction: out of its list, with an intent that no workflow works on
        yet.

        Returns whether the ledger is the topic's snapshot now (true again when repeated). When another one took the
        place meanwhile, when the snapshot there knows of more entries, or when the topic is not ACTIVE, an intent for
        the newborn is filed in the same transaction.
        """
