"""Inputs and results of the deletion activities. The rows of a batch stay in SQL, because a batch may be large."""

from dataclasses import dataclass, field

from activities.owner_routing import OwnerRoutedInput
from logstore.deletion.intents import HasIntent, IntentKey
from logstore.errors import InvalidInput
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import IntentRowRange
from logstore.positions import LedgerId
from logstore.records.tombstone_rules import CompoundOperation
from logstore.subjects import HasBatch, HasLedgers, HasOutcomes, HasRowLimit, HasSubject, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachInput(OwnerRoutedInput, HasLedgers, HasBatch):
    """Input of `deletion.detach`. Without `ledger_ids`, retention selects the ledgers."""

    topic_id: int
    batch_id: str
    batch_workflow_id: str  # workflow of phase two, which gets the claim
    actor: str
    reason: str
    catalog_epoch: int | None = None  # if given, it must be the catalog's epoch
    ledger_ids: list[int] | None = None  # at most 10,000
    force: bool = False
    durable_delete: str | None = None  # a `DeleteDurability`; None: the setting of the topic or the operation
    remove: list[str] = field(default_factory=list)  # kinds of copies that a compound operation removes
    pass_over: list[str] = field(default_factory=list)
    generation: int | None = None

    def to_compound_operation(self) -> CompoundOperation:
        """Return the compound operation on one ledger.

        Raise `InvalidInput` unless the input has exactly one ledger, only known kinds of copies, and no `force`.
        """
        ids = self.ledger_ids or []
        if len(ids) != 1 or self.force:
            raise InvalidInput("ledger_ids", expected="one ledger, not forced, of which copies are removed", found=ids)
        if unknown := sorted(set(self.remove) - set(CopyKind)):
            raise InvalidInput("remove", expected=f"copies out of {', '.join(CopyKind)}", found=unknown[0])
        return CompoundOperation(
            ledger_id=LedgerId(ids[0]),
            remove=frozenset(map(CopyKind, self.remove)),
            pass_over=frozenset(self.pass_over),
            generation=self.generation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachResult:
    ledgers: int
    intents: int
    catalog_epoch: int
    finished: dict[str, int] = field(default_factory=dict)  # requested rows that had ended before, by outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRangesInput(HasSubject):
    batch_id: str
    catalog_epoch: int
    after: int  # row id, exclusive
    rows: int  # rows per range
    limit: int  # maximum number of ranges

    def subject(self) -> Subject:
        return Subject(parts=(f"rows after {self.after}",), batch_id=self.batch_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRangesPage:
    ranges: list[IntentRowRange]  # at most `RowRangesInput.limit`
    stale: bool = False  # the catalog has another epoch; nothing may change


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInput(OwnerRoutedInput):
    batch_id: str
    chunk: IntentRowRange
    catalog_epoch: int
    many_topics: bool = False  # the batch has several topics; the result names the topic of each row
    objects_per_s: float = 0.0  # this chunk's share of the batch's rate; 0: unlimited

    def subject(self) -> Subject:
        return Subject(rows=(self.chunk.first, self.chunk.last), batch_id=self.batch_id, topic=self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult(HasOutcomes):
    """Counts of a chunk's rows by outcome, and the rows that need a workflow of their own."""

    outcomes: dict[str, int]
    objects: int = 0  # confirmed by storage in this attempt
    size_bytes: int = 0
    alone: list[IntentKey] = field(default_factory=list)  # rows that need a workflow of their own
    topics: list[str] = field(default_factory=list)  # of the rows in `alone`, if the batch has several topics
    next_row: int = 0  # at a limited rate, the first row for the next call; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteIntentInput(OwnerRoutedInput, HasIntent):
    key: IntentKey
    catalog_epoch: int
    retry_interval_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterInput(OwnerRoutedInput, HasIntent):
    key: IntentKey
    catalog_epoch: int
    error: str  # of the last attempt; empty: the error in the row


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyInput(OwnerRoutedInput, HasBatch):
    batch_id: str
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOverStalledInput(HasRowLimit, HasBatch):
    batch_id: str
    batch_workflow_id: str  # workflow of phase two, which gets the claim
    limit: int  # maximum number of stalled intents, and of newborn ledgers


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOldIntentsInput(HasRowLimit):
    limit: int
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedIntentCounts:
    rows: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPausedBatchInput(HasBatch):
    batch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseOrResumeBatchInput(HasBatch):
    batch_id: str
    paused: bool
