"""Values of the catalog: log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from logstore.cursors.cursor_state import CursorSnapshot, VisibleLedgerSpan
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import (
    AlreadyExists,
    LedgerFenced,
    PreconditionFailed,
    ProducerFenced,
    SextonError,
    StaleCatalog,
    UnknownObject,
)
from logstore.log.entries import HighestSequenceIds, UploadedSegment
from logstore.log.ledgers import Component, CopyKind, LedgerState
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState


class LedgerAppendState(NamedTuple):
    topic_id: int
    state: str  # a `LedgerState`
    last_segment: int  # highest registered segment number; -1: none


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


R = TypeVar("R")


class WriteWithResult(Generic[R]):
    """Write of a group commit. `R` is the type of its result."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSegmentWrite(UploadedSegment, WriteWithResult[RegisterSegmentResult]):
    """Write that registers an uploaded segment in its ledger. After the commit the segment's entries exist.

    The first id of each range in `producers` must be above the producer's last registered id. While a transaction of
    the producer is open, only entries of this transaction are accepted.
    """

    topic_id: TopicId
    ledger_id: LedgerId
    markers: tuple[int, ...] = ()  # offsets in the segment of entries that no consumer sees

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
class AcknowledgeWrite(WriteWithResult[AcknowledgeResult]):
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
class BeginTransactionWrite(WriteWithResult[BeginTransactionResult]):
    """Write that opens a transaction. A repeated write opens a second transaction, and the first one times out."""

    tc_id: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionWrite(WriteWithResult[EndTransactionResult]):
    """Write that decides a transaction. A repeated write with the same decision returns the same result."""

    txn: TransactionId
    commit: bool


GroupCommitWrite = RegisterSegmentWrite | AcknowledgeWrite | BeginTransactionWrite | EndTransactionWrite


GroupCommitResult = (
    RegisterSegmentResult | AcknowledgeResult | BeginTransactionResult | EndTransactionResult | SextonError
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    ledger_id: LedgerId
    topic_id: TopicId
    component: Component
    state: LedgerState
    entries: int
    size_bytes: int
    last_segment: int  # highest registered number; -1: none
    generation: int
    created_us: int
    closed_us: int | None
    copies: tuple[CopyKind, ...] = (CopyKind.LEDGER,)
    keys: Mapping[str, str] = field(default_factory=dict)  # identify the ledger owner, e.g. {"cursor": "billing"}

    @property
    def span(self) -> VisibleLedgerSpan:
        return VisibleLedgerSpan(self.ledger_id, self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Registered segment: entries `first_entry` (inclusive) to `first_entry + entries` (exclusive)."""

    ledger_id: LedgerId
    number: int
    first_entry: int
    entries: int
    size_bytes: int
    sha256: str | None = None  # SHA-256 of the object, hexadecimal; None: not known
    delayed: int = 0  # entries with a delivery time


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLedgerTotals:
    ledgers: int
    entries: int
    size_bytes: int
    first: Position | None  # first entry of the log; None: there is no entry
    last: Position | None  # last entry that readers may see; None: no entry is visible


class TopicState(StrEnum):
    """State of a topic. The catalog stores the name."""

    ACTIVE = "ACTIVE"  # accepts new work
    DELETING = "DELETING"  # running work may finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Topic. If a deleted topic is created again under its old name, the new topic has another id."""

    topic_id: TopicId
    name: str  # encoded
    state: TopicState
    policy: RetentionPolicy
    created_us: int
    durable_delete: bool | None = None  # whether deletions leave tombstones by default; None: default of each operation


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSummary:
    name: str
    mark_delete: Position
    created_us: int
    backlog: int | None  # unacknowledged entries; None: unknown, because a cursor ledger has a part of the state


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """Topic, totals of its message ledgers, and its subscriptions, ascending by name."""

    topic: Topic
    totals: TopicLedgerTotals
    subscriptions: Sequence[SubscriptionSummary]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummaryPage:
    """Page of topics, ascending by encoded name. `more` is the number of matching topics after the page."""

    topics: Sequence[TopicSummary]
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    version: int  # from 0, without gaps
    ledger_id: LedgerId
    digest: str  # SHA-256 of the content, hexadecimal
    size_bytes: int  # of the content
    created_us: int
