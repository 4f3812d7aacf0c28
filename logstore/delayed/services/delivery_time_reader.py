"""Reader of the delivery times in a topic's log (PIP-195). Segments without delivery times are not read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyroaring import BitMap

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.delayed.bucket_contents import select_delayed_rows
from logstore.delayed.delayed_rows import DelayedRows
from logstore.errors import MissingData
from logstore.log.services.entry_reader import Prefetcher
from logstore.log.services.segment_reader import SegmentGone, SegmentSource, TieredCopyFinder
from logstore.ports.catalog.log import Ledger, Segment
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId, Position, TopicId
from logstore.stop_checks import raise_if_stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessageFilter:
    topic_id: TopicId
    hidden: Mapping[LedgerId, BitMap]  # entries that no consumer sees
    now_ms: int  # messages due at this time are left out


class DeliveryTimeReader:
    """Reader of delivery times. Thread-safe. If the primary copy of a segment is gone, the tiered copy is read."""

    def __init__(
        self, *, ledgers: MessageLedgers, objects: ObjectStore, tiered: TieredCopyFinder | None = None
    ) -> None:
        self._ledgers, self._objects, self._tiered = ledgers, objects, tiered

    def iterate_segments(
        self, topic_id: TopicId, *, behind: Position, last: Position
    ) -> Iterator[tuple[Ledger, Segment]]:
        """Yield the segments that have entries after `behind` and end at or before `last`, in log order."""
        from_ledger = LedgerId(max(0, behind.ledger_id))
        for ledger in self._ledgers.list_ledgers(topic_id, from_ledger=from_ledger):
            start = behind.entry_id + 1 if ledger.ledger_id == behind.ledger_id else 0
            for segment in self._ledgers.list_segments(ledger.ledger_id, from_entry=start):
                if last_position(segment) > last:
                    return
                yield ledger, segment

    def read_delayed_rows(
        self, segments: Iterable[tuple[Ledger, Segment]], delayed_filter: WaitingMessageFilter
    ) -> Iterator[tuple[Segment, DelayedRows]]:
        """Yield each segment with its waiting messages, or without messages if the ledger was trimmed."""
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {delayed_filter.topic_id}")
        prefetcher = Prefetcher()
        try:
            for (_, segment), rows in prefetcher.fetch_ahead(
                iter(segments), lambda pair: self._read_delivery_times(source, delayed_filter, *pair)
            ):
                raise_if_stopped()
                yield segment, rows
        finally:
            prefetcher.close()

    def _read_delivery_times(
        self, source: SegmentSource, delayed_filter: WaitingMessageFilter, ledger: Ledger, segment: Segment
    ) -> DelayedRows:
        if segment.delayed == 0:
            return DelayedRows.empty()
        try:
            table = source.read(ledger, segment, ("deliver_at_ms",))
        except SegmentGone as gone:
            first_listed = self._ledgers.list_ledgers(delayed_filter.topic_id, from_ledger=ledger.ledger_id, limit=1)
            if [listed.ledger_id for listed in first_listed] != [ledger.ledger_id]:
                return DelayedRows.empty()
            raise MissingData(f"topic {delayed_filter.topic_id}: {gone} is listed and no copy holds it") from gone
        return select_delayed_rows(
            segment.ledger_id,
            segment.first_entry,
            table,
            wanted=range(segment.first_entry, segment.first_entry + segment.entries),
            hidden=delayed_filter.hidden.get(segment.ledger_id),
            now_ms=delayed_filter.now_ms,
        )


def last_position(segment: Segment) -> Position:
    return Position(segment.ledger_id, segment.first_entry + segment.entries - 1)
