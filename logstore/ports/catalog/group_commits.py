"""Port of small writes, which are committed in groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from logstore.cursors.cursor_state import CursorSnapshot
from logstore.errors import (
    AlreadyExists,
    LedgerFenced,
    PreconditionFailed,
    ProducerFenced,
    SextonError,
    StaleCatalog,
    UnknownObject,
)
from logstore.log.ledgers import LedgerState
from logstore.log.producer_sequences import HighestSequenceIds
from logstore.ports.catalog.topics_and_schemas import TopicState
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSequenceRange:
    """Sequence ids of one producer in a segment. `first` must be above the producer's last registered id.

    While a transaction of the producer is open, only entries of this transaction are accepted.
    """

    producer: str
    first: int
    last: int
    txn: TransactionId | None = None


@dataclass(frozen=True, slots=True)
class TransactionEntryRange:
    """Consecutive entries of a segment that belong to an open transaction."""

    txn: TransactionId
    offset: int  # in the segment
    entries: int


class LedgerAppendState(NamedTuple):
    topic_id: int
    state: str  # a `LedgerState`
    last_segment: int  # highest registered segment number; -1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSegmentWrite:
    """Write that registers an uploaded segment in its ledger. After the commit the segment's entries exist."""

    topic_id: TopicId
    ledger_id: LedgerId
    epoch: int
    number: int
    entries: int
    size_bytes: int
    sha256: str | None = None  # SHA-256 of the object, hexadecimal; None: not known
    producers: tuple[ProducerSequenceRange, ...] = ()
    transactions: tuple[TransactionEntryRange, ...] = ()
    markers: tuple[int, ...] = ()  # offsets in the segment of entries that no consumer sees
    delayed: int = 0  # entries with a delivery time

    def refusal(
        self,
        *,
        catalog_epoch: int,
        topic_state: str | None,
        ledger: LedgerAppendState | None,
        sequences: Mapping[str, HighestSequenceIds],
    ) -> SextonError | None:
        """Return the error of the first condition that the locked rows violate, or `None`.

        Conditions on transactions are checked later. `topic_state` is the state of the topic, or `None` if the topic
        does not exist. `ledger` is `None` if the ledger is not listed. `sequences` has the topic's producers by name.
        """
        if self.epoch != catalog_epoch:
            return StaleCatalog(f"append: expected catalog epoch {catalog_epoch}, found {self.epoch}")
        if topic_state is None:
            return UnknownObject("topic_id", expected="an existing topic", found=self.topic_id)
        if topic_state != TopicState.ACTIVE:
            return PreconditionFailed(f"topic {self.topic_id}: expected state ACTIVE, found {topic_state}")
        return self._refused_by_ledger(ledger) or self._refused_by_producers(sequences)

    def _refused_by_ledger(self, ledger: LedgerAppendState | None) -> SextonError | None:
        subject = f"ledger {self.ledger_id}"
        if ledger is None or ledger.state != LedgerState.OPEN:
            return LedgerFenced(f"{subject}: expected state OPEN, found {ledger.state if ledger else 'not listed'}")
        if ledger.topic_id != self.topic_id:
            return LedgerFenced(
                f"{subject}: expected a ledger of topic {self.topic_id}, found one of {ledger.topic_id}"
            )
        if self.number <= ledger.last_segment:
            return AlreadyExists(f"{subject}: expected a segment above {ledger.last_segment}, found {self.number}")
        return None

    def _refused_by_producers(self, sequences: Mapping[str, HighestSequenceIds]) -> SextonError | None:
        sequence_by_producer = dict(sequences)
        for part in self.producers:
            known = sequence_by_producer.get(part.producer, HighestSequenceIds())
            if known.refuses(part.txn) or part.first <= known.last:
                inside = f" in transaction {known.txn}" if known.txn else ""
                expected = f"a sequence id above {known.last}{inside}"
                return ProducerFenced(f"producer {part.producer!r}: expected {expected}, found {part.first}")
            sequence_by_producer[part.producer] = known.advance(part.last, part.txn)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeWrite:
    topic_id: TopicId
    subscription: str
    positions: tuple[Position, ...] = ()
    up_to: Position | None = None
    snapshot: CursorSnapshot | None = None  # loaded by the sender, because a transaction reads no object store
    txn: TransactionId | None = None  # open transaction of the acknowledgements
    releases: int | None = (
        None  # `StoredCursor.releases` when `up_to` was read; None: 0, and no delayed messages up to `up_to`
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionWrite:
    """Write that opens a transaction. A repeated write opens a second transaction, and the first one times out."""

    tc_id: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionWrite:
    """Write that decides a transaction. A repeated write with the same decision returns the same result."""

    txn: TransactionId
    commit: bool


GroupCommitWrite = RegisterSegmentWrite | AcknowledgeWrite | BeginTransactionWrite | EndTransactionWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSegmentResult:
    first_entry: int
    ledger_entries: int
    ledger_size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeResult:
    mark_delete: Position
    row_bytes: int = field(default=0, compare=False)  # size of the single acknowledgements in the row, packed
    snapshot_ledger: LedgerId | None = field(default=None, compare=False)  # cursor ledger with the rest of the state


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionResult:
    txn: TransactionId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionResult:
    state: TransactionState


GroupCommitResult = (
    RegisterSegmentResult | AcknowledgeResult | BeginTransactionResult | EndTransactionResult | SextonError
)


class GroupCommits(Protocol):
    def commit_writes(self, writes: Sequence[GroupCommitWrite]) -> list[GroupCommitResult]:
        """Commit all writes in one transaction. Return a result or an error for each write, in order.

        A refused write does not affect the other writes. The error of a refused write is one of:

        - `LedgerFenced`, `ProducerFenced`, `UnknownObject`, `InvalidInput`, `StaleCatalog` or `TransactionNotOpen`.
        - `AlreadyExists`: the segment number is taken.
        - `SnapshotNeeded`: the acknowledgement lacks the cursor's snapshot.
        - `PreconditionFailed`: the topic is not ACTIVE.
        - `TransactionEnded`: the transaction has the opposite decision, or is past its deadline.
        - `AcknowledgementHeld`: another open transaction has acknowledged an entry, or a write with `txn` names a
          position that is already acknowledged.
        - `AcknowledgementStale`: entries were given back after `up_to` was read.

        If the method raises any error except `OutcomeUnknown`, no write happened.
        """
