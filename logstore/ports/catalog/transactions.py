"""Values of the catalog: transactions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pyroaring import BitMap

from logstore.positions import EARLIEST, LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Visible part of a topic: entries up to `last`, inclusive, without the hidden entries."""

    last: Position | None  # None: no entry is visible
    hidden: Mapping[LedgerId, BitMap] = field(
        default_factory=dict
    )  # transaction markers, and messages of aborted transactions


class SettlementReason(StrEnum):
    """Reason why a participant is settled. A settled participant is no longer owed the decision."""

    MARKED = "MARKED"  # the participant's transaction marker is in the log
    GONE = "GONE"  # the topic or the subscription was deleted
    RESOLVED = "RESOLVED"  # an operator has settled the participant


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParticipant:
    participant: Participant
    topic: str  # encoded
    positions: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # entries acknowledged in the transaction
    settled_us: int | None = None
    settlement: SettlementReason | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTransaction:
    """Row of a transaction. The participants ascend."""

    txn: TransactionId
    state: TransactionState
    created_us: int
    deadline_us: int
    decided_us: int | None
    finished_us: int | None
    timed_out: bool
    attempts: int
    last_error: str | None
    claim_workflow: str | None
    trace_id: str | None
    participants: Sequence[StoredParticipant]

    @property
    def owed(self) -> list[StoredParticipant]:
        return [stored for stored in self.participants if stored.settled_us is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTransaction:
    """Transaction whose participants are all settled."""

    txn: TransactionId
    duration_us: int | None = None  # from the decision to this call; None: an earlier call finished the transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorWorkStatus:
    """Work that waits for a coordinator: decided transactions without a workflow, and the next deadline."""

    has_unclaimed: bool  # whether a decided transaction of any coordinator has no workflow
    next_deadline_us: int | None  # earliest deadline of the coordinator's open transactions
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTransactionCounts:
    count_by_state: Mapping[TransactionState, int]
    oldest_open_us: int | None  # creation of the oldest open transaction
    oldest_decided_us: int | None  # decision of the oldest decided transaction
    hidden_bytes: int  # size of the bitmaps of hidden entries


SNAPSHOT_CHANGES: Final = 1_000
"""Number of transactions settled in a topic after which the topic's next snapshot is due at once."""

SNAPSHOT_AFTER_S: Final = 5.0
"""Seconds until a topic's next snapshot is due, counted from the first settlement after the present snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBufferSnapshot:
    ledger_id: LedgerId | None = None  # None: there is no snapshot
    read_to: Position = EARLIEST  # last entry that the snapshot covers
    due_us: int | None = None  # time at which the next snapshot is due; None: nothing has changed


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSnapshotReplacement:
    """Replacement of a topic's snapshot by a newborn ledger. The ledger of the present snapshot must be `expected`."""

    topic_id: TopicId
    expected: LedgerId | None
    read_to: Position  # last entry that the new snapshot covers
