"""Delivery times out of a topic's log: of segments that have any, and of nothing else.

Source: PIP-195 (recovery reads no payloads).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyroaring import BitMap

from logstore.delayed.rows import DelayedRows
from logstore.delayed.sealing import select_delayed_rows
from logstore.errors import MissingData
from logstore.log.services.read_ahead import Prefetcher
from logstore.log.services.segment_file import SegmentGone
from logstore.log.services.tiered_segments import SegmentSource, TieredSegments
from logstore.ports.catalog import Ledger, Ledgers, Segment
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId, Position, TopicId
from logstore.units import between_units


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages are looked for."""

    topic_id: TopicId
    hidden: Mapping[LedgerId, BitMap]  # entries that no consumer sees
    now_ms: int  # what is due by then is left out


class DelayedLog:
    """Reads delivery times. Threads share one."""

    def __init__(self, *, ledgers: Ledgers, objects: ObjectStore, tiered: TieredSegments | None = None) -> None:
        """Read segments that these ledgers name, from the primary bucket, or tiered where that copy is gone."""
        self._ledgers, self._objects, self._tiered = ledgers, objects, tiered

    def segments(self, topic_id: TopicId, *, behind: Position, last: Position) -> Iterator[tuple[Ledger, Segment]]:
        """Segments behind a position that end at `last` or before, in log order."""
        from_ledger = LedgerId(max(0, behind.ledger_id))
        for ledger in self._ledgers.listed(topic_id, from_ledger=from_ledger):
            start = behind.entry_id + 1 if ledger.ledger_id == behind.ledger_id else 0
            for segment in self._ledgers.segments(ledger.ledger_id, from_entry=start):
                if end_of(segment) > last:
                    return
                yield ledger, segment

    def rows(self, segments: Iterable[tuple[Ledger, Segment]], wanted: Wanted) -> Iterator[tuple[Segment, DelayedRows]]:
        """Each segment with its delayed messages whose time has not come; none of a ledger that was trimmed meanwhile.

        Raises:
            MissingData, CorruptData: A listed ledger lacks an object, or one is not what its row says, in no copy.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {wanted.topic_id}")
        ahead = Prefetcher()
        try:
            for (_, segment), rows in ahead.run(iter(segments), lambda one: self._read(source, wanted, *one)):
                between_units()
                yield segment, rows
        finally:
            ahead.close()

    def _read(self, source: SegmentSource, wanted: Wanted, ledger: Ledger, segment: Segment) -> DelayedRows:
        if segment.delayed == 0:
            return DelayedRows.empty()
        try:
            table = source.read(ledger, segment, ("deliver_at_ms",))
        except SegmentGone as gone:
            found = self._ledgers.listed(wanted.topic_id, from_ledger=ledger.ledger_id, limit=1)
            if [one.ledger_id for one in found] != [ledger.ledger_id]:
                return DelayedRows.empty()
            raise MissingData(f"topic {wanted.topic_id}: {gone} is listed and no copy holds it") from gone
        return select_delayed_rows(
            segment.ledger_id,
            segment.first_entry,
            table,
            wanted=range(segment.first_entry, segment.first_entry + segment.entries),
            hidden=wanted.hidden.get(segment.ledger_id),
            now_ms=wanted.now_ms,
        )


def end_of(segment: Segment) -> Position:
    """The last entry of a segment."""
    return Position(segment.ledger_id, segment.first_entry + segment.entries - 1)
