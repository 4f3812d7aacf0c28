"""Transactions and snapshots of their buffers in the catalog, and the ports of both.

Begin, end, messages and acknowledgements travel in group commits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from pyroaring import BitMap

from logstore.ports.catalog.claims import Cause, Claim
from logstore.positions import EARLIEST, LedgerId, Position, TopicId
from logstore.transactions.buffer import Buffer
from logstore.transactions.transactions import Participant, TransactionId, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Visible part of a topic: entries up to `last`, inclusive, without the hidden ones."""

    last: Position | None  # None: nothing is visible
    hidden: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # markers, and messages of aborted transactions


class Settlement(StrEnum):
    """Reason why a participant is settled: the broadcast owes it the decision no more."""

    MARKED = "MARKED"  # its marker is in the log
    GONE = "GONE"  # the topic or the subscription was deleted
    RESOLVED = "RESOLVED"  # by an operator


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParticipant:
    """Row of a participant."""

    participant: Participant
    topic: str  # encoded
    positions: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # acknowledged in the transaction
    settled_us: int | None = None
    settlement: Settlement | None = None
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
        """Participants that are not settled."""
        return [stored for stored in self.participants if stored.settled_us is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTransaction:
    """Transaction whose participants are all settled."""

    txn: TransactionId
    duration_us: int | None = None  # from its decision until this call finished it; None: it was finished before


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorWork:
    """Work of a coordinator, now and next."""

    has_unclaimed: bool  # no workflow works on some decided transaction, of any coordinator
    next_deadline_us: int | None  # of the coordinator's open transactions
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCounts:
    """Totals of unfinished transactions, for gauges and people."""

    count_by_state: Mapping[TransactionState, int]
    oldest_open_us: int | None  # creation of the oldest open transaction
    oldest_decided_us: int | None  # decision of the oldest decided transaction
    hidden_bytes: int  # of bitmaps of hidden entries


class Transactions(Protocol):
    """Rows of transactions. Group commits decide transactions. This port reads and finishes them."""

    def get(self, txn: TransactionId) -> StoredTransaction:
        """Return the transaction.

        Raises:
            UnknownObject: It does not exist, or was forgotten.
        """

    def list_page(
        self, *, states: Sequence[TransactionState] = (), after: TransactionId | None = None, limit: int
    ) -> list[StoredTransaction]:
        """Return transactions in these states, or all unfinished ones, ascending by id."""

    def states(self, txns: Sequence[TransactionId]) -> dict[TransactionId, TransactionState]:
        """Return the states of those that exist, in one statement. Waiting clients poll it."""

    def counts(self) -> TransactionCounts: ...

    def frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        """Return the visible part of a topic at one moment, without hidden entries of earlier ledgers.

        Nothing of an unknown topic is visible.
        """

    def held_entries(self, topic_id: TopicId, subscription: str) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]:
        """Return the entries of the subscription that open transactions have acknowledged."""

    def expire(self, tc_id: int, *, limit: int) -> int:
        """Abort open transactions past their deadline, by the catalog's clock. Return how many. Idempotent."""

    def pending_work(self, tc_id: int) -> CoordinatorWork: ...

    def busy_coordinators(self) -> list[int]:
        """Return coordinators with expired open transactions or unclaimed decided ones, ascending."""

    def claim(self, claim: Claim, *, limit: int) -> list[StoredTransaction]:
        """Claim decided transactions of any coordinator that no other workflow run has claimed.

        Idempotency: transactions of this workflow run are returned again. Claims lapse by the catalog's clock.
        """

    def claim_one(self, txn: TransactionId, claim: Claim) -> StoredTransaction:
        """Claim one decided transaction, or renew its claim. A finished transaction is returned unchanged.

        Raises:
            UnknownObject: It does not exist.
            ClaimHeld: Another workflow works on it.
            TransactionNotDecided: It is open.
        """

    def settle(self, settlements: Sequence[tuple[TransactionId, Participant, Settlement]]) -> list[FinishedTransaction]:
        """Settle participants of many transactions and the buffers of their topics. Finish what owes nothing more.

        Messages of aborted transactions become hidden for good, and ranges are removed. COMMITTING becomes COMMITTED,
        ABORTING becomes ABORTED.

        Idempotency: a settled participant stays as it is, and a final transaction is returned again.

        Returns:
            Those of the transactions that are final now, ascending.
        """

    def hand_over(
        self, failures: Mapping[TransactionId, Mapping[Participant, str]], *, to: Mapping[TransactionId, Claim]
    ) -> None:
        """Give transactions to workflows of their own, count an attempt, and store why each participant failed.

        Args:
            failures: Errors by participant, of each transaction.
            to: Claim of each transaction's workflow, without a run, because the workflow has not begun.
        """

    def list_handed_over(self, *, limit: int) -> list[TransactionId]:
        """Return transactions that were handed over and whose workflows have not begun, ascending."""

    def record_failures(self, txn: TransactionId, failures: Mapping[Participant, str]) -> None:
        """Count an attempt, and store why each participant failed."""

    def resolve(self, txn: TransactionId, participant: Participant, cause: Cause) -> StoredTransaction:
        """Settle a participant on behalf of an operator, with a row in the audit log. Idempotent.

        Raises:
            UnknownObject: There is no such transaction or participant.
            TransactionNotDecided: The transaction is open.
        """

    def forget(self, *, older_than_s: float, limit: int) -> int:
        """Remove transactions that finished that long ago, with their participants. Return how many."""


SNAPSHOT_CHANGES: Final = 1_000
"""Transactions settled in a topic after which its next snapshot is due at once."""

SNAPSHOT_AFTER_S: Final = 5.0
"""Time after the first settled transaction at which the next snapshot is due in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """Row of a topic's snapshot."""

    ledger_id: LedgerId | None = None  # None: there is no snapshot
    read_to: Position = EARLIEST  # last entry that the snapshot covers
    due_us: int | None = None  # time at which the next one is to be written; None: nothing has changed


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSwitch:
    """Switch of a topic's snapshot to a newborn ledger, if the present snapshot is `expected`."""

    topic_id: TopicId
    expected: LedgerId | None
    read_to: Position  # last entry that the new snapshot covers


class TransactionSnapshots(Protocol):
    """Snapshots of the transaction buffers of topics."""

    def current(self, topic_id: TopicId) -> StoredSnapshot:
        """Return the topic's snapshot. It is empty if there is no snapshot or no such topic."""

    def buffer(self, topic_id: TopicId) -> Buffer:
        """Return the topic's buffer at one moment, from rows only. Decided transactions count as decided."""

    def take_due(self, *, limit: int, lease_s: float) -> list[TopicId]:
        """Return topics whose snapshot is due, oldest first, and reserve them for the lease.

        Idempotency: a topic whose worker dies is due again after the lease. Two snapshots do no harm.
        """

    def publish(
        self, switch: SnapshotSwitch, ledger_id: LedgerId, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """Make a newborn ledger the topic's snapshot: listed, CLOSED, its one segment registered.

        The same transaction retires the predecessor: it leaves its list and gets an intent.

        Returns whether the ledger is the topic's snapshot now, also if repeated. It is refused if another ledger took
        the place, if the present snapshot covers more entries, or if the topic is not ACTIVE. The same transaction then
        files an intent for the newborn ledger.
        """
