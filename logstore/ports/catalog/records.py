"""The catalog's side of the record log, and the database of a replica, which follows one and serves reads.

The catalog says what has changed and is not in a block yet, and which tombstones it has.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from logstore.deletion.intents import DeletionIntent
from logstore.ports.catalog.claims import Claim
from logstore.records.kinds import RecordKind
from logstore.records.manifest import Block, Ceilings, Manifest

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownManifest:
    """What the catalog knows of the newest manifest of its record log, at one moment."""

    catalog_id: str
    epoch: int
    manifest: int  # number of the newest one that the catalog knows to be put; 0: none
    stamp: str  # of that one
    pending: frozenset[str]  # stamps of manifests that were begun since, put or not
    replica: bool = False  # it follows the record log, and puts no manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLogState(KnownManifest):
    """How the catalog stands to its record log, at one moment."""

    bundles: int
    adopting: bool  # rebuilt, and not yet complete, or a replica: what destroys is refused
    ceilings: Ceilings
    next_ids: Ceilings  # the next ones to be given out
    outbox: int  # changes that are in no block
    oldest_us: int | None  # of them, and of those that are in staged blocks alone
    oldest_cursor_us: int | None  # of those of cursors
    now_us: int
    staged: tuple[Block, ...] = ()  # of pages of a flush: the manifest that ends it is to name them


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrecordable:
    """A record with a value that no block can hold: its change stays in the outbox, and others are flushed."""

    kind: RecordKind
    id: int
    sub: str
    field: str  # empty: the record as a whole
    expected: str
    found: str  # as ASCII, and cut

    def __str__(self) -> str:
        """The refusal in a sentence."""
        record = f"{self.kind} {self.id}" + (f" {self.sub}" if self.sub else "")
        return f"{record}: {self.field or 'its row'}: expected {self.expected}, found {self.found}"


class Changes(Protocol):
    """What has changed since it was last flushed, at one moment of the catalog."""

    @property
    def at_us(self) -> int:
        """The moment, by the catalog's clock."""

    @property
    def taken(self) -> Collection[int]:
        """Outbox rows that are covered once all batches were drawn."""

    @property
    def refused(self) -> Sequence[Unrecordable]:
        """Records that were left out of the batches that were drawn; an outbox row of each is not taken."""

    def batches(self) -> Iterator[tuple[RecordKind, "pa.RecordBatch"]]:
        """Versions of records in the schema of their kind, those of one kind one after the other, by id and sub.

        Their `version` is the newest of their outbox rows; the flush writes the number of its manifest in its place.
        A record that was removed has none, unless a tombstone stands for it.
        """


class Records(Protocol):
    """The outbox, and what the catalog knows of manifests."""

    def known(self) -> KnownManifest:
        """The part of `state` that costs the same however many changes wait: every removal asks for it."""

    def state(self) -> RecordLogState:
        """How the catalog stands to its record log; the changes that wait are counted."""

    def claim(self, claim: Claim) -> bool:
        """Take or renew the work on the record log; False where another workflow's claim is alive.

        Claims spare work alone: what counts is decided by the manifest's number.
        """

    def release(self, workflow_id: str) -> None:
        """Release the claim if it is that workflow's."""

    def begin(self, stamp: str) -> None:
        """Commit the stamp of a manifest that is about to be put, beside those begun before and not settled.

        Raises:
            CatalogAdopting: The catalog is a replica.
        """

    def changes(self, *, cursors: bool, page: int | None = None) -> AbstractContextManager[Changes]:
        """Read changes in one transaction that stays open for as long as the block.

        Args:
            cursors: Whether those of cursors are read too; otherwise they stay in the outbox.
            page: About how many of the oldest outbox rows are read; None: all of them.
        """

    def record_all(self) -> None:
        """Let every record and tombstone be flushed once more; repeating it is harmless."""

    def settle(
        self,
        *,
        number: int,
        stamp: str,
        ceilings: Ceilings,
        taken: Collection[int] = (),
        whole: bool = True,
        staged: Sequence[Block] = (),
    ) -> None:
        """The manifest was put: it is the newest, its ceilings hold, and the outbox rows taken are removed.

        What was begun is pending no longer: a writer begins a stamp for one number, once the manifest before that is
        settled, so it was for this one or an earlier one. Of a number that is not above the known one nothing but the
        outbox changes, and of a page's not even that: others may have flushed what it took, and something newer of it.
        Repeating it is harmless.

        Args:
            number: Of the manifest.
            stamp: Of it.
            ceilings: That hold from now on, where they are higher.
            taken: Outbox rows, by their versions.
            whole: Whether it shows a moment of its own: then blocks that were staged before are so no longer.
            staged: Blocks of a page of which this is the manifest.
        """

    def unflushed(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Those of the ledgers whose objects must stay until what the catalog says of them is in a block.

        A tombstone, or an intent; and of a ledger that stays, that it has another copy. While blocks are staged, what
        is in them cannot be told apart from the rest: then these are all that have one.
        """

    def finished_deletions(self, ledger_ids: Collection[int]) -> Sequence[DeletionIntent]:
        """Finished deletions of primary copies of the ledgers, as long as they are remembered.

        They tell the names that objects of a ledger had once its row is gone.
        """

    def waiting_deletions(self) -> int:
        """How many unfinished deletions have an intent in no block: none of their objects goes until then."""

    def standing(self, kind: RecordKind, keys: "pa.Table") -> "pa.BooleanArray":
        """Which of the records have a row, or a tombstone; in the order of `keys`, with its columns `id` and `sub`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneCounts:
    """Tombstones of the catalog, by what they stand for."""

    by_kind: dict[str, int]
    candidates: int  # cenotaphs: marked by a raid that has not ended
    oldest_us: int | None  # the last update of the oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordId:
    """The record that a tombstone stands for; its `sub` is empty."""

    kind: RecordKind
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What a durable delete left of a topic or of a ledger."""

    kind: RecordKind
    id: int
    component: str | None  # of a ledger; None: not known since the catalog was rebuilt
    generation: int
    epoch: int  # of the catalog that wrote it
    at_us: int  # its last update
    raid: str | None  # whose candidate it is


class Tombstones(Protocol):
    """What durable deletes left in the catalog."""

    def of_topic(
        self, topic_id: int, *, component: str | None = None, after: int = -1, limit: int | None = None
    ) -> Sequence[Tombstone]:
        """Return a page of the tombstones of a topic's ledgers, ascending by id, of one component if it is given.

        Args:
            topic_id: Of the topic.
            component: `None`: of every component.
            after: Id of a ledger, exclusive.
            limit: Rows of the page; `None`: all of them.
        """

    def counts(self) -> TombstoneCounts:
        """How many there are."""

    def mark(self, run_id: str, *, before_us: int, after: RecordId | None, limit: int) -> tuple[int, RecordId | None]:
        """Mark those of a page of tombstones as candidates that were last updated before that time, and no others.

        Left out are those with an unfinished or dead-lettered deletion, and those that are in no block yet.

        Args:
            run_id: Of the raid; another raid's marks in the page are taken away.
            before_us: Exclusive.
            after: The page begins behind this record, by kind and id.
            limit: Of the page; so long a writer may have to wait.

        Returns:
            How many were marked, and the last record of the page; None: there is none behind `after`.
        """

    def candidates(self, run_id: str, *, after: RecordId | None, limit: int) -> Sequence[RecordId]:
        """A page of the raid's candidates, by kind and id."""

    def keep(self, run_id: str, kept: Collection[RecordId]) -> None:
        """Unmark candidates."""

    def remove(self, run_id: str, *, before_us: int, limit: int) -> int:
        """Remove a page of candidates that are still as `mark` requires, and unmark the others of it; how many."""


Versions = Callable[[RecordKind], "Iterator[pa.Table]"]
"""Versions of a kind that are to be applied, range by range of ids: no record is in two ranges. They may be asked for
again, and are the same then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Up to where a database has applied the record log: this manifest, and all before."""

    catalog_id: str
    epoch: int
    manifest: int  # its number
    stamp: str
    replica: str  # the name under which it was seeded, and acknowledges


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRecords:
    """What one step has changed."""

    records: int = 0  # rows of records that were written
    tombstones: int = 0
    removed: int = 0  # topics and ledgers that tombstones, or newer topics of their names, have removed


class ReplicaDatabase(Protocol):
    """A database that is a replica of one catalog. It refuses ordinary writes from its first step on."""

    def applied(self) -> Applied | None:
        """Up to where; None: the database is empty.

        Raises:
            PreconditionFailed: It holds something else than a replica.
            CatalogVersionMismatch: It is of another build's version.
            StoreUnavailable: It does not answer.
        """

    def apply(
        self, manifest: Manifest, versions: Versions, *, seen: Applied | None, replica: str, seed: bool
    ) -> AppliedRecords:
        """Apply versions, and say that the database has this manifest: in one transaction.

        Args:
            manifest: From which they come.
            versions: All that are newer than what was applied; with `seed`, all.
            seen: What `applied` said when they were chosen.
            replica: The name under which it acknowledges from then on.
            seed: Remove first what the database holds.

        Raises:
            PreconditionFailed: It was empty then, and holds something else now.
            CatalogBusy: It has applied something else since: look again.
            OutcomeUnknown: The connection broke while committing: look again.
        """
