"""Inputs and results of the deletion activities. They hold no list that can grow: rows stay in SQL."""

from dataclasses import dataclass, field

from activities.dispatch import TopicWork
from logstore.deletion.intents import IntentKey, Outcome
from logstore.errors import InvalidInput
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import RowRange
from logstore.positions import LedgerId
from logstore.records.tombstones import Compound


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachInput(TopicWork):
    """Phase one. `ledger_ids` None: what retention does not keep."""

    topic_id: int
    batch_id: str
    batch_workflow_id: str  # which workflow will do phase two: it gets the claim
    actor: str
    reason: str
    catalog_epoch: int | None = None  # required to be the catalog's, where the request names one
    ledger_ids: list[int] | None = None  # at most 10,000
    force: bool = False
    durable_delete: str | None = None  # a `DeletePolicy`; None: as the topic says, or the operation
    remove: list[str] = field(default_factory=list)  # a compound operation on the one ledger; see `Compound`
    pass_over: list[str] = field(default_factory=list)
    generation: int | None = None

    def operation(self) -> Compound:
        """The compound operation that it asks for.

        Raises:
            InvalidInput: It is of another number of ledgers than one, is forced, or names a copy of no kind.
        """
        ids = self.ledger_ids or []
        if len(ids) != 1 or self.force:
            raise InvalidInput("ledger_ids", expected="one ledger, not forced, of which copies are removed", found=ids)
        if unknown := sorted(set(self.remove) - set(CopyKind)):
            raise InvalidInput("remove", expected=f"copies out of {', '.join(CopyKind)}", found=unknown[0])
        return Compound(
            ledger_id=LedgerId(ids[0]),
            remove=frozenset(map(CopyKind, self.remove)),
            pass_over=frozenset(self.pass_over),
            generation=self.generation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachResult:
    """What left the list, and what phase two has to do."""

    ledgers: int
    intents: int
    catalog_epoch: int
    finished: dict[str, int] = field(default_factory=dict)  # asked for and ended before: outcome -> rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesInput:
    """Which page of a batch."""

    batch_id: str
    catalog_epoch: int
    after: int  # row id, exclusive
    rows: int  # per range
    limit: int  # ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesPage:
    """What comes next in a batch; `ranges` is empty when nothing does."""

    ranges: list[RowRange]  # at most `RangesInput.limit`
    stale: bool = False  # the catalog has another epoch: nothing may be changed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInput(TopicWork):
    """One range of a batch."""

    batch_id: str
    chunk: RowRange
    catalog_epoch: int
    many_topics: bool = False  # the batch is of several: the answer says whose each row is
    objects_per_s: float = 0.0  # this chunk's share of the batch's rate; 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """What a chunk came to: counts of its rows by outcome, and the rows that need a workflow of their own."""

    outcomes: dict[str, int]
    objects: int = 0  # confirmed by storage in this attempt
    size_bytes: int = 0
    alone: list[IntentKey] = field(default_factory=list)  # at most the chunk's rows
    topics: list[str] = field(default_factory=list)  # of each of `alone`, where the batch is of several
    next_row: int = 0  # at a limited rate, the first row that this call left for another one; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteIntentInput(TopicWork):
    """One intent."""

    key: IntentKey
    catalog_epoch: int
    retry_interval_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteIntentResult:
    """How one intent ended."""

    outcome: Outcome
    objects: int = 0
    size_bytes: int = 0
    detail: str = ""
    stuck: bool = False  # storage kept as many keys at each of the last attempts, so that a person must look


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterInput(TopicWork):
    """An intent whose attempts are exhausted."""

    key: IntentKey
    catalog_epoch: int
    error: str  # of the last attempt; empty: what the row says of it


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyInput(TopicWork):
    """Close a batch."""

    batch_id: str
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptInput:
    """A page of stalled intents and of ledgers that were never attached."""

    batch_id: str
    batch_workflow_id: str  # which workflow will do phase two: it gets the claim
    limit: int  # stalled rows, and as many newborn ledgers


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDeletionsInput:
    """A page of what ended long ago."""

    limit: int
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDeletionsResult:
    """What went; both zero when nothing is left to delete."""

    rows: int = 0
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldBatchInput:
    """A batch that is paused."""

    batch_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseBatchInput:
    """The batch that an operator paused or resumed."""

    batch_id: str
    paused: bool
