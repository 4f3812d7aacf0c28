"""Which copy a segment is read from: the primary one, and where that fails the tiered one."""

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from logstore.errors import CorruptData
from logstore.log.ledgers import CopyKind
from logstore.log.services.segment_file import SegmentGone, read_columns
from logstore.log.services.tiered_segments import TieredSegments
from logstore.ports.catalog import Copies, Ledger, Segment
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa


_LOG: Final = logging.getLogger(__name__)


class SegmentSource:
    """Segments for one scan; threads that read ahead share it."""

    def __init__(self, objects: ObjectStore, tiered: TieredSegments | None) -> None:
        """Read the primary bucket that `objects` is, and `tiered` copies if there are any."""
        self._objects = objects
        self._tiered = tiered
        self._scan = tiered.scan() if tiered else None
        self._warned: set[LedgerId] = set()
        self._lock = threading.Lock()

    def read(self, ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
        """The named columns of a segment, in entry order.

        Args:
            ledger: As it was listed; its copies may have changed since.
            segment: Which.
            columns: Names of columns.

        Raises:
            SegmentGone: No copy that the catalog names now holds it.
            CorruptData: No copy of it can be read.
            StoreUnavailable, CatalogBusy: Nobody answered.
        """
        if CopyKind.LEDGER not in ledger.copies and self._tiered:
            return self._from_tiered(segment, columns, SegmentGone(ledger.ledger_id, f"ledger {ledger.ledger_id}"))
        try:
            return read_columns(self._objects, segment, columns)
        except (SegmentGone, CorruptData) as missed:
            return self._from_tiered(segment, columns, missed)

    def _from_tiered(self, segment: Segment, columns: Sequence[str], missed: Exception) -> "pa.Table":
        """Ask the catalog anew: the primary copy may have been removed since the ledger was listed."""
        copies = self._tiered.copies(segment.ledger_id) if self._tiered else None
        if self._scan is None or copies is None or copies.tiered is None:
            raise missed
        self._tell(segment.ledger_id, copies, missed)
        try:
            return self._scan.read_columns(segment, copies, columns)
        except SegmentGone as gone:
            raise missed if isinstance(missed, CorruptData) else gone from missed

    def _tell(self, ledger_id: LedgerId, copies: Copies, missed: Exception) -> None:
        """Say once that a primary copy is damaged; that it was removed is no news."""
        with self._lock:
            told = ledger_id in self._warned or not copies.primary
            self._warned.add(ledger_id)
        if not told:
            _LOG.warning("ledger %s: its primary copy is damaged, reading the tiered one: %s", ledger_id, missed)
