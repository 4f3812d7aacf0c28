"""Ports of transactions and of snapshots of transaction buffers. `GroupCommits` decides transactions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from pyroaring import BitMap

from logstore.ports.catalog.claims_and_deletion_results import AuditCause, Claim
from logstore.positions import EARLIEST, LedgerId, Position, TopicId
from logstore.transactions.transaction_buffer import TransactionBuffer
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


class Transactions(Protocol):
    def get_transaction(self, txn: TransactionId) -> StoredTransaction:
        """Return the transaction. Raise `UnknownObject` if the transaction does not exist or was removed."""

    def list_transactions(
        self, *, states: Sequence[TransactionState] = (), after: TransactionId | None = None, limit: int
    ) -> list[StoredTransaction]:
        """Return transactions in `states`, ascending by id. With empty `states`, return all unfinished transactions."""

    def get_transaction_states(self, txns: Sequence[TransactionId]) -> dict[TransactionId, TransactionState]:
        """Return the states of the transactions that exist, in one SQL statement. Waiting clients poll this method."""

    def count_unfinished_transactions(self) -> UnfinishedTransactionCounts: ...

    def read_frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        """Return the visible part of a topic at one moment. `hidden` has no entries of ledgers before `from_ledger`.

        In an unknown topic no entry is visible.
        """

    def find_held_entries(
        self, topic_id: TopicId, subscription: str
    ) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]: ...

    def abort_expired_transactions(self, tc_id: int, *, limit: int) -> int:
        """Abort open transactions whose deadline has passed by the catalog's clock. Return their number."""

    def read_coordinator_work(self, tc_id: int) -> CoordinatorWorkStatus: ...

    def list_busy_coordinators(self) -> list[int]:
        """Return coordinators with expired open transactions or unclaimed decided transactions, ascending."""

    def claim_decided_transactions(self, claim: Claim, *, limit: int) -> list[StoredTransaction]:
        """Claim decided transactions of any coordinator, except transactions that another workflow run has claimed.

        Idempotency: transactions that this workflow run has claimed are returned again.
        """

    def claim_transaction(self, txn: TransactionId, claim: Claim) -> StoredTransaction:
        """Claim one decided transaction, or renew its claim. A finished transaction is returned unchanged.

        Raises:
            UnknownObject: The transaction does not exist.
            ClaimHeld: Another workflow has claimed the transaction.
            TransactionNotDecided: The transaction is open.
        """

    def settle_participants(
        self, settlements: Sequence[tuple[TransactionId, Participant, SettlementReason]]
    ) -> list[FinishedTransaction]:
        """Settle participants. Return the given transactions that are finished now, ascending.

        If all participants of a transaction are settled, COMMITTING becomes COMMITTED and ABORTING becomes ABORTED.
        Messages of aborted transactions become hidden. If a topic is settled, the rows of the transaction's entries in
        this topic are removed.

        Idempotency: a settled participant does not change, and a finished transaction is returned again.
        """

    def hand_over_to_own_workflows(
        self,
        failures: Mapping[TransactionId, Mapping[Participant, str]],
        *,
        claim_by_transaction: Mapping[TransactionId, Claim],
    ) -> None:
        """Give each transaction to a workflow of its own, count an attempt, and store the error of each participant.

        The claims have no Temporal run id, because the workflows have not begun.
        """

    def list_handed_over_transactions(self, *, limit: int) -> list[TransactionId]:
        """Return transactions that were handed over and whose workflows have not begun, ascending."""

    def record_participant_errors(self, txn: TransactionId, failures: Mapping[Participant, str]) -> None: ...

    def settle_untold_participant(
        self, txn: TransactionId, participant: Participant, cause: AuditCause
    ) -> StoredTransaction:
        """Settle a participant on behalf of an operator, with a row in the audit log. Idempotent.

        Raises:
            UnknownObject: The transaction or the participant does not exist.
            TransactionNotDecided: The transaction is open.
        """

    def remove_finished_transactions(self, *, older_than_s: float, limit: int) -> int: ...


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


class TransactionBufferSnapshots(Protocol):
    def get_snapshot(self, topic_id: TopicId) -> StoredBufferSnapshot:
        """Return the topic's snapshot. Without a snapshot, or for an unknown topic, all fields have default values."""

    def read_buffer(self, topic_id: TopicId) -> TransactionBuffer:
        """Return the topic's transaction buffer at one moment, as if every decision had its transaction marker."""

    def reserve_due_topics(self, *, limit: int, reserved_for_s: float) -> list[TopicId]:
        """Return topics whose snapshot is due, earliest due time first, and reserve them for `reserved_for_s`.

        Other calls do not return reserved topics.

        Idempotency: if the worker dies, the topic is due again after `reserved_for_s`. A second snapshot does no harm.
        """

    def publish_snapshot(
        self, switch: BufferSnapshotReplacement, ledger_id: LedgerId, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """Make a newborn ledger the topic's snapshot. Return whether the topic has this snapshot now.

        The ledger becomes listed and CLOSED. The same transaction unlists the ledger of the previous snapshot and files
        an intent for that ledger. The call is refused if the present snapshot is not the expected snapshot or covers
        more entries than the new one, or if the topic is not ACTIVE. A refused call files an intent for the newborn
        ledger. A repeated call returns the same result.
        """
