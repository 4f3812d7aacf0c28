"""The database into which a lost catalog is rebuilt: it is loaded, and adopts what storage holds beyond the last flush.

For adoption storage is looked at shard by shard, and what was found is staged; then each topic is settled in one
transaction, from what was staged of its ledgers; at last what needs no look at storage. Until `finish` nothing else may
write to the catalog: it refuses with `CatalogAdopting`.

A ledger that was loaded without a place, though it is not CREATING, is one that its list does not name.
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
class Target:
    """What stands in the database."""

    rebuild: str = ""  # the rebuild that has loaded it, and has not ended; none: it is empty
    state: str = ""  # of its record log: ADOPTING, or READY where the rebuild has but to end


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a catalog begins with that is rebuilt, beside its rows."""

    rebuild: str
    manifest: Manifest  # from which
    epoch: int  # above that of the manifest
    version: int  # the highest that any version has
    stamp: str  # of the manifest that is to be put next: pending
    markers: tuple[tuple[Role, str], ...]  # buckets that carry the catalog's marker
    now_us: int


class Rebuild(Protocol):
    """A load that happens as a whole or not at all, whenever its process dies."""

    def target(self) -> Target:
        """What stands there; looking changes nothing.

        Raises:
            PreconditionFailed: It is not empty, and no rebuild has to go on there.
            CatalogVersionMismatch: It is of another build's version.
            ServiceFailed: It is no catalog's.
            StoreUnavailable: No database answers.
        """

    def load(self, load: Load, files: LoadFiles, proceed: Callable[[], None]) -> None:
        """Load the rows into the empty database, whose state is ADOPTING then; repeating it changes nothing.

        Args:
            load: What the catalog begins with.
            files: Its rows.
            proceed: Called often; what it raises undoes the load.

        Raises:
            As `target`.
        """

    def end(self, rebuild: str) -> None:
        """The rebuild is complete: nothing goes on there any more; repeating it changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """Numbers below these may have been given out before the loss: ceilings of the manifest that was loaded."""

    epoch: int
    ledger: int
    topic: int
    transaction: int  # sequences of every coordinator

    def covers(self, ledger_id: int, topic_id: int) -> bool:
        """Whether a ledger and its topic can have had these ids."""
        return 0 <= ledger_id < self.ledger and 0 <= topic_id < self.topic

    def covers_upload(self, upload: Upload) -> bool:
        """Whether epoch and transactions of an upload can have been the lost catalog's."""
        named = {*(run.txn for run in upload.transactions), *(marker.txn for marker in upload.markers)}
        named |= {advance.txn for advance in upload.producers if advance.txn}
        return upload.epoch < self.epoch and all(0 <= txn.sequence < self.transaction for txn in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLedger:
    """A ledger as it was loaded, to be compared with storage."""

    ledger_id: LedgerId
    topic_id: TopicId
    component: Component
    owner: LedgerOwner
    state: LedgerState
    listed: bool
    last_segment: int
    segments: tuple[int, ...]  # numbers of those registered, ascending
    primary: bool  # it has a primary copy
    tiered: Mapping[str, str] | None = None  # the context of its tiered copy, if that is LIVE

    @property
    def takes_segments(self) -> bool:
        """Whether segments may have been registered since the flush: a newborn may have been opened."""
        return self.component is Component.MANAGED_LEDGER and self.state is not LedgerState.CLOSED


class Fate(StrEnum):
    """What the catalog says of a ledger that it has no row of. Stored by name."""

    UNKNOWN = "UNKNOWN"  # nothing: it is younger than the last flush, or was never more than an upload
    DETACHED = "DETACHED"  # an intent stands for it, finished or not
    TOMBSTONED = "TOMBSTONED"  # it, or its topic, was deleted durably: it never returns


class Standing(StrEnum):
    """What storage was found to hold of a ledger. Stored by name."""

    TAIL = "TAIL"  # uploads behind those that are registered
    STRANGER = "STRANGER"  # objects, and no row
    SHORT = "SHORT"  # some registered segments are absent
    ABSENT = "ABSENT"  # nothing at all in any bucket, though its list names it: no deletion explains it
    ENDED = "ENDED"  # nothing at all in any bucket, and no list names it: an earlier version of its record came back


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLedger:
    """What storage was found to hold of one ledger, where that is not just what the catalog says."""

    ledger_id: LedgerId
    topic_id: TopicId
    standing: Standing
    statement: LedgerStatement | None = None  # of a stranger
    uploads: tuple[Upload, ...] = ()  # of those that may take segments
    objects: int = 0  # of a stranger: how many segments there are
    size_bytes: int = 0


class Adoptee(StrEnum):
    """What became of a staged ledger. Stored by name."""

    ADOPTED = "ADOPTED"  # it has a row now, with its segments
    EXTENDED = "EXTENDED"  # segments were added
    UNCHANGED = "UNCHANGED"  # none of its uploads had been registered
    DETACHED = "DETACHED"  # left out: nothing names it, so it has no row; nothing is detached, and its objects stay
    REVIVED = (
        "REVIVED"  # its list does not name it, or an intent is later than it: its row is removed, its objects stay
    )
    MISSING = "MISSING"  # objects of it are absent, some or all: reported, and its row is kept
    LEFT_OUT = "LEFT_OUT"  # a schema's, deleted with its topic: the version came back without it, and was left out


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionReport:
    """What adoption did. Ids ascend; of each list, and of names, at most `SAMPLE`."""

    adopted_ledgers: int = 0
    adopted_segments: int = 0
    detached: int = 0  # ledgers that were left out because nothing names them; their objects stay
    revived: int = 0
    revived_ledgers: tuple[LedgerId, ...] = ()
    missing_data: int = 0
    missing_ledgers: tuple[LedgerId, ...] = ()
    schemas_left_out: int = 0  # versions
    schemas_left_out_of: tuple[str, ...] = ()  # topics that they were of, by name, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """Counts of ledgers that their lists name. Those that ended before the flush are expected to be gone."""

    absent: int = 0  # nothing of them was found in any bucket
    ledgers: int = 0  # all of them, also those that adoption has removed


class Adoption(Protocol):
    """Every method is one transaction, or several that may be repeated; calling one again changes nothing more."""

    def issued(self) -> Issued:
        """Bounds of what the lost catalog may have given out.

        Raises:
            PreconditionFailed: The catalog is not being adopted.
        """

    def is_adopting(self) -> bool:
        """Whether the catalog is not complete yet."""

    def known(self, shard: int, *, after: LedgerId, limit: int) -> Sequence[KnownLedger]:
        """Ledgers with id % 256 = `shard` and above `after`, ascending."""

    def fates(self, ledger_ids: Collection[LedgerId]) -> Mapping[LedgerId, Fate]:
        """Of each of these ledgers that has no row."""

    def highest_id(self) -> LedgerId:
        """Return the highest ledger id that a ledger, an intent or a tombstone has, -1 for none.

        Ids that were never given out are left out.
        """

    def stage(
        self, shard: int, found: Sequence[StagedLedger], *, above: LedgerId, up_to: LedgerId | None = None
    ) -> None:
        """Keep what was found in a part of a shard, in place of what was found there before.

        What a topic was settled with already stays.

        Args:
            shard: 0 to 255.
            found: In that part.
            above: Where the part begins, exclusive.
            up_to: Where it ends, inclusive; None: nowhere.
        """

    def absence(self) -> Absence:
        """Count the ledgers that were staged as absent, settled or not; none in a catalog that is READY."""

    def unsettled(self, *, after: TopicId, limit: int) -> Sequence[TopicId]:
        """Topics with staged ledgers that are not settled, ascending."""

    def settle(self, topic_id: TopicId, *, rows_epoch: int) -> None:
        """Take in what was staged of a topic, in one transaction, of which a few MB are in memory at once.

        Its uploads are registered as `logstore.records.adoption` decides; strangers with registered uploads join its
        list, and the topic itself is made again where no record has it. Nothing is filed for deletion: objects of the
        other strangers, and of ledgers whose rows leave, stay for reconciliation to report.

        Args:
            topic_id: Of the topic.
            rows_epoch: Of the catalog whose rows were loaded: uploads of earlier epochs are decided.
        """

    def conclude(self) -> None:
        """Do what needs no look at storage, of all topics.

        Ledgers that no list names, or that have a later intent, leave the catalog, and no new intent is filed for them;
        of a list only the last ledger stays open; entries with a delivery time are counted; rows that name ledgers
        without objects forget them; versions of schemas whose ledgers have gone are left out, because they could be
        neither read nor set again; unfinished intents get the catalog's epoch.
        """

    def report(self) -> AdoptionReport:
        """What was done so far."""

    def finish(self) -> None:
        """Let the catalog be READY: writers may begin."""


SAMPLE = 100
"""Ids and names of each list in a report, at most."""
