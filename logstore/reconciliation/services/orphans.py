"""A finding looked at again, just before it is removed: storage must still say what the plan found.

Whatever is not exactly so keeps the objects: unknown age, an unknown file, a statement of somebody else. Nothing here
changes anything. Source: iceberg#4346 and lakeFS#8518 (unknown is kept), amoro#2925 (unknown age is kept).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from logstore.errors import CorruptData
from logstore.log.ledgers import (
    CopyKind,
    LedgerStatement,
    ledger_prefix,
    meta_digest,
    meta_key,
    segment_key,
    segment_number,
)
from logstore.offload.places import TieredPlace, place_of
from logstore.offload.tiered import data_key, index_key
from logstore.ports.catalog import OrphanCopy
from logstore.ports.objects import Buckets, ObjectInfo, ObjectStore, OwnedStore
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Finding, FindingKind

GONE: Final = "nothing of it is left in storage"
YOUNG: Final = "an object is younger than the plan's cut-off, or of unknown age"
UNKNOWN_FILE: Final = "there is a file that no writer of ours makes"
UNSTATED: Final = "storage states no owner"
OTHER_OWNER: Final = "storage states another owner"
ELSEWHERE: Final = "it stands in a bucket that the settings do not name"
ENDED_UPLOAD: Final = "the upload has ended"


class _Kept(Exception):
    """Why nothing may be removed."""


class StoredOrphans:
    """Looks at what findings name in storage."""

    def __init__(
        self, *, objects: OwnedStore, buckets: Buckets, application: str, tiered_place: Mapping[str, str]
    ) -> None:
        """Look into these buckets.

        Args:
            objects: The primary one.
            buckets: Tiered ones, by place.
            application: Ours.
            tiered_place: The driver's own metadata of tiered copies, as each offload context keeps it.
        """
        self._objects, self._buckets = objects, buckets
        self._application, self._place = application, dict(tiered_place)

    def confirm(self) -> None:
        """See that both buckets are the catalog's, now.

        Raises:
            CatalogMismatch: One is not.
        """
        for store in (self._objects, self._tiered()):
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
        try:
            if finding.copy == CopyKind.OFFLOADED_LEDGER:
                return self._tiered_copy(number, finding, before_us)
            return self._primary_copy(number, finding, before_us)
        except _Kept as kept:
            return str(kept)

    def segment(self, finding: Finding, *, before_us: int) -> tuple[LedgerId, int] | str:
        """Ledger and number of an orphaned segment, or why it must be kept; raises as `copy`."""
        try:
            return self._segment(finding, before_us)
        except _Kept as kept:
            return str(kept)

    def upload(self, finding: Finding, *, before_us: int) -> ObjectStore | str:
        """The bucket of an abandoned upload in parts, or why it must be kept; raises as `copy`.

        That nobody goes on with it need not be asked of the catalog again: the row of an upload is there before its
        first part, and no uuid is used twice.
        """
        if finding.bucket != self._place.get("bucket"):
            return ELSEWHERE
        store = self._tiered()
        found = [one for one in store.open_uploads(finding.key) if one.key == finding.key]
        if not found:
            return ENDED_UPLOAD
        old = all(one.started_us is not None and one.started_us < before_us for one in found)
        return store if old else YOUNG

    def _tiered(self) -> OwnedStore:
        _, place = place_of(0, {**self._place, "uuid": "any"})
        return self._buckets(place)

    def _primary_copy(self, number: int, finding: Finding, before_us: int) -> OrphanCopy:
        if finding.ledger_id is None:
            raise _Kept(UNKNOWN_FILE)
        prefix = ledger_prefix(finding.ledger_id)
        found = _old(self._objects.list(prefix), before_us)
        metas = [one.key for one in found if _is_meta(prefix, one.key)]
        data = [one.key for one in found if _is_segment(prefix, one.key)]
        if len(metas) > 1 or len(metas) + len(data) < len(found):
            raise _Kept(OTHER_OWNER if len(metas) > 1 else UNKNOWN_FILE)
        statement = self._stated(self._objects, [*metas, *data][0], finding.ledger_id)
        if metas and meta_digest(metas[0]) != statement.owner.digest:
            raise _Kept(OTHER_OWNER)
        return OrphanCopy(
            number=number, copy=CopyKind.LEDGER, statement=statement, size_bytes=sum(one.size_bytes for one in found)
        )

    def _tiered_copy(self, number: int, finding: Finding, before_us: int) -> OrphanCopy:
        if finding.bucket != self._place.get("bucket"):
            raise _Kept(ELSEWHERE)
        if finding.ledger_id is None:
            raise _Kept(UNKNOWN_FILE)
        keys = (data_key(finding.uuid, finding.ledger_id), index_key(finding.uuid, finding.ledger_id))
        context = {**self._place, "uuid": finding.uuid}
        store = self._buckets(self._place_of(finding.ledger_id, context))
        found = _old(store.list(keys[0]), before_us)
        if {one.key for one in found}.difference(keys):
            raise _Kept(UNKNOWN_FILE)
        stated = [self._stated(store, one.key, finding.ledger_id) for one in found]
        if any(one != stated[0] for one in stated):
            raise _Kept(OTHER_OWNER)
        return OrphanCopy(
            number=number,
            copy=CopyKind.OFFLOADED_LEDGER,
            statement=stated[0],
            context=context,
            size_bytes=sum(one.size_bytes for one in found),
        )

    def _place_of(self, ledger_id: LedgerId, context: Mapping[str, str]) -> TieredPlace:
        try:
            return place_of(ledger_id, context)[1]
        except CorruptData as error:
            raise _Kept(UNKNOWN_FILE) from error

    def _segment(self, finding: Finding, before_us: int) -> tuple[LedgerId, int]:
        number = segment_number(finding.key)
        if finding.ledger_id is None or number is None or segment_key(finding.ledger_id, number) != finding.key:
            raise _Kept(UNKNOWN_FILE)
        seen = self._objects.head(finding.key)
        _old([] if seen is None else [seen[0]], before_us)
        statement = self._stated(self._objects, finding.key, finding.ledger_id)
        if self._objects.head(meta_key(finding.ledger_id, statement.owner)) is None:
            raise _Kept(OTHER_OWNER)
        return finding.ledger_id, number

    def _stated(self, store: ObjectStore, key: str, ledger_id: LedgerId) -> LedgerStatement:
        """What the object says of itself; only our own application's statement of that ledger counts."""
        seen = store.head(key)
        if seen is None:
            raise _Kept(GONE)
        try:
            statement = LedgerStatement.from_metadata(seen[1])
        except CorruptData as error:
            raise _Kept(UNSTATED) from error
        if statement.owner.application != self._application or statement.ledger_id != ledger_id:
            raise _Kept(OTHER_OWNER)
        return statement


def _old(listed: Iterable[ObjectInfo], before_us: int) -> Sequence[ObjectInfo]:
    found = list(listed)
    if not found:
        raise _Kept(GONE)
    if any(one.modified_us is None or one.modified_us >= before_us for one in found):
        raise _Kept(YOUNG)
    return found


def _is_meta(prefix: str, key: str) -> bool:
    return meta_digest(key) is not None and "/" not in key.removeprefix(prefix)


def _is_segment(prefix: str, key: str) -> bool:
    return segment_number(key) is not None and "/" not in key.removeprefix(prefix)


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
