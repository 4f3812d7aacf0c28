"""Ports of the record log's side of the catalog: outbox, known manifests, tombstones, and replica databases."""

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
    """State of the newest manifest in the catalog, at one moment."""

    catalog_id: str
    epoch: int
    manifest: int  # highest number that the catalog knows to be stored; 0: none
    stamp: str  # of that manifest
    pending_stamps: frozenset[str]  # of manifests that were begun since, stored or not
    is_replica: bool = False  # a replica follows the record log and stores no manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLogState(KnownManifest):
    """State of the catalog and its outbox, at one moment."""

    bundles: int
    is_adopting: bool  # rebuilt and incomplete, or a replica: destructive operations are refused
    ceilings: Ceilings
    next_ids: Ceilings  # given out next
    outbox_changes: int  # rows that are in no block
    oldest_change_us: int | None  # of the outbox and the staged blocks
    oldest_cursor_change_us: int | None
    now_us: int
    staged_blocks: tuple[Block, ...] = ()  # of pages of an unfinished flush; its last manifest names them


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordableRecord:
    """A record with a value that no block can hold. Its change stays in the outbox; flushes write the others."""

    kind: RecordKind
    id: int
    sub: str
    field: str  # empty: the record as a whole
    expected: str
    found: str  # ASCII, truncated

    def __str__(self) -> str:
        record = f"{self.kind} {self.id}" + (f" {self.sub}" if self.sub else "")
        return f"{record}: {self.field or 'its row'}: expected {self.expected}, found {self.found}"


class Changes(Protocol):
    """Unflushed changes at one moment of the catalog."""

    @property
    def at_us(self) -> int:
        """Time of the moment by the catalog's clock."""

    @property
    def outbox_rows(self) -> Collection[int]:
        """Ids of the outbox rows that the batches cover, once all batches have been read."""

    @property
    def unrecordable(self) -> Sequence[UnrecordableRecord]:
        """Records left out of the batches read so far. One outbox row of each stays out of `outbox_rows`."""

    def batches(self) -> Iterator[tuple[RecordKind, "pa.RecordBatch"]]:
        """Yield record versions in the schema of their kind, grouped by kind, then ascending by id and sub.

        `version` is the newest outbox row of the record. The flush replaces it by the number of its manifest. A removed
        record without a tombstone has no version.
        """


class Records(Protocol):
    """The outbox, and the catalog's knowledge of manifests."""

    def known_manifest(self) -> KnownManifest:
        """Return the part of `state` whose cost does not grow with the outbox."""

    def state(self) -> RecordLogState:
        """Return the state. The cost grows with the outbox, which is counted."""

    def claim(self, claim: Claim) -> bool:
        """Take or renew the claim on the record log. Return false if another workflow's claim is alive.

        Claims only save work. The manifest's number decides which writer wins.
        """

    def release(self, workflow_id: str) -> None:
        """Release the claim if it is that workflow's."""

    def begin_manifest(self, stamp: str) -> None:
        """Add the stamp of a manifest that is about to be stored to the pending stamps. Idempotent.

        Raises:
            CatalogAdopting: The catalog is a replica.
        """

    def read_changes(self, *, cursors: bool, page: int | None = None) -> AbstractContextManager[Changes]:
        """Read changes in one transaction, which stays open inside the `with` block.

        Args:
            cursors: Whether to read changes of cursors.
            page: Approximate number of outbox rows, oldest first. `None`: all.
        """

    def requeue_all_records(self) -> None:
        """Add every record and tombstone to the outbox again. Idempotent."""

    def settle_manifest(
        self,
        *,
        number: int,
        stamp: str,
        ceilings: Ceilings,
        outbox_rows: Collection[int] = (),
        shows_own_moment: bool = True,
        staged_blocks: Sequence[Block] = (),
    ) -> None:
        """Commit that a manifest is stored: raise the ceilings and remove its outbox rows. Idempotent.

        All pending stamps go: a writer begins a stamp only after the previous manifest is settled. If the number is not
        above the known one, only the outbox changes. For a page not even the outbox changes: another writer may have
        flushed these rows and a newer change of them.

        Args:
            number: Number of the manifest.
            stamp: Stamp of the manifest.
            ceilings: New ceilings. A ceiling never falls.
            outbox_rows: Outbox rows to remove, by their versions.
            shows_own_moment: Whether the manifest shows a moment of its own. Then no block is staged any more.
            staged_blocks: Blocks of the page that this manifest belongs to.
        """

    def unflushed_ledgers(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Return the ledgers whose tombstone, intent or change of copies is in no block yet.

        Their objects must not be deleted. While blocks are staged, every ledger with a tombstone or an intent counts.
        """

    def finished_deletions(self, ledger_ids: Collection[int]) -> Sequence[DeletionIntent]:
        """Return the finished deletions of primary copies that the catalog still has. They name removed objects."""

    def count_unflushed_deletions(self) -> int:
        """Return the number of unfinished deletions whose intent is in no block yet."""

    def existence_mask(self, kind: RecordKind, keys: "pa.Table") -> "pa.BooleanArray":
        """Return for each row of `keys` (columns `id`, `sub`) whether the catalog has the record or its tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneCounts:
    """Counts of the catalog's tombstones."""

    by_kind: dict[str, int]
    candidates: int  # marked by an unfinished raid
    oldest_us: int | None  # last update of the oldest tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordId:
    """Identity of a record with a tombstone. Its `sub` is empty."""

    kind: RecordKind
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Mark of a topic or a ledger that was deleted durably."""

    kind: RecordKind
    id: int
    component: str | None  # of a ledger; `None`: lost by a rebuild
    generation: int
    epoch: int  # of the catalog that wrote it
    at_us: int  # last update
    raid: str | None  # raid that marked it as a candidate


class Tombstones(Protocol):
    """Tombstones in the catalog."""

    def topic_tombstones(
        self, topic_id: int, *, component: str | None = None, after: int = -1, limit: int | None = None
    ) -> Sequence[Tombstone]:
        """Return a page of the tombstones of a topic's ledgers, ascending by id, of one component if it is given.

        Args:
            topic_id: Of the topic.
            component: `None`: of every component.
            after: Id of a ledger, exclusive.
            limit: Rows of the page; `None`: all of them.
        """

    def count(self) -> TombstoneCounts:
        """Count the tombstones."""

    def mark_candidates(
        self, run_id: str, *, before_us: int, after: RecordId | None, limit: int
    ) -> tuple[int, RecordId | None]:
        """Mark the tombstones of a page that were last updated before `before_us` as candidates of the raid.

        Marks of other raids in the page are removed. Tombstones in no block, and those with an unfinished or
        dead-lettered deletion, are not marked.

        Args:
            run_id: The raid.
            before_us: Exclusive.
            after: Record before the page, by kind and id.
            limit: Size of the page. A writer may wait for one page.

        Returns:
            The number of marked tombstones, and the last record of the page, or `None` if the page is empty.
        """

    def candidates(self, run_id: str, *, after: RecordId | None, limit: int) -> Sequence[RecordId]:
        """Return a page of the raid's candidates, ascending by kind and id."""

    def unmark(self, run_id: str, record_ids: Collection[RecordId]) -> None:
        """Remove the marks of these candidates."""

    def remove_candidates(self, run_id: str, *, before_us: int, limit: int) -> int:
        """Remove a page of candidates and return how many. Candidates that changed since `mark_candidates` stay."""


VersionReader = Callable[[RecordKind], "Iterator[pa.Table]"]
"""Function that reads the versions of a kind to apply, by ranges of ids. No record is in two ranges. Every call returns
the same versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedManifest:
    """Newest manifest that a replica database has applied, with all before it."""

    catalog_id: str
    epoch: int
    manifest: int
    stamp: str
    replica: str  # name under which it was seeded and acknowledges


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedCounts:
    """Counts of the changes of one step."""

    records: int = 0  # rows of records that were written
    tombstones: int = 0
    removed: int = 0  # topics and ledgers, by tombstones or by newer topics of the same name


class ReplicaDatabase(Protocol):
    """Replica database of one catalog. It refuses other writes from its first step on."""

    def applied_manifest(self) -> AppliedManifest | None:
        """Return the newest applied manifest, or `None` if the database is empty.

        Raises:
            PreconditionFailed: The database holds something else than a replica.
            CatalogVersionMismatch: Another build created the database.
            StoreUnavailable: The database does not answer.
        """

    def apply(
        self, manifest: Manifest, versions: VersionReader, *, expected: AppliedManifest | None, replica: str, seed: bool
    ) -> AppliedCounts:
        """Apply versions and record the manifest as applied, in one transaction.

        Args:
            manifest: Manifest of the versions.
            versions: All versions newer than the applied manifest, or all if `seed`.
            expected: Result of `applied_manifest` when the versions were chosen.
            replica: Name under which the database acknowledges from now on.
            seed: Whether to empty the database first.

        Raises:
            PreconditionFailed: The database was empty then, and holds something else now.
            CatalogBusy: Another process has applied a manifest since `expected`.
            OutcomeUnknown: The connection broke during the commit.
        """
