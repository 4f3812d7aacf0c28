"""Ports of a rebuild: the database into which a lost catalog is loaded, and adoption.

Adoption compares storage with the loaded rows, shard by shard, and saves a difference for each ledger that differs.
Then adoption settles each topic: one transaction adopts the topic's ledgers with saved differences. Until
`make_catalog_ready` the catalog refuses all other writes with `CatalogAdopting`.

A loaded ledger without a place is newborn if its state is CREATING. In any other state, the ledger has left its list.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import Component, LedgerOwner, LedgerState, LedgerStatement
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption_rule import UnregisteredUpload
from logstore.records.manifest import Manifest
from logstore.records.rebuild_job import RowFilesFolder


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


class RebuildDatabase(Protocol):
    """Database of a rebuilt catalog. All rows are loaded, or none."""

    def read_target(self) -> RebuildTargetContent:
        """Return the content of the database. This changes nothing.

        Raises:
            PreconditionFailed: The database has rows that no unfinished rebuild has loaded.
            CatalogVersionMismatch: Another build created the database.
            ServiceFailed: The database is no catalog.
            StoreUnavailable: The database does not answer.
        """

    def load_rows(self, load: RebuiltCatalogStart, files: RowFilesFolder, proceed: Callable[[], None]) -> None:
        """Load the rows into the empty database. Afterwards the catalog is ADOPTING. Idempotent.

        `proceed` is called often. If `proceed` raises, the load is undone. Raise the errors of `read_target`.
        """

    def end_rebuild(self, rebuild: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedIdBounds:
    """Ceilings of the loaded manifest. The lost catalog gave out only ids below these ceilings."""

    epoch: int
    ledger: int
    topic: int
    transaction: int  # sequence numbers of each coordinator

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
class AdoptionCounts:
    """Counts and samples of an adoption. A sample has at most `MAX_SAMPLE_ITEMS` ids or names, ascending."""

    adopted_ledgers: int = 0
    adopted_segments: int = 0
    detached: int = 0  # ledgers of outcome DETACHED
    revived: int = 0
    revived_ledgers: tuple[LedgerId, ...] = ()
    missing_data: int = 0
    missing_ledgers: tuple[LedgerId, ...] = ()
    schemas_left_out: int = 0  # schema versions
    schemas_left_out_of: tuple[str, ...] = ()  # names of the topics of these schema versions


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentLedgerCounts:
    """Counts of listed ledgers. Unlisted ledgers need no objects and are not counted."""

    absent_ledgers: int = 0  # ledgers without an object in any bucket
    total_ledgers: int = 0  # all listed ledgers, including ledgers that adoption has removed


class CatalogAdoption(Protocol):
    """Adoption of uploads into a rebuilt catalog. Every method is idempotent."""

    def read_issued_ids(self) -> IssuedIdBounds:
        """Return the bounds of issued ids. Raise `PreconditionFailed` if no adoption is in progress."""

    def is_adopting(self) -> bool: ...

    def list_loaded_ledgers(self, shard: int, *, after: LedgerId, limit: int) -> Sequence[LoadedLedger]:
        """Return loaded ledgers with id % 256 = `shard` and an id above `after`, ascending."""

    def find_missing_row_causes(self, ledger_ids: Collection[LedgerId]) -> Mapping[LedgerId, MissingRowCause]: ...

    def highest_ledger_id(self) -> LedgerId:
        """Return the highest ledger id of all ledgers, intents and tombstones, or -1. Ignore ids above the ceiling."""

    def save_ledger_discrepancies(
        self, shard: int, ledgers: Sequence[LedgerDiscrepancy], *, above: LedgerId, up_to: LedgerId | None = None
    ) -> None:
        """Replace the saved differences in a part of a shard (0 to 255). Differences of settled topics stay.

        The part begins after `above` and ends with `up_to`, inclusive. If `up_to` is `None`, the part ends with the
        shard. `ledgers` are all differences in this part.
        """

    def count_absent_ledgers(self) -> AbsentLedgerCounts:
        """Count listed ledgers, and those with the saved difference ABSENT. In a READY catalog all counts are zero."""

    def list_unsettled_topics(self, *, after: TopicId, limit: int) -> Sequence[TopicId]:
        """Return topics with saved differences that are not settled, ascending."""

    def settle_topic(self, topic_id: TopicId, *, rows_epoch: int) -> None:
        """Adopt the topic's ledgers with saved differences, in one transaction. The call takes a few MB of memory.

        `logstore.records.adoption_rule` decides which uploads are registered. If that rule registers an upload of a
        ledger without a row, the ledger is added to the topic's list. If the topic has no row, the topic is created. No
        intent is filed. Objects of ledgers that have no row after the call stay until a reconciliation reports them.

        `rows_epoch` is the epoch of the loaded rows. Each upload of an earlier epoch was registered or refused before
        these rows were flushed.
        """

    def settle_remaining_rows(self) -> None:
        """Correct, in all topics, the rows that need no comparison with storage.

        1. Remove ledgers that have left their list or have an intent of a later generation. File no intent.
        2. Close all ledgers of a list except the last ledger.
        3. Count entries with a delivery time.
        4. Remove references to ledgers without objects.
        5. Remove schema versions without a ledger, because such schema versions can be neither read nor set again.
        6. Set the catalog's epoch in unfinished intents.
        """

    def count_outcomes(self) -> AdoptionCounts: ...

    def make_catalog_ready(self) -> None: ...


MAX_SAMPLE_ITEMS = 100
