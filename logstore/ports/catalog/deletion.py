"""Values of the catalog: deletion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logstore.deletion.intents import Outcome
from logstore.positions import LedgerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Right of one workflow run to work on a row for `ttl_s`, by the catalog's clock."""

    workflow_id: str
    run_id: str
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCause:
    actor: str
    reason: str
    workflow_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledIntentCount:
    component: str
    copy: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedBatch:
    """Result of phase one. If a call is repeated with the same batch id, its result is the same."""

    batch_id: str
    ledgers: int  # taken out of their list
    intents: int  # rows for phase two: new intents, and stalled intents that the batch took over
    finished: Mapping[str, int] = field(default_factory=dict)  # earlier intents that are finished, by outcome
    filed_counts: Sequence[FiledIntentCount] = field(default=(), compare=False)  # filed by this call


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentRowRange:
    """Range of a batch's row ids, both ends inclusive."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentResult:
    row_id: int
    outcome: Outcome
    objects: int = 0
    size_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentTally:
    """Counts of a batch, taken from the rows of the batch. Work that ran twice is therefore counted once."""

    outcomes: Mapping[str, int]  # rows by outcome; RETRYING means unfinished
    objects: int  # objects whose removal storage confirmed
    size_bytes: int
    closed: bool = field(default=False, compare=False)  # whether this call closed the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeletedCopyCounts:
    """Counts of unfinished intents and dead letters. If both counts are zero, all detached copies are deleted."""

    estimated_inflight: int
    dead_lettered: int
    oldest_us: int | None = field(default=None, compare=False)  # time at which the oldest unfinished intent was filed


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicContentCounts:
    ledgers: Mapping[str, int]  # by component
    copies: Mapping[str, Mapping[str, int]]  # by component, then by kind of copy
    subscriptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachChosenResult:
    reason_by_kept_ledger: Mapping[LedgerId, str] = field(default_factory=dict)
    detached: DetachedBatch  # result for all other ledgers


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRowCounts:
    rows: int = 0  # intents in state DELETED
    runs: int = 0  # batches without intents


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBacklogCounts:
    stalled: int
    newborn: int  # ledgers that are older than the registration timeout and were never attached
    uploads: int  # unfinished tiered copies whose upload deadline has passed
    rows: int  # finished intents to be removed
    runs: int  # empty batches to be removed; the removal of `rows` may empty further batches
