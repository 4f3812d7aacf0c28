"""Values of the catalog: records."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import Component, LedgerOwner, LedgerState, LedgerStatement
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption_rule import UnregisteredUpload
from logstore.records.manifest import Block, IdCeilings, Manifest
from logstore.records.record_kinds import RecordKind

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTargetContent:
    rebuild: str = ""  # unfinished rebuild that loaded the database; empty: the database is empty
    state: str = ""  # ADOPTING, or READY if only `end_rebuild` was not called


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltCatalogStart:
    rebuild: str
    manifest: Manifest  # manifest of the loaded rows
    epoch: int  # above the epoch of the manifest
    highest_version: int  # highest of all loaded record versions
    stamp: str  # pending stamp of the next manifest
    markers: tuple[tuple[BucketRole, str], ...]  # role and name of each bucket that has the catalog's marker
    now_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedIdBounds(IdCeilings):
    """Ceilings of the loaded manifest. The lost catalog gave out only ids below these ceilings."""

    epoch: int  # the lost catalog had this epoch or a lower one

    def covers(self, ledger_id: int, topic_id: int) -> bool:
        return 0 <= ledger_id < self.ledger and 0 <= topic_id < self.topic

    def covers_upload(self, upload: UnregisteredUpload) -> bool:
        """Return whether the lost catalog may have given out the epoch and the transactions of an upload."""
        txns = {*(span.txn for span in upload.transactions), *(marker.txn for marker in upload.markers)}
        txns |= {sequences.txn for sequences in upload.producers if sequences.txn}
        return upload.epoch < self.epoch and all(0 <= txn.sequence < self.transaction for txn in txns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLedger:
    ledger_id: LedgerId
    topic_id: TopicId
    component: Component
    owner: LedgerOwner
    state: LedgerState
    is_listed: bool
    last_segment: int
    segments: tuple[int, ...]  # numbers of registered segments, ascending
    has_primary: bool
    tiered_context: Mapping[str, str] | None = None  # offload context of a LIVE tiered copy

    @property
    def can_have_new_segments(self) -> bool:
        """Whether segments may have been registered after the row's flush. False for closed and component ledgers."""
        return self.component is Component.MANAGED_LEDGER and self.state is not LedgerState.CLOSED


class MissingRowCause(StrEnum):
    UNKNOWN = "UNKNOWN"  # the ledger is younger than the last flush, or never had a row
    DETACHED = "DETACHED"  # the ledger has an intent, finished or not
    TOMBSTONED = "TOMBSTONED"  # the ledger or its topic was deleted durably and never returns


class StorageDiscrepancy(StrEnum):
    """Difference between storage and the loaded row of a ledger. The catalog stores the name of the difference."""

    TAIL = "TAIL"  # uploads after the registered segments
    STRANGER = "STRANGER"  # objects without a row
    SHORT = "SHORT"  # some registered segments are absent
    ABSENT = "ABSENT"  # a listed ledger has no object in any bucket, and no deletion explains it
    ENDED = "ENDED"  # an unlisted ledger has no object in any bucket: the rebuild brought back an old record version


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDiscrepancy:
    """Difference between the objects of one ledger and the catalog. Stored as JSON with the names of its fields."""

    ledger_id: LedgerId
    topic_id: TopicId
    standing: StorageDiscrepancy
    statement: LedgerStatement | None = None  # statement of a STRANGER
    uploads: tuple[UnregisteredUpload, ...] = ()  # uploads of a ledger that can have new segments
    objects: int = 0  # number of segments of a STRANGER
    size_bytes: int = 0  # size of these segments


class AdoptionOutcome(StrEnum):
    """Result of the adoption of one ledger with a saved difference. The catalog stores the name of the result."""

    ADOPTED = "ADOPTED"  # the ledger and its segments have rows now
    EXTENDED = "EXTENDED"  # segments were added
    UNCHANGED = "UNCHANGED"  # no upload had been registered
    DETACHED = "DETACHED"  # nothing names the ledger: it gets no row and no intent, and its objects stay
    REVIVED = "REVIVED"  # no list names the ledger, or it has a later intent: its row is removed, and its objects stay
    MISSING = "MISSING"  # some or all objects are absent: the ledger is reported, and its row stays
    LEFT_OUT = "LEFT_OUT"  # a schema's ledger that was deleted with its topic: the schema version is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentLedgerCounts:
    """Counts of listed ledgers. Unlisted ledgers need no objects and are not counted."""

    absent_ledgers: int = 0  # ledgers without an object in any bucket
    total_ledgers: int = 0  # all listed ledgers, including ledgers that adoption has removed


MAX_SAMPLE_ITEMS = 100


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
