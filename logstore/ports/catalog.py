"""The catalog as Sexton needs it: every method is one transaction, decided under its own locks.

A method that writes may be called again after a crash or an unknown outcome: each docstring says what makes
that harmless. All of them may raise `CatalogBusy` (contention) and `StoreUnavailable` (no connection).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from logstore.cursors import CursorState, LedgerSpan
from logstore.deletion import DeletionIntent, DeletionState, Outcome
from logstore.errors import SextonError
from logstore.ledgers import Component, CopyKind, LedgerState, LedgerStatement
from logstore.positions import LedgerId, Position, TopicId
from logstore.retention import RetentionPolicy


class TopicState(StrEnum):
    """ACTIVE takes work; DELETING only lets it end. Stored by name."""

    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; a name created again has another id."""

    topic_id: TopicId
    name: str  # encoded
    state: TopicState
    policy: RetentionPolicy
    created_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A ledger row."""

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

    @property
    def span(self) -> LedgerSpan:
        """What cursors need of it."""
        return LedgerSpan(self.ledger_id, self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A registered segment: entries `first_entry` (inclusive) to `first_entry + entries` (exclusive)."""

    ledger_id: LedgerId
    number: int
    first_entry: int
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A cursor row."""

    name: str
    state: CursorState
    created_us: int


class Topics(Protocol):
    """Topics and their data ledger lists."""

    def create(self, name: str, policy: RetentionPolicy) -> Topic:
        """Create the topic with an empty list.

        Raises:
            AlreadyExists: The name is taken.
        """

    def get(self, name: str) -> Topic:
        """The topic of that encoded name.

        Raises:
            UnknownObject: There is none.
        """

    def by_id(self, topic_id: TopicId) -> Topic:
        """The topic of that id.

        Raises:
            UnknownObject: There is none.
        """

    def all(self) -> list[Topic]:
        """Every topic, ascending by name."""


class Ledgers(Protocol):
    """Ledgers of a topic's data list and their segments."""

    def epoch(self) -> int:
        """The catalog's epoch; a rebuilt catalog has another."""

    def listed(self, topic_id: TopicId) -> list[Ledger]:
        """The topic's data ledgers, in list order, which is ascending by id."""

    def last(self, topic_id: TopicId) -> Ledger | None:
        """The list's last ledger, or None when the list is empty."""

    def create(self, topic_id: TopicId, *, application: str) -> LedgerStatement:
        """Take the next ledger id and insert the row, CREATING and in no list yet.

        Not idempotent: a row that is never attached is detached again by the topic's next trim, after
        `registration_timeout`, so a repeated call leaves nothing behind for ever.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def attach(self, ledger_id: LedgerId, *, after: LedgerId | None) -> bool:
        """CREATING → OPEN at the end of its list, closing the list's last ledger, which must still be `after`.

        Returns whether this ledger is in its list now (true again when repeated). When another ledger came
        first, or the list's last has a higher id, the newborn is detached in the same transaction: its deletion
        intent is filed (apache/pulsar#350).

        Raises:
            PreconditionFailed: The topic is not ACTIVE.
        """

    def segments(self, ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        """Registered segments that hold entries at or after `from_entry`, ascending."""

    def producer_sequences(self, topic_id: TopicId, producers: Iterable[str]) -> dict[str, int]:
        """Last registered sequence id of those producers that have one."""


class Cursors(Protocol):
    """Subscriptions."""

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> Subscription:
        """Create the subscription at the first listed entry, or behind the last one; an existing one is returned.

        Locks the ledger list and raises its version, so it commits before a detach decides or after.

        Raises:
            UnknownObject: No such topic.
            PreconditionFailed: The topic is not ACTIVE.
        """

    def get(self, topic_id: TopicId, name: str) -> Subscription:
        """The subscription.

        Raises:
            UnknownObject: There is none.
        """

    def all(self, topic_id: TopicId) -> list[Subscription]:
        """The topic's subscriptions, ascending by name."""

    def seek(self, topic_id: TopicId, name: str, position: Position) -> Subscription:
        """Set the cursor so that `position` is its next entry; locks the list like `subscribe`.

        Raises:
            UnknownObject: No such topic or subscription.
            InvalidInput: The position lies beyond the end.
            PreconditionFailed: The topic is not ACTIVE.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAdvance:
    """One producer's sequence ids in a segment: registered only if `first` is beyond its last one."""

    producer: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterSegment:
    """Make an uploaded segment part of its ledger: the moment at which its data exists."""

    topic_id: TopicId
    ledger_id: LedgerId
    epoch: int
    number: int
    entries: int
    size_bytes: int
    producers: tuple[ProducerAdvance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Acknowledge single positions, or everything up to one, for a subscription."""

    topic_id: TopicId
    subscription: str
    positions: tuple[Position, ...] = ()
    up_to: Position | None = None


Write = RegisterSegment | Acknowledge
"""A small write that travels in a group commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Where a segment's entries went, and what its ledger holds now."""

    first_entry: int
    ledger_entries: int
    ledger_size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Where the cursor stands now."""

    mark_delete: Position


WriteResult = Registered | Acknowledged | SextonError


class Commits(Protocol):
    """The one writer's door."""

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Do all writes in one transaction and answer each in its place.

        A write that a rule refuses is answered with its error and does not disturb the others: `LedgerFenced`,
        `ProducerFenced`, `AlreadyExists` (segment number), `UnknownObject`, `InvalidInput`, `StaleCatalog`,
        `PreconditionFailed` (topic not ACTIVE).
        Raises when the transaction as a whole failed: then none of them happened, unless it raises
        `OutcomeUnknown`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who works on something, until when by the catalog's clock."""

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
class Detached:
    """What phase one did, the same when it is repeated with the same batch id."""

    batch_id: str
    ledgers: int  # taken out of the list by this call
    intents: int  # rows for phase two: new ones and stalled ones taken up
    finished: Mapping[str, int] = field(default_factory=dict)  # asked for, but ended before: outcome -> rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Intents of a batch by row id, both ends inclusive."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflight:
    """Only both at zero mean that all is deleted."""

    estimated_inflight: int
    dead_lettered: int


class Deletions(Protocol):
    """Phase one, and the queue of phase two."""

    def preview(self, topic_id: TopicId, ledger_ids: Sequence[LedgerId] | None, *, force: bool) -> list[LedgerId]:
        """What a detach would take out now; None asks for what retention lets go. Changes nothing.

        Raises:
            UnknownObject, LedgerStillNeeded: As `detach`.
        """

    def detach(
        self,
        topic_id: TopicId,
        ledger_ids: Sequence[LedgerId] | None,
        *,
        force: bool,
        batch_id: str,
        claim: Claim,
        cause: Cause,
    ) -> Detached:
        """Phase one in one transaction: take ledgers out of the list and file an intent per copy.

        Locks the list row, evaluates the whole rule, raises the version. With `ledger_ids` None, retention
        decides, and intents of this topic without a live claim and newborn ledgers that were never attached
        join the batch. `force` moves cursors over the hole. All or nothing for given ids.

        Idempotency: keyed by `batch_id`; a repeated call returns what the first one did. One that retention gave
        nothing to do leaves no trace, and may find something when it is repeated.

        Raises:
            UnknownObject: No such topic, or an id that was never of this topic's list.
            LedgerStillNeeded: Not forced and still needed, or the open last ledger.
        """

    def ranges(self, batch_id: str, *, after: int, rows: int, limit: int) -> list[RowRange]:
        """Up to `limit` ranges of about `rows` unfinished intents of the batch, beyond row id `after`."""

    def intents(self, batch_id: str, chunk: RowRange) -> list[DeletionIntent]:
        """The batch's intents in the range, finished or not, ascending by row id."""

    def renew(self, batch_id: str, claim: Claim) -> None:
        """Hold the batch until `ttl_s` from now.

        Raises:
            UnknownObject: No such batch.
            ClaimHeld: Another workflow holds it, or it is finished.
        """

    def referenced(self, intents: Sequence[DeletionIntent]) -> frozenset[int]:
        """Row ids of those whose copy a ledger list references now."""

    def finish(self, ended: Sequence[Ended]) -> None:
        """Record outcomes of rows that are still PENDING; a row that ended before keeps its outcome."""

    def hand_over(self, row_ids: Mapping[int, str], *, errors: Mapping[int, str], ttl_s: float) -> None:
        """Move claims of PENDING rows to the workflows named; counts as their first attempt.

        Rows already handed over keep their claim.
        """

    def take(
        self, ledger_id: LedgerId, copy: CopyKind, generation: int, claim: Claim, *, attempt: bool = True
    ) -> DeletionIntent:
        """Claim one row and count an attempt unless told otherwise; a finished row is returned as it is.

        Raises:
            UnknownObject: No such row: it was never filed, or has been removed.
            ClaimHeld: Another workflow holds it.
        """

    def hold(self, row_id: int, claim: Claim, *, error: str | None = None) -> None:
        """Keep the row claimed until `ttl_s` from now, and the error of an attempt if there was one.

        A row that ended is left alone.

        Raises:
            ClaimHeld: Another workflow holds it.
        """

    def tally(self, batch_id: str) -> Tally:
        """Count the batch by outcome."""

    def close(self, batch_id: str, cause: Cause) -> None:
        """Mark the batch's run finished and write its outcome to the audit log, once."""

    def inflight(self) -> Inflight:
        """Unfinished and dead-lettered intents."""

    def list(self, state: DeletionState | None, *, limit: int) -> list[DeletionIntent]:
        """Intents, newest first."""


class Catalog(Protocol):
    """All of it; consumers take the part they need."""

    @property
    def topics(self) -> Topics: ...  # noqa: D102
    @property
    def ledgers(self) -> Ledgers: ...  # noqa: D102
    @property
    def cursors(self) -> Cursors: ...  # noqa: D102
    @property
    def commits(self) -> Commits: ...  # noqa: D102
    @property
    def deletions(self) -> Deletions: ...  # noqa: D102
