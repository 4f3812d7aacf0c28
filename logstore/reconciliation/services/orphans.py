"""Whether storage still shows an orphan: what a plan and its apply both ask, and how both judge the answer.

Apply asks just before it removes what a finding names: storage must still say what the plan found. Whatever is not
exactly so keeps the objects: unknown age, an unknown file, a statement of another owner. Nothing here changes anything.

Source: iceberg#4346 and lakeFS#8518 (unknown is kept), amoro#2925 (unknown age is kept).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.ledgers import (
    CopyKind,
    LedgerStatement,
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
)
from logstore.offload.tiered import data_key, index_key, parse_copy_location
from logstore.ports.catalog import OrphanCopy
from logstore.ports.objects import Buckets, ObjectInfo, ObjectStore, OwnedStore
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Finding, FindingKind

GONE: Final = "storage shows none of the objects that the plan listed; plan again"
"""Nothing of the finding was deleted by the apply, and the finding is kept: storage may hide what stands."""
YOUNG: Final = "an object is younger than the plan's cut-off, or of unknown age"
UNKNOWN_FILE: Final = "there is a file that no writer of ours makes"
UNSTATED: Final = "storage states no owner"
OTHER_APPLICATION: Final = "storage states another application"
OTHER_OWNER: Final = "storage states another owner"
CHANGED: Final = "storage states another owner than it did to the plan, which compared that one with the catalog"
ENDED_UPLOAD: Final = "the upload has ended"

ABSENT: Final = frozenset({GONE, ENDED_UPLOAD})
"""Reasons that say that something is not there: they count only in a bucket that is proved to be the catalog's."""

_MAX_SEGMENTS_ASKED: Final = 100
"""GETs for one ledger of which a listing shows nothing. Its numbers begin at 0; lost races leave few gaps."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a finding is no orphan that may be removed."""

    reason: str  # one of this module's constants
    key: str  # of the object that shows it


@dataclass(frozen=True, slots=True)
class OrphanObjects:
    """Objects of an orphan, as storage shows them."""

    objects: Sequence[ObjectInfo]
    metadata: Mapping[str, Mapping[str, str]]  # by key, of the objects whose statements count

    @property
    def size_bytes(self) -> int:
        """Sum over all objects."""
        return sum(stored.size_bytes for stored in self.objects)


def look(store: ObjectStore, finding: Finding) -> OrphanObjects:
    """Ask the bucket for what `judge` needs: a listing and one HEAD for a ledger, HEADs for single objects.

    Absence is judged as phase two judges it: a second listing, and a GET of each known name, must find nothing. A
    finding has no list of its keys, so that a store can still hide some of them.

    Raises:
        StoreUnavailable: Storage did not answer, or its answers contradict each other.
    """
    if finding.kind is FindingKind.ORPHAN_SEGMENT:
        seen = _ask_segment(store, finding)
    else:
        seen = _ask_copy(store, finding)
        if seen.objects and not seen.metadata:  # deleted between the two, or one of the answers is wrong
            seen = _ask_copy(store, finding)
        if seen.objects and not seen.metadata:
            raise StoreUnavailable(f"{seen.objects[0].key}: LIST shows it, HEAD does not find it; try again")
    if not seen.objects:
        _prove_absence(store, finding)
    return seen


def _prove_absence(store: ObjectStore, finding: Finding) -> None:
    """Raise if a second listing, or a GET of a name that the objects may bear, finds what the first look lacked.

    Raises:
        StoreUnavailable: An object stands, or storage did not answer.
    """
    if stored := next(iter(store.list(finding.key)), None):
        raise StoreUnavailable(f"{stored.key}: a second look at storage finds it, the first one did not; try again")
    for key in _possible_keys(finding):
        if store.get_range(key, 0, 1) is not None:
            raise StoreUnavailable(f"{key}: it can be read, and the first look at storage did not find it; try again")


def _possible_keys(finding: Finding) -> Iterator[str]:
    """Return keys of the objects that the plan found, as far as the finding tells them."""
    ledger_id = finding.ledger_id
    if ledger_id is None:
        return
    if finding.kind is FindingKind.ORPHAN_SEGMENT:
        yield finding.key
        return
    if finding.kind is FindingKind.ORPHAN_OFFLOAD:
        yield from (data_key(finding.uuid, ledger_id), index_key(finding.uuid, ledger_id))
        return
    with suppress(CorruptData):  # a finding that was not verified yet has no statement
        yield meta_key(ledger_id, LedgerStatement.from_metadata(finding.statement).owner)
    yield from (segment_key(ledger_id, number) for number in range(min(finding.objects, _MAX_SEGMENTS_ASKED)))


def _ask_copy(store: ObjectStore, finding: Finding) -> OrphanObjects:
    objects = list(store.list(finding.key))
    keys = sorted((stored.key for stored in objects), key=lambda key: (owner_digest_from_key(key) is None, key))
    counting = (
        1 if finding.kind is FindingKind.ORPHAN_LEDGER else 2
    )  # a third object of a pair is odd, whatever it says
    heads = {key: store.head(key) for key in keys[:counting]}
    return OrphanObjects(objects, {key: head[1] for key, head in heads.items() if head})


def _ask_segment(store: ObjectStore, finding: Finding) -> OrphanObjects:
    """The object, and the statement of the ledger that it says it is of."""
    head = store.head(finding.key)
    if head is None:
        return OrphanObjects([], {})
    metadata = {finding.key: head[1]}
    with suppress(CorruptData):
        statement = LedgerStatement.from_metadata(head[1])
        own = meta_key(statement.ledger_id, statement.owner)
        if beside := store.head(own):
            metadata[own] = beside[1]
    return OrphanObjects([head[0]], metadata)


def judge(finding: Finding, seen: OrphanObjects, *, before_us: int, application: str) -> LedgerStatement | Doubt:
    """Return the orphan's owner by storage's own statement, or why nothing of it may be removed.

    Args:
        finding: An `orphan_ledger`, an `orphan_segment`, or an `orphan_offload` that has objects.
        seen: What `look` answered.
        before_us: All of its objects must be older, by the store's clock.
        application: Ours.
    """
    if not seen.objects:
        return Doubt(GONE, finding.key)
    for stored in seen.objects:
        if stored.modified_us is None or stored.modified_us >= before_us:
            return Doubt(YOUNG, stored.key)
    odd = _find_odd_file(finding, [stored.key for stored in seen.objects])
    return odd or _agreed_statement(finding, seen.metadata, application)


def _find_odd_file(finding: Finding, keys: Sequence[str]) -> Doubt | None:
    """Return the doubt about an object that the writer of the ledger or of the tiered copy never made, or None."""
    ledger_id = finding.ledger_id
    if ledger_id is None:
        return Doubt(UNKNOWN_FILE, finding.key)
    if finding.kind is FindingKind.ORPHAN_LEDGER:
        prefix = ledger_prefix(ledger_id)
        names = {key: key.removeprefix(prefix) for key in keys}
        metas = [key for key, name in names.items() if "/" not in name and owner_digest_from_key(name)]
        segments = [key for key, name in names.items() if "/" not in name and segment_number_from_key(name) is not None]
        odd = [Doubt(UNKNOWN_FILE, key) for key in keys if key not in {*metas, *segments}]
        return next(iter([*odd, *(Doubt(OTHER_OWNER, key) for key in metas[1:])]), None)
    if finding.kind is FindingKind.ORPHAN_SEGMENT:
        known = {segment_key(ledger_id, segment_number_from_key(finding.key) or 0)}
    else:
        known = {data_key(finding.uuid, ledger_id), index_key(finding.uuid, ledger_id)}
    return next((Doubt(UNKNOWN_FILE, key) for key in keys if key not in known), None)


def _agreed_statement(
    finding: Finding, metadata: Mapping[str, Mapping[str, str]], application: str
) -> LedgerStatement | Doubt:
    """Return the statement on which all objects agree. For a segment, its ledger's own statement must be there."""
    agreed: LedgerStatement | None = None
    for key, said in metadata.items():
        statement = _parse_statement(finding, key, said, application)
        if isinstance(statement, Doubt):
            return statement
        if agreed is not None and statement != agreed:
            return Doubt(OTHER_OWNER, key)
        agreed = statement
    if agreed is None:
        return Doubt(GONE, finding.key)
    if finding.kind is FindingKind.ORPHAN_SEGMENT and meta_key(agreed.ledger_id, agreed.owner) not in metadata:
        return Doubt(OTHER_OWNER, finding.key)
    return agreed


def _parse_statement(finding: Finding, key: str, said: Mapping[str, str], application: str) -> LedgerStatement | Doubt:
    """Return the statement, if it is our own application's of this very ledger."""
    try:
        statement = LedgerStatement.from_metadata(said)
    except CorruptData:
        return Doubt(UNSTATED, key)
    if statement.owner.application != application:
        return Doubt(OTHER_APPLICATION, key)
    if statement.ledger_id != finding.ledger_id or owner_digest_from_key(key) not in {None, statement.owner.digest}:
        return Doubt(OTHER_OWNER, key)
    return statement


def doubt_upload(store: ObjectStore, key: str, before_us: int) -> Doubt | None:
    """Return why parts of uploads of this key must be left alone, or None if all of them are there and old.

    Raises:
        StoreUnavailable: Storage did not answer.
    """
    started = _start_times(store, key) or _start_times(store, key)  # absence is not taken from one listing
    if not started:
        return Doubt(ENDED_UPLOAD, key)
    return None if all(at is not None and at < before_us for at in started) else Doubt(YOUNG, key)


def _start_times(store: ObjectStore, key: str) -> list[int | None]:
    return [upload.started_us for upload in store.open_uploads(key) if upload.key == key]


ELSEWHERE: Final = "it stands in a bucket that the settings do not name"


class StoredOrphans:
    """Looks at what findings name in storage."""

    def __init__(
        self, *, objects: OwnedStore, buckets: Buckets, application: str, driver_metadata: Mapping[str, str]
    ) -> None:
        """Look into these buckets.

        Args:
            objects: The primary one.
            buckets: Tiered ones, by location.
            application: Ours.
            driver_metadata: The driver's own metadata of tiered copies, as each offload context keeps it.
        """
        self._objects, self._buckets = objects, buckets
        self._application, self._driver_metadata = application, dict(driver_metadata)

    def confirm(self, *, adopt: bool = True) -> None:
        """Check that both buckets are the catalog's, now.

        Args:
            adopt: Whether a bucket without a marker may become the catalog's, as at a first use.

        Raises:
            CatalogMismatch: One is not.
        """
        for store in (self._objects, self._tiered()):
            if adopt:
                store.require()
            store.confirm()

    def copy(self, number: int, finding: Finding, *, before_us: int) -> OrphanCopy | str:
        """The orphaned copy as storage states it, or why it must be kept.

        Args:
            number: Of the finding.
            finding: An `orphan_ledger`, or an `orphan_offload` that has objects.
            before_us: All of its objects must be older, by the store's clock.

        Raises:
            StoreUnavailable: Storage did not answer.
        """
        is_tiered = finding.copy == CopyKind.OFFLOADED_LEDGER
        if is_tiered and self._is_elsewhere(finding):
            return ELSEWHERE
        judged, seen = self._look_and_judge(self._tiered() if is_tiered else self._objects, finding, before_us)
        if isinstance(judged, Doubt):
            return judged.reason
        return OrphanCopy(
            number=number,
            copy=CopyKind(finding.copy),
            statement=judged,
            context={**self._driver_metadata, "uuid": finding.uuid} if is_tiered else {},
            size_bytes=seen.size_bytes,
        )

    def segment(self, finding: Finding, *, before_us: int) -> tuple[LedgerId, int] | str:
        """Ledger and number of an orphaned segment, or why it must be kept; raises as `copy`."""
        judged, _ = self._look_and_judge(self._objects, finding, before_us)
        if isinstance(judged, Doubt):
            return judged.reason
        if finding.statement and LedgerStatement.from_metadata(finding.statement) != judged:
            return CHANGED
        return judged.ledger_id, segment_number_from_key(finding.key) or 0

    def upload(self, finding: Finding, *, before_us: int) -> ObjectStore | str:
        """The bucket of an abandoned upload in parts, or why it must be kept; raises as `copy`.

        Whether a process goes on with it need not be asked of the catalog again: the row of an upload is there before
        its first part, and no uuid is used twice.
        """
        if self._is_elsewhere(finding):
            return ELSEWHERE
        store = self._tiered()
        doubt = doubt_upload(store, finding.key, before_us)
        return doubt.reason if doubt else store

    def _is_elsewhere(self, finding: Finding) -> bool:
        return finding.bucket != self._driver_metadata.get("bucket")

    def _tiered(self) -> OwnedStore:
        _, location = parse_copy_location(0, {**self._driver_metadata, "uuid": "any"})
        return self._buckets(location)

    def _look_and_judge(
        self, store: ObjectStore, finding: Finding, before_us: int
    ) -> tuple[LedgerStatement | Doubt, OrphanObjects]:
        seen = look(store, finding)
        return judge(finding, seen, before_us=before_us, application=self._application), seen


def is_copy(finding: Finding) -> bool:
    """Whether it is of a copy that two-phase deletion removes as a whole."""
    if finding.kind is FindingKind.ORPHAN_OFFLOAD:
        return finding.objects > 0
    return finding.kind is FindingKind.ORPHAN_LEDGER


def is_object(finding: Finding) -> bool:
    """Whether it is of a single object, or of parts of an upload, that is removed by its key."""
    if finding.kind is FindingKind.ORPHAN_OFFLOAD:
        return not finding.objects
    return finding.kind is FindingKind.ORPHAN_SEGMENT
