"""Ports of the record log in the catalog: outbox, known manifests, tombstones and replica databases."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from logstore.deletion.intents import DeletionIntent
from logstore.ports.catalog.claims_and_deletion_results import Claim
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
    """State of the catalog and its outbox at one moment."""

    bundles: int
    is_adopting: bool  # a replica database, or a rebuilt catalog during adoption: destructive operations are refused
    ceilings: IdCeilings
    next_ids: IdCeilings  # next ids to give out
    outbox_changes: int  # outbox rows
    oldest_change_us: int | None  # oldest change in the outbox and the staged blocks
    oldest_cursor_change_us: int | None
    now_us: int
    staged_blocks: tuple[Block, ...] = ()  # blocks of an unfinished flush; the last manifest of the flush names them


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
    """Changes in the outbox at one moment of the catalog."""

    @property
    def at_us(self) -> int: ...

    @property
    def outbox_rows(self) -> Collection[int]:
        """Ids of the outbox rows that `iterate_version_batches` has processed so far."""

    @property
    def unrecordable(self) -> Sequence[UnrecordableRecord]:
        """Records that `iterate_version_batches` left out so far. Their newest outbox rows are not in `outbox_rows`."""

    def iterate_version_batches(self) -> Iterator[tuple[RecordKind, "pa.RecordBatch"]]:
        """Yield record versions in the schema of their kind, grouped by kind. Within a kind, `id` and `sub` ascend.

        The column `version` has the id of the record's newest outbox row. The flush replaces this id by the manifest
        number. Removed records without a tombstone are left out.
        """


class RecordOutbox(Protocol):
    def read_known_manifest(self) -> KnownManifest:
        """Return the newest known manifest. The cost does not depend on the size of the outbox."""

    def read_state(self) -> RecordLogState:
        """Return the state of catalog and outbox. The call counts the outbox rows, so a large outbox costs more."""

    def claim_record_log(self, claim: Claim) -> bool:
        """Claim the record log, or renew the claim. Return `False` if another workflow has the claim.

        Claims only avoid duplicate work. If several writers write one manifest number, exactly one writer succeeds.
        """

    def release_record_log(self, workflow_id: str) -> None: ...

    def add_pending_stamp(self, stamp: str) -> None:
        """Add a stamp to the pending stamps before the manifest with this stamp is stored. Idempotent.

        Raise `CatalogAdopting` if the catalog is a replica database.
        """

    def read_changes(self, *, cursors: bool, page: int | None = None) -> AbstractContextManager[OutboxChanges]:
        """Open a transaction that reads changes in the outbox. The transaction ends with the `with` block.

        With `cursors`, changes of cursors are included. `page` is the approximate number of outbox rows to read, oldest
        first. `None` selects all outbox rows.
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
        """Commit that a manifest is stored: raise the ceilings and remove the given outbox rows. Idempotent.

        All pending stamps are removed, because a writer adds a stamp only after the previous manifest is settled. A
        ceiling never falls.

        A manifest with this or a higher number may already be settled. With `shows_own_moment`, the call then only
        removes the outbox rows. Without `shows_own_moment`, the call changes nothing, because another writer may have
        flushed a newer change of these rows.

        `outbox_rows` are ids. If `shows_own_moment`, the manifest shows a complete moment of the catalog, and no block
        stays staged. Otherwise `staged_blocks` are the blocks of the page to which the manifest belongs.
        """

    def find_unflushed_ledgers(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Return the ledgers whose tombstone, intent or change of copies is in no block yet.

        The objects of these ledgers must not be deleted. While blocks are staged, all given ledgers with a tombstone
        or an intent are returned.
        """

    def list_finished_deletions(self, ledger_ids: Collection[int]) -> Sequence[DeletionIntent]:
        """Return those finished intents of primary copies whose rows still exist."""

    def count_unflushed_deletions(self) -> int:
        """Return the number of unfinished deletions whose intent is in no block yet."""

    def existence_mask(self, kind: RecordKind, keys: "pa.Table") -> "pa.BooleanArray":
        """Return, for each identity (`id`, `sub`) in `keys`, whether the catalog has the record or its tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneCounts:
    by_kind: dict[str, int]
    candidates: int  # marked by an unfinished raid
    oldest_us: int | None  # last update of the oldest tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstonedRecordId:
    """Identity of a record with a tombstone. The second part of such a record's identity, `sub`, is always empty."""

    kind: RecordKind
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    kind: RecordKind
    id: int
    component: str | None  # component of a ledger; `None`: lost by a rebuild
    generation: int
    epoch: int  # epoch of the catalog that wrote the tombstone
    at_us: int  # time of the last update
    raid: str | None  # raid that marked the tombstone


class Tombstones(Protocol):
    def list_topic_tombstones(
        self, topic_id: int, *, component: str | None = None, after: int = -1, limit: int | None = None
    ) -> Sequence[Tombstone]:
        """Return a page of the tombstones of a topic's ledgers, ascending by id.

        Without `component`, tombstones of all components are returned. `after` is a ledger id, exclusive.
        """

    def count_tombstones(self) -> TombstoneCounts: ...

    def mark_raid_candidates(
        self, run_id: str, *, before_us: int, after: TombstonedRecordId | None, limit: int
    ) -> tuple[int, TombstonedRecordId | None]:
        """In one page, mark tombstones last updated before `before_us` as candidates of the raid (cenotaphs).

        Tombstones that are in no block, or have an unfinished or dead-lettered deletion, are not marked. Marks of other
        raids in the page are removed. `after` is the last record of the previous page, by kind and id. Writers may have
        to wait while a page is marked.

        Returns:
            The number of marked tombstones, and the last record of the page, or `None` if the page is empty.
        """

    def list_raid_candidates(
        self, run_id: str, *, after: TombstonedRecordId | None, limit: int
    ) -> Sequence[TombstonedRecordId]:
        """Return a page of the raid's candidates, ascending by kind and id."""

    def unmark_raid_candidates(self, run_id: str, record_ids: Collection[TombstonedRecordId]) -> None: ...

    def remove_raid_candidates(self, run_id: str, *, before_us: int, limit: int) -> int:
        """Remove up to `limit` candidates that have not changed since `mark_raid_candidates`. Return their number."""


VersionReader = Callable[[RecordKind], "Iterator[pa.Table]"]
"""Function that yields tables with the record versions of one kind. Each table has the records of one range of ids.
Every call yields the same record versions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedManifest:
    """Newest manifest that a replica database has applied. All earlier manifests are applied too."""

    catalog_id: str
    epoch: int
    manifest: int
    stamp: str
    replica: str  # name of the replica database in its acknowledgements


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChangeCounts:
    records: int = 0  # written rows of records
    tombstones: int = 0
    removed: int = 0  # topics and ledgers that were removed by a tombstone or by a newer topic of the same name


class ReplicaDatabase(Protocol):
    """Replica database of one catalog. After the first `apply_versions` the database refuses all other writes."""

    def read_applied_manifest(self) -> AppliedManifest | None:
        """Return the newest applied manifest, or `None` if the database is empty.

        Raises:
            PreconditionFailed: The database has content, but is no replica database.
            CatalogVersionMismatch: Another build created the database.
            StoreUnavailable: The database does not answer.
        """

    def apply_versions(
        self, manifest: Manifest, versions: VersionReader, *, expected: AppliedManifest | None, replica: str, seed: bool
    ) -> AppliedChangeCounts:
        """Apply record versions and record the manifest as applied, in one transaction.

        With `seed`, the database is emptied first and `versions` has all record versions. Otherwise `versions` has the
        record versions that are newer than the applied manifest. `expected` is the manifest that
        `read_applied_manifest` returned before the record versions were chosen. `replica` is the name of the replica
        database in its acknowledgements.

        Raises:
            PreconditionFailed: The database was empty, and now has content but is no replica database.
            CatalogBusy: Another process has applied a manifest since `expected`.
            OutcomeUnknown: The connection broke during the commit.
        """
