"""Transactions and snapshots of their buffers in the catalog, and the ports of both.

Group commits carry begin, end, messages and acknowledgements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from pyroaring import BitMap

from logstore.ports.catalog.claims_and_batches import AuditCause, Claim
from logstore.positions import EARLIEST, LedgerId, Position, TopicId
from logstore.transactions.transaction_buffer import TransactionBuffer
from logstore.transactions.transaction_ids_and_states import Participant, TransactionId, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Visible part of a topic: entries up to `last`, inclusive, without the hidden entries."""

    last: Position | None  # None: no entry is visible
    hidden: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # markers, and messages of aborted transactions


class SettlementReason(StrEnum):
    """Reason why a participant is settled. The broadcast then no longer owes it the decision."""

    MARKED = "MARKED"  # its marker is in the log
    GONE = "GONE"  # the topic or the subscription was deleted
    RESOLVED = "RESOLVED"  # by an operator


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParticipant:
    """Row of a participant."""

    participant: Participant
    topic: str  # encoded
    positions: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # entries acknowledged in the transaction
    settled_us: int | None = None
    settlement: SettlementReason | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTransaction:
    """Row of a transaction with its participants, ascending."""

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
    duration_us: int | None = None  # from the decision to this call; None: it was finished before


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorWorkStatus:
    """Current and next work of a coordinator."""

    has_unclaimed: bool  # whether a decided transaction of any coordinator has no workflow
    next_deadline_us: int | None  # earliest deadline of the coordinator's open transactions
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTransactionCounts:
    """Totals of unfinished transactions, for gauges and people."""

    count_by_state: Mapping[TransactionState, int]
    oldest_open_us: int | None  # creation of the oldest open transaction
    oldest_decided_us: int | None  # decision of the oldest decided transaction
    hidden_bytes: int  # size of the bitmaps of hidden entries


class Transactions(Protocol):
    """Rows of transactions. Group commits decide transactions. This port reads and finishes transactions."""

    def get_transaction(self, txn: TransactionId) -> StoredTransaction:
        """Return the transaction.

        Raises:
            UnknownObject: The transaction does not exist, or was forgotten.
        """

    def list_transactions(
        self, *, states: Sequence[TransactionState] = (), after: TransactionId | None = None, limit: int
    ) -> list[StoredTransaction]:
        """Return transactions in these states, or all unfinished ones, ascending by id."""

    def get_transaction_states(self, txns: Sequence[TransactionId]) -> dict[TransactionId, TransactionState]:
        """Return the states of the existing transactions, in one statement. Waiting clients poll this method."""

    def count_unfinished_transactions(self) -> UnfinishedTransactionCounts: ...

    def read_frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        """Return the visible part of a topic at one moment, without hidden entries of ledgers before `from_ledger`.

        If the topic is unknown, no entry is visible.
        """

    def find_held_entries(
        self, topic_id: TopicId, subscription: str
    ) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]:
        """Return the entries of the subscription that open transactions have acknowledged."""

    def abort_expired_transactions(self, tc_id: int, *, limit: int) -> int:
        """Abort open transactions past their deadline, by the catalog's clock. Return their number. Idempotent."""

    def read_coordinator_work(self, tc_id: int) -> CoordinatorWorkStatus: ...

    def list_busy_coordinators(self) -> list[int]:
        """Return coordinators with expired open transactions or unclaimed decided transactions, ascending."""

    def claim_decided_transactions(self, claim: Claim, *, limit: int) -> list[StoredTransaction]:
        """Claim decided transactions of any coordinator that no other workflow run has claimed.

        Idempotency: transactions that this workflow run has claimed are returned again. Claims lapse by the catalog's
        clock.
        """

    def claim_transaction(self, txn: TransactionId, claim: Claim) -> StoredTransaction:
        """Claim one decided transaction, or renew its claim. A finished transaction is returned unchanged.

        Raises:
            UnknownObject: The transaction does not exist.
            ClaimHeld: Another workflow holds the transaction.
            TransactionNotDecided: The transaction is open.
        """

    def settle_participants(
        self, settlements: Sequence[tuple[TransactionId, Participant, SettlementReason]]
    ) -> list[FinishedTransaction]:
        """Settle participants of many transactions and the buffers of their topics.

        A transaction whose participants are all settled is finished: COMMITTING becomes COMMITTED, ABORTING becomes
        ABORTED. Messages of aborted transactions become hidden for good, and ranges are removed.

        Idempotency: a settled participant does not change, and a final transaction is returned again.

        Returns:
            The given transactions that are final now, ascending.
        """

    def hand_over_to_own_workflows(
        self,
        failures: Mapping[TransactionId, Mapping[Participant, str]],
        *,
        claim_by_transaction: Mapping[TransactionId, Claim],
    ) -> None:
        """Give each transaction to a workflow of its own, count an attempt, and store the error of each participant.

        The claims have no run id, because the workflows have not begun.
        """

    def list_handed_over(self, *, limit: int) -> list[TransactionId]:
        """Return transactions that were handed over and whose workflows have not begun, ascending."""

    def record_failures(self, txn: TransactionId, failures: Mapping[Participant, str]) -> None:
        """Count an attempt, and store the error of each participant."""

    def resolve_participant(self, txn: TransactionId, participant: Participant, cause: AuditCause) -> StoredTransaction:
        """Settle a participant on behalf of an operator, with a row in the audit log. Idempotent.

        Raises:
            UnknownObject: The transaction or the participant does not exist.
            TransactionNotDecided: The transaction is open.
        """

    def remove_finished_transactions(self, *, older_than_s: float, limit: int) -> int:
        """Remove transactions that finished longer ago than `older_than_s`. Return their number."""


SNAPSHOT_CHANGES: Final = 1_000
"""Number of transactions settled in a topic after which its next snapshot is due at once."""

SNAPSHOT_AFTER_S: Final = 5.0
"""Seconds after the first settled transaction at which the next snapshot is due in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBufferSnapshot:
    """Row of a topic's snapshot."""

    ledger_id: LedgerId | None = None  # None: there is no snapshot
    read_to: Position = EARLIEST  # last entry that the snapshot covers
    due_us: int | None = None  # time at which the next snapshot is due; None: nothing has changed


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSnapshotSwitch:
    """Switch of a topic's snapshot to a newborn ledger, if the present snapshot is `expected`."""

    topic_id: TopicId
    expected: LedgerId | None
    read_to: Position  # last entry that the new snapshot covers


class TransactionBufferSnapshots(Protocol):
    """Snapshots of the transaction buffers of topics."""

    def get_snapshot(self, topic_id: TopicId) -> StoredBufferSnapshot:
        """Return the topic's snapshot. It is empty if there is no snapshot or no such topic."""

    def read_buffer(self, topic_id: TopicId) -> TransactionBuffer:
        """Return the topic's buffer at one moment, from rows only. It shows decisions that no marker has told yet."""

    def reserve_due_topics(self, *, limit: int, lease_s: float) -> list[TopicId]:
        """Return topics whose snapshot is due, oldest first, and reserve these topics for `lease_s`.

        Idempotency: if the worker dies, the topic is due again after `lease_s`. Two snapshots do no harm.
        """

    def publish_snapshot(
        self, switch: BufferSnapshotSwitch, ledger_id: LedgerId, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """Make a newborn ledger the topic's snapshot: listed, CLOSED, its one segment registered.

        The same transaction retires the previous snapshot: its ledger leaves the list and gets an intent.

        The switch is refused if the present snapshot is not the expected one or covers more entries, or if the topic is
        not ACTIVE. The same transaction then files an intent for the newborn ledger. Return whether the ledger is the
        topic's snapshot now, also after a repeated call.
        """
