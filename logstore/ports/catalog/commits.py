"""Small writes, committed in groups, and their port."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from logstore.cursors.state import CursorSnapshot
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
from logstore.log.producers import ProducerSequence
from logstore.ports.catalog.topics import TopicState
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transactions import TransactionId, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAdvance:
    """One producer's sequence ids in a segment: registered only if `first` is beyond its last one.

    Those of another transaction, or of none, are registered only once `txn` is decided; see `ProducerSequence`.
    """

    producer: str
    first: int
    last: int
    txn: TransactionId | None = None


@dataclass(frozen=True, slots=True)
class TransactionEntries:
    """Entries of a segment, one after the other, that belong to an open transaction."""

    txn: TransactionId
    offset: int  # in the segment
    entries: int


class LedgerEnd(NamedTuple):
    """A ledger in a topic's list, as the next segment meets it."""

    topic_id: int
    state: str  # a `LedgerState`
    last_segment: int  # -1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSegment:
    """Make an uploaded segment part of its ledger: the moment at which its data exists."""

    topic_id: TopicId
    ledger_id: LedgerId
    epoch: int
    number: int
    entries: int
    size_bytes: int
    sha256: str | None = None  # of the object, hexadecimal; None: not known
    producers: tuple[ProducerAdvance, ...] = ()
    transactions: tuple[TransactionEntries, ...] = ()
    markers: tuple[int, ...] = ()  # offsets in the segment of entries that no consumer sees
    delayed: int = 0  # entries with a delivery time

    def refusal(
        self, *, epoch: int, topic: str | None, ledger: LedgerEnd | None, sequences: Mapping[str, ProducerSequence]
    ) -> SextonError | None:
        """The first condition of an append that does not hold, by rows that are locked; None: all of them hold.

        Source: the rule of an append, in this order. What it asks of transactions comes after it.

        Args:
            epoch: The catalog's.
            topic: The topic's state; None: there is no such topic.
            ledger: None: no list has it.
            sequences: Of producers that are known in the topic, by name.
        """
        if self.epoch != epoch:
            return StaleCatalog(f"append: expected catalog epoch {epoch}, found {self.epoch}")
        if topic is None:
            return UnknownObject("topic_id", expected="an existing topic", found=self.topic_id)
        if topic != TopicState.ACTIVE:
            return PreconditionFailed(f"topic {self.topic_id}: expected state ACTIVE, found {topic}")
        return self._refused_by_ledger(ledger) or self._refused_by_producers(sequences)

    def _refused_by_ledger(self, ledger: LedgerEnd | None) -> SextonError | None:
        at = f"ledger {self.ledger_id}"
        if ledger is None or ledger.state != LedgerState.OPEN:
            return LedgerFenced(f"{at}: expected state OPEN, found {ledger.state if ledger else 'not listed'}")
        if ledger.topic_id != self.topic_id:
            return LedgerFenced(f"{at}: expected a ledger of topic {self.topic_id}, found one of {ledger.topic_id}")
        if self.number <= ledger.last_segment:
            return AlreadyExists(f"{at}: expected a segment above {ledger.last_segment}, found {self.number}")
        return None

    def _refused_by_producers(self, sequences: Mapping[str, ProducerSequence]) -> SextonError | None:
        ahead = dict(sequences)
        for part in self.producers:
            known = ahead.get(part.producer, ProducerSequence())
            if known.refuses(part.txn) or part.first <= known.last:
                inside = f" in transaction {known.txn}" if known.txn else ""
                expected = f"a sequence id above {known.last}{inside}"
                return ProducerFenced(f"producer {part.producer!r}: expected {expected}, found {part.first}")
            ahead[part.producer] = known.advance(part.last, part.txn)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Acknowledge single positions, or everything up to one, for a subscription."""

    topic_id: TopicId
    subscription: str
    positions: tuple[Position, ...] = ()
    up_to: Position | None = None
    snapshot: CursorSnapshot | None = None  # what the sender has loaded; a transaction reads no object store
    txn: TransactionId | None = None  # held by this open transaction until it is decided
    releases: int | None = (
        None  # `StoredCursor.releases` when `up_to` was read; None: as 0, and nothing delayed may be covered
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransaction:
    """Open a transaction. Repeated after an unknown outcome it opens another one; the first one times out."""

    tc_id: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Decide a transaction; the same verb twice is answered twice."""

    txn: TransactionId
    commit: bool


Write = RegisterSegment | Acknowledge | BeginTransaction | EndTransaction
"""A small write that travels in a group commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSegmentResult:
    """Where a segment's entries went, and what its ledger holds now."""

    first_entry: int
    ledger_entries: int
    ledger_size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeResult:
    """Where the cursor stands now."""

    mark_delete: Position
    row_bytes: int = field(default=0, compare=False)  # what the cursor's row holds beyond it, packed
    snapshot_ledger: LedgerId | None = field(default=None, compare=False)  # where the rest of its state is


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionResult:
    """A transaction that is open."""

    txn: TransactionId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionResult:
    """The state in which a transaction is after its decision: final at once where it has no participants."""

    state: TransactionState


WriteResult = RegisterSegmentResult | AcknowledgeResult | BeginTransactionResult | EndTransactionResult | SextonError


class Commits(Protocol):
    """The one writer's door."""

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Do all writes in one transaction and answer each in its place.

        A write that a rule refuses is answered with its error and does not disturb the others: `LedgerFenced`,
        `ProducerFenced`, `AlreadyExists` (segment number), `SnapshotNeeded` (an acknowledgement without the
        snapshot that its cursor has), `UnknownObject`, `InvalidInput`, `StaleCatalog`,
        `PreconditionFailed` (topic not ACTIVE), `TransactionNotOpen`, `TransactionEnded` (decided otherwise, or past
        its deadline), `AcknowledgementHeld` (by another transaction, or for good), `AcknowledgementStale` (`up_to` was
        read before entries were given back).
        Raises when the transaction as a whole failed: then none of them happened, unless it raises
        `OutcomeUnknown`.
        """
