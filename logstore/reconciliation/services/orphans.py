"""A finding looked at again, just before it is removed: storage must still say what the plan found."""

from collections.abc import Mapping
from typing import Final

from logstore.log.ledgers import CopyKind, LedgerStatement, segment_number
from logstore.offload.locations import location_of
from logstore.ports.catalog import OrphanCopy
from logstore.ports.objects import Buckets, ObjectStore, OwnedStore
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Finding, FindingKind
from logstore.reconciliation.services.judgement import Doubt, Seen, doubt_upload, judge, look

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
        is_tiered = finding.copy == CopyKind.OFFLOADED_LEDGER
        if is_tiered and self._is_elsewhere(finding):
            return ELSEWHERE
        judged, seen = self._judged(self._tiered() if is_tiered else self._objects, finding, before_us)
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
        judged, _ = self._judged(self._objects, finding, before_us)
        if isinstance(judged, Doubt):
            return judged.reason
        return judged.ledger_id, segment_number(finding.key) or 0

    def upload(self, finding: Finding, *, before_us: int) -> ObjectStore | str:
        """The bucket of an abandoned upload in parts, or why it must be kept; raises as `copy`.

        That nobody goes on with it need not be asked of the catalog again: the row of an upload is there before its
        first part, and no uuid is used twice.
        """
        if self._is_elsewhere(finding):
            return ELSEWHERE
        store = self._tiered()
        doubt = doubt_upload(store, finding.key, before_us)
        return doubt.reason if doubt else store

    def _is_elsewhere(self, finding: Finding) -> bool:
        return finding.bucket != self._driver_metadata.get("bucket")

    def _tiered(self) -> OwnedStore:
        _, location = location_of(0, {**self._driver_metadata, "uuid": "any"})
        return self._buckets(location)

    def _judged(self, store: ObjectStore, finding: Finding, before_us: int) -> tuple[LedgerStatement | Doubt, Seen]:
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
