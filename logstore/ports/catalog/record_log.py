"""Ports of the record log in the catalog: outbox, known manifests, tombstones and replica databases."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from logstore.deletion.intents import DeletionIntent
from logstore.ports.catalog.claims_and_batches import Claim
from logstore.records.manifest import Block, IdCeilings, Manifest
from logstore.records.record_kinds import RecordKind

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownManifest:
    """Newest manifest that the catalog knows, at one moment."""

    catalog_id: str
    epoch: int
    manifest: int  # highest number that the catalog knows to be stored; 0: none
    stamp: str  # stamp of that manifest
    pending_stamps: frozenset[str]  # stamps of later manifests, stored or not
    is_replica: bool = False  # the catalog is a replica database and stores no manifests


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLogState(KnownManifest):
    """State of the catalog and its outbox, at one moment."""

    bundles: int
    is_adopting: bool  # a replica database, or a rebuilt catalog during adoption: destructive operations are refused
    ceilings: IdCeilings
    next_ids: IdCeilings  # next ids to give out
    outbox_changes: int  # outbox rows
    oldest_change_us: int | None  # oldest change in the outbox and the staged blocks
    oldest_cursor_change_us: int | None
    now_us: int
    staged_blocks: tuple[Block, ...] = ()  # blocks of an unfinished flush; its last manifest names them


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordableRecord:
    """Record with a value that no block can hold. Its change stays in the outbox. Other records are flushed."""

    kind: RecordKind
    id: int
    sub: str
    field: str  # empty: the record as a whole
    expected: str
    found: str  # ASCII, truncated

    def __str__(self) -> str:
        record = f"{self.kind} {self.id}" + (f" {self.sub}" if self.sub else "")
        return f"{record}: {self.field or 'its row'}: expected {self.expected}, found {self.found}"


class OutboxChanges(Protocol):
    """Unflushed changes at one moment of the catalog."""

    @property
    def at_us(self) -> int: ...

    @property
    def outbox_rows(self) -> Collection[int]:
        """Ids of the outbox rows in the batches. Complete once all batches have been read."""

    @property
    def unrecordable(self) -> Sequence[UnrecordableRecord]:
        """Records left out of the batches read so far. One outbox row of each is missing in `outbox_rows`."""

    def iterate_version_batches(self) -> Iterator[tuple[RecordKind, "pa.RecordBatch"]]:
        """Yield record versions in the schema of their kind, grouped by kind, then ascending by id and sub.

        The column `version` has the newest outbox row of the record. The flush replaces it by the manifest number. A
        removed record without a tombstone is not yielded.
        """


class RecordOutbox(Protocol):
    """Outbox, and known manifests."""

    def read_known_manifest(self) -> KnownManifest:
        """Return the newest known manifest. The cost does not depend on the outbox."""

    def read_state(self) -> RecordLogState:
        """Return the state. The cost grows with the outbox, because its rows are counted."""

    def claim_record_log(self, claim: Claim) -> bool:
        """Take or renew the claim on the record log. Return false if another workflow holds the claim.

        Claims only save work. The manifest number decides which writer succeeds.
        """

    def release_record_log(self, workflow_id: str) -> None:
        """Release the claim if this workflow holds it."""

    def add_pending_stamp(self, stamp: str) -> None:
        """Add the stamp of the next manifest to the pending stamps before the manifest is stored. Idempotent.

        Raises:
            CatalogAdopting: The catalog is a replica.
        """

    def read_changes(self, *, cursors: bool, page: int | None = None) -> AbstractContextManager[OutboxChanges]:
        """Read changes in one transaction. The transaction is open inside the `with` block.

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
        ceilings: IdCeilings,
        outbox_rows: Collection[int] = (),
        shows_own_moment: bool = True,
        staged_blocks: Sequence[Block] = (),
    ) -> None:
        """Commit that a manifest is stored: raise the ceilings and remove its outbox rows. Idempotent.

        All pending stamps are removed, because a writer begins a stamp only after the previous manifest is settled. If
        `number` is not above the known number, only outbox rows are removed. A page removes none in this case: another
        writer may have flushed these rows together with a newer change.

        Args:
            number: Manifest number.
            stamp: Stamp of the manifest.
            ceilings: New ceilings. A ceiling never falls.
            outbox_rows: Ids of outbox rows to remove.
            shows_own_moment: Whether the manifest shows a moment of its own. If so, no blocks stay staged.
            staged_blocks: Blocks of the page that the manifest belongs to.
        """

    def find_unflushed_ledgers(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Return the ledgers whose tombstone, intent or change of copies is in no block yet.

        The objects of these ledgers must not be deleted. While blocks are staged, all ledgers with a tombstone or an
        intent are returned.
        """

    def list_finished_deletions(self, ledger_ids: Collection[int]) -> Sequence[DeletionIntent]:
        """Return the finished deletions of primary copies that the catalog still has. Their objects are removed."""

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
class TombstonedRecordId:
    """Identity of a record with a tombstone. Such records have an empty `sub`."""

    kind: RecordKind
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Mark of a topic or a ledger that was deleted durably."""

    kind: RecordKind
    id: int
    component: str | None  # component of a ledger; `None`: lost by a rebuild
    generation: int
    epoch: int  # of the catalog that wrote it
    at_us: int  # time of the last update
    raid: str | None  # raid that marked the tombstone


class Tombstones(Protocol):
    """Tombstones in the catalog."""

    def list_topic_tombstones(
        self, topic_id: int, *, component: str | None = None, after: int = -1, limit: int | None = None
    ) -> Sequence[Tombstone]:
        """Return a page of the tombstones of a topic's ledgers, ascending by id.

        Args:
            topic_id: The topic.
            component: Component of the ledgers. `None`: any.
            after: Id of a ledger, exclusive.
            limit: Size of the page. `None`: all.
        """

    def count_tombstones(self) -> TombstoneCounts: ...

    def mark_candidates(
        self, run_id: str, *, before_us: int, after: TombstonedRecordId | None, limit: int
    ) -> tuple[int, TombstonedRecordId | None]:
        """Mark the tombstones of a page that were last updated before `before_us` as candidates of the raid.

        Marks of other raids in the page are removed. Not marked are tombstones that are in no block, and tombstones
        with an unfinished or dead-lettered deletion.

        Args:
            run_id: The raid.
            before_us: Exclusive.
            after: Record before the page, by kind and id.
            limit: Size of the page. Writers may have to wait while a page is marked.

        Returns:
            The number of marked tombstones, and the last record of the page, or `None` if the page is empty.
        """

    def list_candidates(
        self, run_id: str, *, after: TombstonedRecordId | None, limit: int
    ) -> Sequence[TombstonedRecordId]:
        """Return a page of the raid's candidates, ascending by kind and id."""

    def unmark_candidates(self, run_id: str, record_ids: Collection[TombstonedRecordId]) -> None: ...

    def remove_candidates(self, run_id: str, *, before_us: int, limit: int) -> int:
        """Remove a page of candidates and return their number. Candidates that changed since `mark_candidates` stay."""


VersionReader = Callable[[RecordKind], "Iterator[pa.Table]"]
"""Function that yields the record versions of a kind to apply, by ranges of ids. Each record is in exactly one range.
Every call yields the same record versions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedManifest:
    """Newest manifest that a replica database has applied. Earlier manifests are applied too."""

    catalog_id: str
    epoch: int
    manifest: int
    stamp: str
    replica: str  # name of the replica database in its acknowledgements


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChangeCounts:
    """Changes of one step."""

    records: int = 0  # written rows of records
    tombstones: int = 0
    removed: int = 0  # topics and ledgers that were removed by a tombstone or by a newer topic of the same name


class ReplicaDatabase(Protocol):
    """Replica database of one catalog. After the first step the database refuses other writes."""

    def read_applied_manifest(self) -> AppliedManifest | None:
        """Return the newest applied manifest, or `None` if the database is empty.

        Raises:
            PreconditionFailed: The database holds something other than a replica.
            CatalogVersionMismatch: Another build created the database.
            StoreUnavailable: The database does not answer.
        """

    def apply_versions(
        self, manifest: Manifest, versions: VersionReader, *, expected: AppliedManifest | None, replica: str, seed: bool
    ) -> AppliedChangeCounts:
        """Apply record versions and record the manifest as applied, in one transaction.

        Args:
            manifest: Manifest of the record versions.
            versions: All record versions if `seed`, else those newer than the applied manifest.
            expected: Result of `applied_manifest` when the record versions were chosen.
            replica: Name under which the database acknowledges from now on.
            seed: Whether to empty the database first.

        Raises:
            PreconditionFailed: The database was empty and now holds something other than a replica.
            CatalogBusy: Another process has applied a manifest since `expected`.
            OutcomeUnknown: The connection broke during the commit.
        """
