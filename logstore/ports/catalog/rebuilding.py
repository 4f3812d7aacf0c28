"""Ports of a rebuild: the database into which a lost catalog is loaded, and the adoption of newer uploads.

Adoption compares storage with the loaded rows shard by shard and stages the differences. Then each topic is settled in
one transaction. Until `Adoption.finish` the catalog refuses all other writes with `CatalogAdopting`.

A loaded ledger without a place that is not CREATING is one that its list does not name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from logstore.identity.markers import Role
from logstore.log.ledgers import Component, LedgerOwner, LedgerState, LedgerStatement
from logstore.positions import LedgerId, TopicId
from logstore.records.adoption import Upload
from logstore.records.manifest import Manifest
from logstore.records.rebuilding import LoadFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTarget:
    """Content of the database before a load."""

    rebuild: str = ""  # unfinished rebuild that has loaded it; empty: an empty database
    state: str = ""  # ADOPTING, or READY if only `end_rebuild` remains


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLoad:
    """State with which a rebuilt catalog begins, besides its rows."""

    rebuild: str
    manifest: Manifest  # manifest of the loaded rows
    epoch: int  # above the epoch of the manifest
    highest_version: int  # of all loaded record versions
    stamp: str  # pending stamp of the next manifest
    markers: tuple[tuple[Role, str], ...]  # roles and names of the buckets with the catalog's marker
    now_us: int


class RebuildDatabase(Protocol):
    """Database into which rows are loaded as a whole or not at all."""

    def read_target(self) -> RebuildTarget:
        """Return the content of the database. Nothing is changed.

        Raises:
            PreconditionFailed: The database has rows of something else than an unfinished rebuild.
            CatalogVersionMismatch: Another build created the database.
            ServiceFailed: The database is no catalog.
            StoreUnavailable: The database does not answer.
        """

    def load(self, load: CatalogLoad, files: LoadFiles, proceed: Callable[[], None]) -> None:
        """Load the rows into the empty database. Its state is ADOPTING afterwards. Idempotent.

        Args:
            load: Initial state of the catalog.
            files: Rows of the catalog.
            proceed: Called often. An exception from it undoes the load.

        Raises:
            SextonError: As `read_target`.
        """

    def end_rebuild(self, rebuild: str) -> None:
        """Record that the rebuild is complete. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedIds:
    """Ceilings of the loaded manifest. Only numbers below them can have been given out before the loss."""

    epoch: int
    ledger: int
    topic: int
    transaction: int  # sequences of every coordinator

    def covers(self, ledger_id: int, topic_id: int) -> bool:
        """Return whether the lost catalog can have given these ids to a ledger and its topic."""
        return 0 <= ledger_id < self.ledger and 0 <= topic_id < self.topic

    def covers_upload(self, upload: Upload) -> bool:
        """Return whether the epoch and the transactions of an upload can be the lost catalog's."""
        txns = {*(span.txn for span in upload.transactions), *(marker.txn for marker in upload.markers)}
        txns |= {sequences.txn for sequences in upload.producers if sequences.txn}
        return upload.epoch < self.epoch and all(0 <= txn.sequence < self.transaction for txn in txns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLedger:
    """Loaded row of a ledger, to be compared with storage."""

    ledger_id: LedgerId
    topic_id: TopicId
    component: Component
    owner: LedgerOwner
    state: LedgerState
    is_listed: bool
    last_segment: int
    segments: tuple[int, ...]  # registered numbers, ascending
    has_primary: bool
    tiered_context: Mapping[str, str] | None = None  # offload context of a LIVE tiered copy

    @property
    def can_have_new_segments(self) -> bool:
        """Whether segments may have been registered since the flush. A newborn may have been opened."""
        return self.component is Component.MANAGED_LEDGER and self.state is not LedgerState.CLOSED


class MissingRowCause(StrEnum):
    """Reason why a rebuilt catalog has no row of a ledger."""

    UNKNOWN = "UNKNOWN"  # the ledger is younger than the last flush, or only an upload
    DETACHED = "DETACHED"  # it has an intent, finished or not
    TOMBSTONED = "TOMBSTONED"  # it or its topic was deleted durably: it never returns


class StorageDiscrepancy(StrEnum):
    """Difference between storage and the loaded row of one ledger. Stored by name."""

    TAIL = "TAIL"  # uploads after the registered segments
    STRANGER = "STRANGER"  # objects without a row
    SHORT = "SHORT"  # some registered segments are absent
    ABSENT = "ABSENT"  # a listed ledger has no object in any bucket, and no deletion explains it
    ENDED = "ENDED"  # an unlisted ledger has no object in any bucket: an old version of its record came back


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLedger:
    """Objects of one ledger in storage, if they differ from the catalog. Stored as JSON by the names of its fields."""

    ledger_id: LedgerId
    topic_id: TopicId
    standing: StorageDiscrepancy
    statement: LedgerStatement | None = None  # of a stranger
    uploads: tuple[Upload, ...] = ()  # of ledgers that can have new segments
    objects: int = 0  # segments of a stranger
    size_bytes: int = 0  # of these segments


class AdoptionOutcome(StrEnum):
    """Result of the adoption of one staged ledger. Stored by name."""

    ADOPTED = "ADOPTED"  # it has a row now, with its segments
    EXTENDED = "EXTENDED"  # segments were added
    UNCHANGED = "UNCHANGED"  # none of its uploads had been registered
    DETACHED = "DETACHED"  # nothing names it: it gets no row and no intent, and its objects stay
    REVIVED = "REVIVED"  # no list names it, or it has a later intent: its row is removed, its objects stay
    MISSING = "MISSING"  # some or all of its objects are absent: reported, and its row stays
    LEFT_OUT = "LEFT_OUT"  # a schema's ledger, deleted with its topic: the schema version is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionReport:
    """Counts of an adoption, with ascending samples of at most `MAX_SAMPLE_ITEMS` ids or names."""

    adopted_ledgers: int = 0
    adopted_segments: int = 0
    detached: int = 0  # ledgers that nothing names; their objects stay
    revived: int = 0
    revived_ledgers: tuple[LedgerId, ...] = ()
    missing_data: int = 0
    missing_ledgers: tuple[LedgerId, ...] = ()
    schemas_left_out: int = 0  # schema versions
    schemas_left_out_of: tuple[str, ...] = ()  # names of their topics


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceCounts:
    """Counts of listed ledgers. Ledgers that ended before the flush do not count: they need no objects."""

    absent_ledgers: int = 0  # without an object in any bucket
    total_ledgers: int = 0  # including those that adoption has removed


class Adoption(Protocol):
    """Adoption of uploads into a rebuilt catalog. Every method is idempotent."""

    def issued_ids(self) -> IssuedIds:
        """Return the bounds of the ids that the lost catalog may have given out.

        Raises:
            PreconditionFailed: The catalog is not being adopted.
        """

    def is_adopting(self) -> bool:
        """Return whether the catalog is incomplete."""

    def loaded_ledgers(self, shard: int, *, after: LedgerId, limit: int) -> Sequence[LoadedLedger]:
        """Return loaded ledgers with id % 256 = `shard` above `after`, ascending."""

    def missing_row_causes(self, ledger_ids: Collection[LedgerId]) -> Mapping[LedgerId, MissingRowCause]:
        """Return the cause for each of these ledgers that has no row."""

    def highest_ledger_id(self) -> LedgerId:
        """Return the highest ledger id of a ledger, an intent or a tombstone, or -1.

        Ids above the ceiling do not count: they were never given out.
        """

    def stage_ledgers(
        self, shard: int, ledgers: Sequence[StagedLedger], *, above: LedgerId, up_to: LedgerId | None = None
    ) -> None:
        """Replace the staged ledgers of a part of a shard. Rows of settled topics stay.

        Args:
            shard: 0 to 255.
            ledgers: All differences in the part.
            above: Start of the part, exclusive.
            up_to: End of the part, inclusive. `None`: the end of the shard.
        """

    def count_absent_ledgers(self) -> AbsenceCounts:
        """Count the ledgers staged as absent, settled or not. A READY catalog has none."""

    def unsettled_topics(self, *, after: TopicId, limit: int) -> Sequence[TopicId]:
        """Return topics with unsettled ledgers, ascending."""

    def settle_topic(self, topic_id: TopicId, *, rows_epoch: int) -> None:
        """Adopt the staged ledgers of a topic in one transaction, with a few MB in memory at once.

        Uploads are registered as `logstore.records.adoption` decides. Strangers with registered uploads join the
        topic's list. A topic without a record is created. No intent is filed: objects of other strangers and of removed
        ledgers stay until a reconciliation reports them.

        Args:
            topic_id: The topic.
            rows_epoch: Epoch of the loaded rows. Uploads of earlier epochs were decided before the flush.
        """

    def settle_remaining_rows(self) -> None:
        """Settle the rows of all topics that need no comparison with storage.

        1. Ledgers that no list names, or that have a later intent, leave the catalog without a new intent.
        2. Only the last ledger of a list stays open.
        3. Entries with a delivery time are counted.
        4. References to ledgers without objects are removed.
        5. Schema versions without a ledger are removed, because they could be neither read nor set again.
        6. Unfinished intents get the catalog's epoch.
        """

    def report(self) -> AdoptionReport:
        """Return the counts so far."""

    def finish(self) -> None:
        """Make the catalog READY, so that writers may begin."""


MAX_SAMPLE_ITEMS = 100
"""Bound of the ids or names of each sample in a report."""
