"""Transactions in the catalog and snapshots of their buffers, and the ports of both.

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
    """What readers of a topic may see: entries up to `last`, inclusive, less those that are hidden."""

    last: Position | None  # max_read_position; None: nothing
    hidden: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # markers, and messages of aborted transactions


class Settled(StrEnum):
    """How a participant came to count as done."""

    MARKED = "MARKED"  # its marker is in the log
    GONE = "GONE"  # the topic or the subscription was deleted
    RESOLVED = "RESOLVED"  # by an operator


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParticipant:
    """A participant of a transaction."""

    participant: Participant
    topic: str  # encoded
    positions: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # acknowledged in the transaction
    settled_us: int | None = None
    how: Settled | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTransaction:
    """A transaction with its participants, ascending."""

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
        """Participants that are still to be told."""
        return [one for one in self.participants if one.settled_us is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A transaction of which every participant has been told."""

    txn: TransactionId
    took_us: int | None = None  # from its decision until this call ended it; None: it was over before


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorWork:
    """What is to be done now, and when next."""

    undone: bool  # there are decided transactions, of any coordinator, that no workflow works on
    next_deadline_us: int | None  # of the coordinator's open transactions
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCounts:
    """Numbers for people and gauges."""

    states: Mapping[TransactionState, int]  # of unfinished ones
    oldest_open_us: int | None  # since when the oldest open one is
    oldest_decided_us: int | None  # since when the oldest decided one is not through
    hidden_bytes: int  # of bitmaps of hidden entries


class Transactions(Protocol):
    """Rows of transactions. What decides one is a write of a group commit; here it is read, and its end told."""

    def get(self, txn: TransactionId) -> StoredTransaction:
        """The transaction.

        Raises:
            UnknownObject: There is none, or it was forgotten.
        """

    def many(
        self, *, states: Sequence[TransactionState] = (), after: TransactionId | None = None, limit: int
    ) -> list[StoredTransaction]:
        """Transactions by id ascending, behind `after`; of these states, or unfinished ones if none is named."""

    def states(self, txns: Sequence[TransactionId]) -> dict[TransactionId, TransactionState]:
        """The state of each that exists, in one statement: what waiting clients poll."""

    def counts(self) -> TransactionCounts:
        """How many are unfinished, and since when."""

    def frontier(self, topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        """What readers may see, at one moment; hidden entries of earlier ledgers are left out.

        Of a topic that does not exist there is nothing to see.
        """

    def held(self, topic_id: TopicId, subscription: str) -> Mapping[TransactionId, Mapping[LedgerId, BitMap]]:
        """What open transactions have acknowledged of the subscription."""

    def expire(self, tc_id: int, *, limit: int) -> int:
        """Abort open transactions whose deadline has passed, by the catalog's clock; how many. Repeating is fine."""

    def work_of(self, tc_id: int) -> CoordinatorWork:
        """What the coordinator has to do."""

    def busy_coordinators(self) -> list[int]:
        """Coordinators with expired open transactions, or decided ones that no workflow works on; ascending."""

    def claim(self, claim: Claim, *, limit: int) -> list[StoredTransaction]:
        """Take decided transactions that no workflow works on, or which are this workflow run's already.

        They may be of any coordinator: what many decided at once is told in one batch.

        Idempotency: claims lapse by the catalog's clock, so what a dead claimant took is taken again.
        """

    def claim_one(self, txn: TransactionId, claim: Claim) -> StoredTransaction:
        """Take one decided transaction, or renew one's claim; one that is finished is answered as it is.

        Raises:
            UnknownObject: There is none.
            ClaimHeld: Another workflow works on it.
            TransactionNotDecided: It is open.
        """

    def settle(self, done: Sequence[tuple[TransactionId, Participant, Settled]]) -> list[Finished]:
        """Count participants as told and settle the buffers of their topics, of many transactions in one.

        Messages of aborted transactions become hidden for good; ranges go. COMMITTING → COMMITTED and ABORTING →
        ABORTED for those that owe nothing more.

        Idempotency: what is settled stays so, and what is final is answered again.

        Returns:
            Those of the transactions that are final now, ascending.
        """

    def hand_over(
        self, failures: Mapping[TransactionId, Mapping[Participant, str]], *, to: Mapping[TransactionId, Claim]
    ) -> None:
        """Give transactions to workflows of their own, and write down an attempt, and why each participant failed.

        Args:
            failures: Of each transaction the participants that could not be told.
            to: Of each the claim of its workflow, without a run: it has not begun.
        """

    def handed_over(self, *, limit: int) -> list[TransactionId]:
        """Transactions that were given to workflows of their own, which have not begun to work on them, ascending."""

    def failed(self, txn: TransactionId, failures: Mapping[Participant, str]) -> None:
        """Write down an attempt, and why each participant could not be told."""

    def resolve(self, txn: TransactionId, participant: Participant, cause: Cause) -> StoredTransaction:
        """Count a participant as told because an operator says so, with a row in the audit log.

        Repeating changes nothing.

        Raises:
            UnknownObject: No such transaction or participant.
            TransactionNotDecided: It is open.
        """

    def forget(self, *, older_than_s: float, limit: int) -> int:
        """Remove transactions that finished so long ago, with their participants; how many."""


SNAPSHOT_CHANGES: Final = 1_000
"""Transactions settled in a topic, after which its next snapshot is due at once."""

SNAPSHOT_AFTER_S: Final = 5.0
"""After the first transaction that is settled, with however few more, it is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """What the catalog says of a topic's snapshot."""

    ledger_id: LedgerId | None = None  # None: there is none
    read_to: Position = EARLIEST  # the last entry that it knows of
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
