"""Reader of entries, in order or by position. The reader fetches segments ahead. Ledgers may be trimmed meanwhile.

If the primary copy lacks an object, the reader uses the tiered copy. If no copy has the segment, the reader asks the
catalog whether the ledger is still listed:

- If the ledger is no longer listed, the reader continues at the next listed ledger and logs a warning. A missing ledger
  never blocks a reader, and a skip is never silent (apache/pulsar#18620).
- If the ledger is still listed, data is lost, and the reader raises `MissingData`.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import CursorState
from logstore.errors import InvalidInput, MissingData
from logstore.log.entries import Entry
from logstore.log.ledgers import LedgerState
from logstore.log.services.prefetcher import Prefetcher
from logstore.log.services.read_cache import ReadCache
from logstore.log.services.read_filter import (
    READABLE_COLUMNS,
    DiscardingPostponer,
    ExcludedEntries,
    Postponer,
    ReadFilter,
    fetch_segment,
)
from logstore.log.services.segment_reader import SegmentGone
from logstore.log.services.segment_sources import SegmentSource, TieredCopyFinder
from logstore.ports.catalog.log import Ledger, Segment, Topic
from logstore.ports.catalog.transactions import Frontier
from logstore.ports.object_storage import ObjectStore
from logstore.positions import EARLIEST, LedgerId, Position
from logstore.retrying_clock import Clock

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)

_FIRST_PAGE_LEDGERS: Final = 8
"""Number of ledgers in the first page of a scan. Each later page has twice as many ledgers as the previous page."""
_MAX_PAGE_LEDGERS: Final = 1024

_CACHE_BYTES: Final = 32 << 20
"""Size of the cache of `read_visible_entries_at`, which all readers of a process share."""


class EntryReader:
    def __init__(
        self,
        *,
        ledgers: MessageLedgers,
        transactions: Transactions,
        objects: ObjectStore,
        clock: Clock,
        tiered: TieredCopyFinder | None = None,
    ) -> None:
        self._ledgers, self._transactions = ledgers, transactions
        self._tiered = tiered
        self._objects = objects
        self._clock = clock
        self._prefetcher = Prefetcher()
        self._cache: ReadCache[tuple[int, int, tuple[str, ...]], pa.Table] = ReadCache(
            _CACHE_BYTES, lambda table: table.nbytes
        )

    def close(self) -> None:
        """End the threads that fetch segments ahead. Running scans end with an error."""
        self._prefetcher.close()

    def scan(
        self,
        topic: Topic,
        *,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE_COLUMNS,
        cursor_state: CursorState | None = None,
        up_to: Position | None = None,
        frontier: Frontier | None = None,
        excluded: ExcludedEntries | None = None,
        postponer: Postponer | None = None,
    ) -> Iterator[Entry]:
        read_filter = ReadFilter(
            columns=_validate_columns(columns),
            state=cursor_state,
            up_to=up_to,
            excluded=excluded or {},
            postponer=postponer or (DiscardingPostponer(self._clock) if cursor_state else None),
        )
        return self._scan_from(topic, read_filter, EARLIEST if from_position is None else from_position, frontier)

    def _scan_from(
        self, topic: Topic, read_filter: ReadFilter, position: Position, frontier: Frontier | None
    ) -> Iterator[Entry]:
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {topic.name}")
        committed = self._limit_to_frontier(topic, read_filter, position, frontier)
        if committed is None:
            return
        read_filter = committed
        while True:
            segments = self._iterate_segments(topic, read_filter, position)
            selected = (
                (ledger, segment, ids)
                for ledger, segment in segments
                if (ids := read_filter.select_entries(segment, position))
            )
            fetched = self._prefetcher.fetch_ahead(
                selected, lambda item: fetch_segment(source.read, *item, read_filter)
            )
            try:
                for _, fetched_segment in fetched:
                    if read_filter.postponer and fetched_segment.deliver_at_ms_by_entry:
                        read_filter.postponer.postpone(
                            fetched_segment.segment.ledger_id, fetched_segment.deliver_at_ms_by_entry
                        )
                    yield from fetched_segment.iterate_entries(read_filter.columns)
                    position = fetched_segment.end
            except SegmentGone as gone:
                self._require_trimmed(topic, gone)
            else:
                return

    def read_visible_entries_at(
        self, topic: Topic, positions: Sequence[Position], *, columns: Sequence[str]
    ) -> list[Entry]:
        read_filter = ReadFilter(columns=_validate_columns(columns))
        ids_by_ledger: dict[LedgerId, BitMap] = defaultdict(BitMap)
        for position in positions:
            ids_by_ledger[position.ledger_id].add(position.entry_id)
        if not ids_by_ledger:
            return []
        committed = self._limit_to_frontier(topic, read_filter, Position(min(ids_by_ledger), 0))
        if committed is None:
            return []
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {topic.name}")

        def fetch(ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
            key = (segment.ledger_id, segment.number, tuple(columns))
            return self._cache.get_or_fetch(key, lambda: source.read(ledger, segment, columns))

        fetched: dict[Position, Entry] = {}
        ranges = {ledger_id: range(ids.min(), ids.max() + 1) for ledger_id, ids in ids_by_ledger.items()}
        for ledger, rows in self._ledgers.find_segments_of_ranges(topic.topic_id, ranges):
            try:
                _require_no_gap(ledger, rows, ranges[ledger.ledger_id])
                items = _select_segments(ledger, rows, ids_by_ledger[ledger.ledger_id], committed)
                for _, fetched_segment in self._prefetcher.fetch_ahead(
                    items, lambda item: fetch_segment(fetch, *item, read_filter)
                ):
                    fetched.update(
                        (entry.position, entry) for entry in fetched_segment.iterate_entries(read_filter.columns)
                    )
            except SegmentGone as gone:
                self._require_trimmed(topic, gone)
        return [fetched[position] for position in positions if position in fetched]

    def _limit_to_frontier(
        self, topic: Topic, read_filter: ReadFilter, at: Position, known_frontier: Frontier | None = None
    ) -> ReadFilter | None:
        """Limit `read_filter` to entries up to the frontier. Return `None` if the topic has no visible entry."""
        marked = at if read_filter.state is None else max(at, read_filter.state.mark_delete)
        frontier = known_frontier or self._transactions.read_frontier(topic.topic_id, from_ledger=marked.ledger_id)
        if frontier.last is None:
            return None
        up_to = frontier.last if read_filter.up_to is None else min(read_filter.up_to, frontier.last)
        return replace(read_filter, up_to=up_to, hidden=frontier.hidden)

    def _iterate_segments(
        self, topic: Topic, read_filter: ReadFilter, at: Position
    ) -> Iterator[tuple[Ledger, Segment]]:
        up_to = read_filter.up_to
        assert up_to is not None  # `_limit_to_frontier` has set it
        first_ledger = (
            at.ledger_id if read_filter.state is None else read_filter.state.mark_delete.ledger_id
        )  # all earlier entries are acknowledged
        for ledger in self._iterate_ledgers(topic, max(at.ledger_id, first_ledger), up_to.ledger_id):
            start = max(0, at.entry_id) if ledger.ledger_id == at.ledger_id else 0
            if Position(ledger.ledger_id, start) > up_to:
                return
            is_closed = ledger.state is LedgerState.CLOSED  # an open ledger may have grown since it was listed
            if read_filter.state is not None and is_closed and ledger.span.last <= read_filter.state.mark_delete:
                continue
            yield from ((ledger, row) for row in self._read_segment_rows(ledger, start))

    def _read_segment_rows(self, ledger: Ledger, start: int) -> list[Segment]:
        rows = self._ledgers.list_segments(ledger.ledger_id, from_entry=start)
        _require_no_gap(ledger, rows, range(start, ledger.entries))
        return rows

    def _iterate_ledgers(self, topic: Topic, first: LedgerId, last: LedgerId) -> Iterator[Ledger]:
        """Yield listed ledgers, `first` to `last` inclusive. Raise `SegmentGone` if a ledger is trimmed meanwhile."""
        reached, limit = LedgerId(-1), _FIRST_PAGE_LEDGERS
        page = self._ledgers.list_ledgers(topic.topic_id, from_ledger=first, limit=limit)
        while page:
            yield from (ledger for ledger in page if reached < ledger.ledger_id <= last)
            if len(page) < limit or page[-1].ledger_id >= last:
                return
            reached, limit = page[-1].ledger_id, min(2 * limit, _MAX_PAGE_LEDGERS)
            page = self._ledgers.list_ledgers(topic.topic_id, from_ledger=reached, limit=limit)
            if not page or page[0].ledger_id != reached:
                raise SegmentGone(reached, f"ledger {reached}")

    def _require_trimmed(self, topic: Topic, missing: SegmentGone) -> None:
        """Raise `MissingData` if the ledger is still listed. A trim unlists a ledger before it deletes the objects."""
        ledgers = self._ledgers.list_ledgers(topic.topic_id, from_ledger=missing.ledger_id, limit=2)
        listed = [ledger.ledger_id for ledger in ledgers]
        if missing.ledger_id in listed:
            advice = f"see `sexton ledger explain {missing.ledger_id}`"
            raise MissingData(f"topic {topic.name}: {missing} is listed and no copy holds it; {advice}")
        beyond = next((ledger_id for ledger_id in listed if ledger_id > missing.ledger_id), None)
        _LOG.warning(
            "PositionTrimmed: topic %s: ledger %s was trimmed while it was read; going on at %s",
            topic.name,
            missing.ledger_id,
            "the end" if beyond is None else Position(beyond, 0),
        )


def _select_segments(
    ledger: Ledger, rows: Iterable[Segment], entry_ids: BitMap, read_filter: ReadFilter
) -> Iterator[tuple[Ledger, Segment, BitMap]]:
    selected = ((row, entry_ids & read_filter.select_entries(row, Position(ledger.ledger_id, 0))) for row in rows)
    return ((ledger, row, ids) for row, ids in selected if ids)


def _require_no_gap(ledger: Ledger, rows: Sequence[Segment], requested: range) -> None:
    """Require a segment for each requested entry up to the number of entries in the ledger's row.

    Raises:
        MissingData: The ledger's row counts an entry that no segment has (apache/bookkeeper#4812).
        SegmentGone: The ledger has no segments, because it was trimmed after the reader listed it.
    """
    end = min(requested.stop, ledger.entries)
    if requested.start < end and not rows:
        raise SegmentGone(ledger.ledger_id, f"the segments of ledger {ledger.ledger_id}")
    next_entry = min(requested.start, rows[0].first_entry) if rows else requested.start
    for row in rows:
        if row.first_entry != next_entry:
            break
        next_entry += row.entries
    if next_entry < end:
        raise MissingData(
            f"ledger {ledger.ledger_id}: expected segments for {ledger.entries} entries, "
            f"found none at entry {next_entry}"
        )


def _validate_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the requested columns in file order, always with `publish_ms`."""
    unknown = sorted(set(columns) - set(READABLE_COLUMNS))
    if unknown:
        raise InvalidInput("columns", expected=f"some of {', '.join(READABLE_COLUMNS)}", found=unknown[0])
    return tuple(name for name in READABLE_COLUMNS if name in {"publish_ms", *columns})
