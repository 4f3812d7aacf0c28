"""Second look at an orphan in storage, for plans and applies.

Just before a removal, storage must still show exactly what the plan found. If one object has an unknown age or name, or
states another ledger owner, all objects of the finding are kept.

Source: apache/iceberg#4346 and treeverse/lakeFS#8518 (unknown is kept), apache/amoro#2925 (unknown age is kept).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.ledger_object_keys import (
    ledger_prefix,
    meta_key,
    owner_digest_from_key,
    segment_key,
    segment_number_from_key,
)
from logstore.log.ledgers import CopyKind, LedgerStatement
from logstore.offload.tiered_copy import data_key, index_key, parse_uuid_and_location
from logstore.ports.catalog.reconciliation import OrphanCopy
from logstore.ports.object_storage import BucketAtLocation, ObjectInfo, ObjectStore, OwnedStore
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Finding, FindingKind

NOT_SHOWN: Final = "storage shows none of the objects that the plan listed; plan again"
"""Reason to keep a finding whose objects storage does not show. Storage may hide objects that exist."""
YOUNG: Final = "an object is younger than the plan's cut-off, or of unknown age"
UNKNOWN_FILE: Final = "there is a file that no writer of ours makes"
UNSTATED: Final = "storage states no owner"
OTHER_APPLICATION: Final = "storage states another application"
OTHER_OWNER: Final = "storage states another owner"
CHANGED: Final = "storage states another owner than it did to the plan, which compared that one with the catalog"
OTHER_BUCKET: Final = "it stands in a bucket that the settings do not name"
ENDED_UPLOAD: Final = "the upload has ended"

ABSENT: Final = frozenset({NOT_SHOWN, ENDED_UPLOAD})
"""Reasons which say that objects are absent. They hold only if the bucket provably belongs to the catalog."""

_MAX_SEGMENT_GETS: Final = 100  # for one ledger; segment numbers begin at 0, and lost races leave few gaps


@dataclass(frozen=True, slots=True)
class OrphanDoubt:
    reason: str  # a constant of this module
    key: str  # of the object with this problem


@dataclass(frozen=True, slots=True)
class OrphanObjects:
    objects: Sequence[ObjectInfo]
    metadata: Mapping[str, Mapping[str, str]]  # by key, of objects whose statements count

    @property
    def size_bytes(self) -> int:
        return sum(stored.size_bytes for stored in self.objects)


def inspect_orphan(store: ObjectStore, finding: Finding) -> OrphanObjects:
    """Read the objects of an orphan, for `judge_orphan`.

    Objects are taken for absent only if a second listing and a GET of each known key find nothing. The store may still
    hide objects with other keys. Raise `StoreUnavailable` if the store contradicts itself.
    """
    if finding.kind is FindingKind.ORPHAN_SEGMENT:
        orphan = _read_orphan_segment_and_meta(store, finding)
    else:
        orphan = _read_orphan_copy(store, finding)
        if orphan.objects and not orphan.metadata:  # deleted between LIST and HEAD, or one answer is wrong
            orphan = _read_orphan_copy(store, finding)
        if orphan.objects and not orphan.metadata:
            raise StoreUnavailable(f"{orphan.objects[0].key}: LIST shows it, HEAD does not find it; try again")
    if not orphan.objects:
        _require_orphan_absent(store, finding)
    return orphan


def _require_orphan_absent(store: ObjectStore, finding: Finding) -> None:
    if stored := next(iter(store.list(finding.key)), None):
        raise StoreUnavailable(f"{stored.key}: a second look at storage finds it, the first one did not; try again")
    for key in _derive_object_keys(finding):
        if store.get_range(key, 0, 1) is not None:
            raise StoreUnavailable(f"{key}: it can be read, and the first look at storage did not find it; try again")


def _derive_object_keys(finding: Finding) -> Iterator[str]:
    ledger_id = finding.ledger_id
    if ledger_id is None:
        return
    if finding.kind is FindingKind.ORPHAN_SEGMENT:
        yield finding.key
        return
    if finding.kind is FindingKind.ORPHAN_OFFLOAD:
        yield from (data_key(finding.uuid, ledger_id), index_key(finding.uuid, ledger_id))
        return
    with suppress(CorruptData):  # a candidate that is not verified yet has no statement
        yield meta_key(ledger_id, LedgerStatement.from_metadata(finding.statement).owner)
    yield from (segment_key(ledger_id, number) for number in range(min(finding.objects, _MAX_SEGMENT_GETS)))


def _read_orphan_copy(store: ObjectStore, finding: Finding) -> OrphanObjects:
    objects = list(store.list(finding.key))
    keys = sorted((stored.key for stored in objects), key=lambda key: (owner_digest_from_key(key) is None, key))
    # A tiered copy has two objects. A third object is foreign, whatever its metadata states.
    max_heads = 1 if finding.kind is FindingKind.ORPHAN_LEDGER else 2
    heads = {key: store.head(key) for key in keys[:max_heads]}
    return OrphanObjects(objects, {key: head[1] for key, head in heads.items() if head})


def _read_orphan_segment_and_meta(store: ObjectStore, finding: Finding) -> OrphanObjects:
    """Return the segment with its metadata and the metadata of its ledger's `meta.json`."""
    head = store.head(finding.key)
    if head is None:
        return OrphanObjects([], {})
    metadata = {finding.key: head[1]}
    with suppress(CorruptData):
        statement = LedgerStatement.from_metadata(head[1])
        key = meta_key(statement.ledger_id, statement.owner)
        if meta_head := store.head(key):
            metadata[key] = meta_head[1]
    return OrphanObjects([head[0]], metadata)


def judge_orphan(
    finding: Finding, orphan: OrphanObjects, *, before_us: int, application: str
) -> LedgerStatement | OrphanDoubt:
    """Return the orphan's statement in storage, or the reason not to remove the orphan.

    The orphan stays if an object is not older than `before_us`, by the store's clock, or does not state `application`.
    """
    if not orphan.objects:
        return OrphanDoubt(NOT_SHOWN, finding.key)
    for stored in orphan.objects:
        if stored.modified_us is None or stored.modified_us >= before_us:
            return OrphanDoubt(YOUNG, stored.key)
    doubt = _find_foreign_object(finding, [stored.key for stored in orphan.objects])
    return doubt or _find_agreed_statement(finding, orphan.metadata, application)


def _find_foreign_object(finding: Finding, keys: Sequence[str]) -> OrphanDoubt | None:
    """Return a doubt about the first object whose key no writer of the ledger or of the tiered copy uses."""
    ledger_id = finding.ledger_id
    if ledger_id is None:
        return OrphanDoubt(UNKNOWN_FILE, finding.key)
    if finding.kind is FindingKind.ORPHAN_LEDGER:
        prefix = ledger_prefix(ledger_id)
        names = {key: key.removeprefix(prefix) for key in keys}
        metas = [key for key, name in names.items() if "/" not in name and owner_digest_from_key(name)]
        segments = [key for key, name in names.items() if "/" not in name and segment_number_from_key(name) is not None]
        doubts = [OrphanDoubt(UNKNOWN_FILE, key) for key in keys if key not in {*metas, *segments}]
        doubts += [OrphanDoubt(OTHER_OWNER, key) for key in metas[1:]]
        return doubts[0] if doubts else None
    if finding.kind is FindingKind.ORPHAN_SEGMENT:
        expected_keys = {segment_key(ledger_id, segment_number_from_key(finding.key) or 0)}
    else:
        expected_keys = {data_key(finding.uuid, ledger_id), index_key(finding.uuid, ledger_id)}
    return next((OrphanDoubt(UNKNOWN_FILE, key) for key in keys if key not in expected_keys), None)


def _find_agreed_statement(
    finding: Finding, metadata: Mapping[str, Mapping[str, str]], application: str
) -> LedgerStatement | OrphanDoubt:
    """Return the statement that all objects share, or a doubt. A segment also needs its ledger's `meta.json`."""
    agreed: LedgerStatement | None = None
    for key, object_metadata in metadata.items():
        statement = _parse_statement(finding, key, object_metadata, application)
        if isinstance(statement, OrphanDoubt):
            return statement
        if agreed is not None and statement != agreed:
            return OrphanDoubt(OTHER_OWNER, key)
        agreed = statement
    if agreed is None:
        return OrphanDoubt(NOT_SHOWN, finding.key)
    if finding.kind is FindingKind.ORPHAN_SEGMENT and meta_key(agreed.ledger_id, agreed.owner) not in metadata:
        return OrphanDoubt(OTHER_OWNER, finding.key)
    return agreed


def _parse_statement(
    finding: Finding, key: str, metadata: Mapping[str, str], application: str
) -> LedgerStatement | OrphanDoubt:
    try:
        statement = LedgerStatement.from_metadata(metadata)
    except CorruptData:
        return OrphanDoubt(UNSTATED, key)
    if statement.owner.application != application:
        return OrphanDoubt(OTHER_APPLICATION, key)
    if statement.ledger_id != finding.ledger_id or owner_digest_from_key(key) not in {None, statement.owner.digest}:
        return OrphanDoubt(OTHER_OWNER, key)
    return statement


def doubt_upload(store: ObjectStore, key: str, before_us: int) -> OrphanDoubt | None:
    """Return why the uploads to this key must stay, or `None` if there are uploads and all began before `before_us`."""
    times_us = _start_times_us(store, key) or _start_times_us(store, key)  # one listing does not prove absence
    if not times_us:
        return OrphanDoubt(ENDED_UPLOAD, key)
    are_old = all(time_us is not None and time_us < before_us for time_us in times_us)
    return None if are_old else OrphanDoubt(YOUNG, key)


def _start_times_us(store: ObjectStore, key: str) -> list[int | None]:
    return [upload.started_us for upload in store.list_open_uploads(key) if upload.key == key]


class OrphanInspector:
    """Second look at the objects of one finding: they are still orphans, or there is a reason to keep them.

    `application` is the application of the catalog. `driver_metadata` is part of each offload context.
    """

    def __init__(
        self, *, objects: OwnedStore, buckets: BucketAtLocation, application: str, driver_metadata: Mapping[str, str]
    ) -> None:
        self._objects, self._buckets = objects, buckets
        self._application, self._driver_metadata = application, dict(driver_metadata)

    def require_own_buckets(self, *, may_mark: bool = True) -> None:
        """Raise `CatalogMismatch` if the primary bucket or the tiered bucket does not belong to the catalog now.

        With `may_mark`, a bucket without a marker may be marked for the catalog.
        """
        for store in (self._objects, self._tiered()):
            if may_mark:
                store.require_ownership_once()
            store.require_ownership_now()

    def inspect_copy(self, number: int, finding: Finding, *, before_us: int) -> OrphanCopy | str:
        """Return the orphaned copy as storage states it, or the reason to keep the copy.

        `finding` is an `orphan_ledger`, or an `orphan_offload` that has objects. The copy is kept if one of its objects
        is not older than `before_us`, by the store's clock. Raise `StoreUnavailable` if storage did not answer.
        """
        is_tiered = finding.copy == CopyKind.OFFLOADED_LEDGER
        if is_tiered and self._is_elsewhere(finding):
            return OTHER_BUCKET
        judged, orphan = self._inspect_and_judge(self._tiered() if is_tiered else self._objects, finding, before_us)
        if isinstance(judged, OrphanDoubt):
            return judged.reason
        return OrphanCopy(
            number=number,
            copy=CopyKind(finding.copy),
            statement=judged,
            context={**self._driver_metadata, "uuid": finding.uuid} if is_tiered else {},
            size_bytes=orphan.size_bytes,
        )

    def inspect_segment(self, finding: Finding, *, before_us: int) -> tuple[LedgerId, int] | str:
        """Return ledger id and segment number of an orphaned segment, or the reason to keep the segment."""
        judged, _ = self._inspect_and_judge(self._objects, finding, before_us)
        if isinstance(judged, OrphanDoubt):
            return judged.reason
        if finding.statement and LedgerStatement.from_metadata(finding.statement) != judged:
            return CHANGED
        return judged.ledger_id, segment_number_from_key(finding.key) or 0

    def inspect_upload(self, finding: Finding, *, before_us: int) -> ObjectStore | str:
        """Return the bucket of an abandoned multipart upload, or the reason to keep the upload.

        No query of the catalog is needed. The catalog has a row before an upload has parts, and no uuid is used twice.
        So an upload without a row never gets a row.
        """
        if self._is_elsewhere(finding):
            return OTHER_BUCKET
        store = self._tiered()
        doubt = doubt_upload(store, finding.key, before_us)
        return doubt.reason if doubt else store

    def _is_elsewhere(self, finding: Finding) -> bool:
        return finding.bucket != self._driver_metadata.get("bucket")

    def _tiered(self) -> OwnedStore:
        _, location = parse_uuid_and_location(0, {**self._driver_metadata, "uuid": "any"})
        return self._buckets(location)

    def _inspect_and_judge(
        self, store: ObjectStore, finding: Finding, before_us: int
    ) -> tuple[LedgerStatement | OrphanDoubt, OrphanObjects]:
        orphan = inspect_orphan(store, finding)
        return judge_orphan(finding, orphan, before_us=before_us, application=self._application), orphan


def is_copy(finding: Finding) -> bool:
    """Return whether the finding is a whole copy, which two-phase deletion removes."""
    if finding.kind is FindingKind.ORPHAN_OFFLOAD:
        return finding.objects > 0
    return finding.kind is FindingKind.ORPHAN_LEDGER


def is_single_object(finding: Finding) -> bool:
    """Return whether the finding is a segment or an unfinished upload, which is removed by its key."""
    if finding.kind is FindingKind.ORPHAN_OFFLOAD:
        return not finding.objects
    return finding.kind is FindingKind.ORPHAN_SEGMENT
