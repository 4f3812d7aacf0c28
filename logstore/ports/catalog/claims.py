"""What ports say of claimed work: which workflow claims it and why, what a batch detached, and how its rows ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logstore.deletion.intents import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Which workflow works on something, and for how long by the catalog's clock."""

    workflow_id: str
    run_id: str
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why something is destroyed, for the audit log."""

    actor: str
    reason: str
    workflow_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FiledCount:
    """New intents of one component and one kind of copy."""

    component: str
    copy: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedBatch:
    """What phase one did, the same when it is repeated with the same batch id."""

    batch_id: str
    ledgers: int  # taken out of the list by this call
    intents: int  # rows for phase two: new ones and stalled ones taken up
    finished: Mapping[str, int] = field(default_factory=dict)  # asked for, but ended before: outcome -> rows
    filed_counts: Sequence[FiledCount] = field(default=(), compare=False)  # by this very call: none when it is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Intents of a batch by row id, both ends inclusive."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentResult:
    """How phase two ended for a row."""

    row_id: int
    outcome: Outcome
    objects: int = 0
    size_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """A batch counted from its rows, so that repeated work counts once."""

    outcomes: Mapping[str, int]  # rows by outcome; RETRYING: unfinished
    objects: int  # confirmed by storage
    size_bytes: int
    closed: bool = field(default=False, compare=False)  # by this very call


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflight:
    """Only both at zero mean that all is deleted."""

    estimated_inflight: int
    dead_lettered: int
    oldest_us: int | None = field(default=None, compare=False)  # when the first of the unfinished was filed
