"""What travels to and from the deletion workflows.

Here and not beside the workflows, because the sandbox runs a workflow's own module anew for each run: its classes
would be other ones each time, and the converter would work out a schema for each, which costs more than the rest.
"""

from dataclasses import dataclass, field

from activities.deletion import IntentKey
from logstore.deletion import Outcome

MOST_OBJECTS_PER_S = 1_000_000
"""The highest rate of a batch, inclusive: far beyond any store, so that more is a slip of the finger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPolicy:
    """How phase two works; set from the settings of who starts it."""

    parallelism: int = 4  # chunks at once
    chunk: int = 100  # rows in a chunk
    max_attempts: int = 10
    retry_interval_s: int = 600
    owner_patience_s: int = 10  # how long a topic's owner may let work lie before somebody else gets it
    alone: int = 500  # children of one run, then it continues as new: the server refuses 2,000 pending ones


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgerInput:
    """One intent, and how patiently to try."""

    key: IntentKey
    topic: str  # encoded; for filters, and to find its owner
    catalog_epoch: int
    max_attempts: int = 10  # the batch's own attempt counts as one
    retry_interval_s: int = 600
    owner_patience_s: int = 10  # how long the topic's owner may let it lie before somebody else gets it


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgerProgress:
    """Where the deletion of one copy is."""

    step: str  # deleting, giving up, ended
    outcome: Outcome | None = None  # once it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitDetach:
    """Phase one for given ledgers."""

    ledger_ids: list[int]  # 1 to 10,000
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgersProgress:
    """How far the batch is; counts are of rows and confirmed objects."""

    intents: int = 0
    after: int = 0  # every row up to this id was visited
    outcomes: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    size_bytes: int = 0
    detached: int = 0
    finished: dict[str, int] = field(default_factory=dict)  # asked for and ended before: outcome -> rows
    paused: bool = False  # no chunk is started; those in hand end
    rate: int = 0  # objects a second for the whole batch; 0: unlimited
    done: int = 0  # rows that ended, or have a workflow of their own
    left: int = 0  # rows not met yet


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRate:
    """How fast a batch may delete from now on."""

    objects_per_s: int  # 0 to `MOST_OBJECTS_PER_S`; 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteLedgersInput:
    """One batch. Give `detach` to do phase one here."""

    batch_id: str
    topic_id: int
    topic: str  # encoded
    catalog_epoch: int
    actor: str
    reason: str
    policy: DeletionPolicy = field(default_factory=DeletionPolicy)
    detach: ExplicitDetach | None = None
    carried: DeleteLedgersProgress = field(default_factory=DeleteLedgersProgress)
    owner: str = ""  # the worker that detached the topic's ledgers as its owner, if one did: it is not looked up
