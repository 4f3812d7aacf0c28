"""Reading entries in order or by position, a few segments ahead, while ledgers are trimmed under the reader's eyes.

A reader that misses an object looks at the catalog again. Ledger no longer listed: it goes on at the first
listed entry beyond, and says so in the log, because a missing ledger never pins a reader and a skip is never
silent (apache/pulsar#18620). Still listed: it reads the tiered copy. No copy holds it: data loss, `MissingData`.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from logstore.clock import Clock
from logstore.cursors.state import CursorState
from logstore.errors import InvalidInput, MissingData
from logstore.log.entries import Entry
from logstore.log.ledgers import LedgerState
from logstore.log.services.read_ahead import Prefetcher, ReadCache
from logstore.log.services.segment_file import SegmentGone
from logstore.log.services.tiered_segments import SegmentSource, TieredSegments
from logstore.log.services.view import (
    READABLE_COLUMNS,
    DiscardingPostponer,
    ExcludedEntries,
    Postponer,
    ReadFilter,
    fetch_segment,
)
from logstore.ports.catalog import Frontier, Ledger, Ledgers, Segment, Topic, Transactions
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId, Position

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger(__name__)

_FIRST_PAGE: Final = 8
"""Ledgers looked up at first: a reader that wants one entry pays for few; each further page is twice as long."""
_MOST_OF_A_PAGE: Final = 1024

_KEPT_BYTES: Final = 32 << 20
"""Of columns of segments that were read by position, all readers of a process together: a segment can only be fetched
whole, and messages that are due one after the other stand all over the log."""

_BEGINNING: Final = Position(LedgerId(-1), -1)


class Reader:
    """Reads a topic's entries from the copies of its ledgers."""

    def __init__(
        self,
        *,
        ledgers: Ledgers,
        transactions: Transactions,
        objects: ObjectStore,
        clock: Clock,
        tiered: TieredSegments | None = None,
    ) -> None:
        """Find segments in `ledgers`; fetch them from the primary bucket that `objects` is, or from `tiered` copies.

        What of them may be seen `transactions` say.
        """
        self._ledgers, self._transactions = ledgers, transactions
        self._tiered = tiered
        self._objects = objects
        self._clock = clock
        self._prefetcher = Prefetcher()
        self._kept: ReadCache[tuple[int, int, tuple[str, ...]], pa.Table] = ReadCache(
            _KEPT_BYTES, lambda table: table.nbytes
        )

    def close(self) -> None:
        """End the threads that read ahead; scans under way end with an error."""
        self._prefetcher.close()

    def scan(
        self,
        topic: Topic,
        *,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE_COLUMNS,
        cursor_state: CursorState | None = None,
        upto: Position | None = None,
        frontier: Frontier | None = None,
        without: ExcludedEntries | None = None,
        postponing: Postponer | None = None,
    ) -> Iterator[Entry]:
        """See `ManagedLedger.scan`."""
        view = ReadFilter(
            columns=_checked(columns),
            state=cursor_state,
            upto=upto,
            without=without or {},
            postponing=postponing or (DiscardingPostponer(self._clock) if cursor_state else None),
        )
        return self._scan(topic, view, _BEGINNING if from_position is None else from_position, frontier)

    def _scan(self, topic: Topic, view: ReadFilter, at: Position, frontier: Frontier | None) -> Iterator[Entry]:
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {topic.name}")
        committed = self._committed(topic, view, at, frontier)
        if committed is None:
            return
        view = committed
        while True:
            segments = self._segments(topic, view, at)
            wanted = ((ledger, segment, ids) for ledger, segment in segments if (ids := view.wanted(segment, at)))
            fetched = self._prefetcher.run(wanted, lambda item: fetch_segment(source.read, *item, view))
            try:
                for _, seen in fetched:
                    if view.postponing and seen.later:
                        view.postponing.postpone(seen.segment.ledger_id, seen.later)
                    yield from seen.entries(view.columns)
                    at = seen.end
            except SegmentGone as gone:
                self._check_trimmed(topic, gone)
            else:
                return

    def read_entries_at(self, topic: Topic, positions: Sequence[Position], *, columns: Sequence[str]) -> list[Entry]:
        """See `ManagedLedger.read_entries_at`."""
        view = ReadFilter(columns=_checked(columns))
        wanted: dict[LedgerId, BitMap] = defaultdict(BitMap)
        for position in positions:
            wanted[position.ledger_id].add(position.entry_id)
        if not wanted:
            return []
        committed = self._committed(topic, view, Position(min(wanted), 0))
        if committed is None:
            return []
        source = SegmentSource(self._objects, self._tiered, topic=f"topic {topic.name}")

        def fetch(ledger: Ledger, segment: Segment, columns: Sequence[str]) -> "pa.Table":
            key = (segment.ledger_id, segment.number, tuple(columns))
            return self._kept.read(key, lambda: source.read(ledger, segment, columns))

        fetched: dict[Position, Entry] = {}
        ranges = {ledger_id: range(ids.min(), ids.max() + 1) for ledger_id, ids in wanted.items()}
        for ledger, rows in self._ledgers.find_segments(topic.topic_id, ranges):
            try:
                _check_whole(ledger, rows, ranges[ledger.ledger_id])
                items = _chosen(ledger, rows, wanted[ledger.ledger_id], committed)
                for _, seen in self._prefetcher.run(items, lambda item: fetch_segment(fetch, *item, view)):
                    fetched.update((entry.position, entry) for entry in seen.entries(view.columns))
            except SegmentGone as gone:
                self._check_trimmed(topic, gone)
        return [fetched[position] for position in positions if position in fetched]

    def _committed(
        self, topic: Topic, view: ReadFilter, at: Position, known: Frontier | None = None
    ) -> ReadFilter | None:
        """The view up to the first message of an open transaction; None if there is nothing to see yet."""
        marked = at if view.state is None else max(at, view.state.mark_delete)
        frontier = known or self._transactions.frontier(topic.topic_id, from_ledger=marked.ledger_id)
        if frontier.last is None:
            return None
        upto = frontier.last if view.upto is None else min(view.upto, frontier.last)
        return replace(view, upto=upto, unseen=frontier.hidden)

    def _segments(self, topic: Topic, view: ReadFilter, at: Position) -> Iterator[tuple[Ledger, Segment]]:
        """Registered segments at or after `at`, in order, looked up ledger by ledger as they are drawn."""
        upto = view.upto
        assert upto is not None  # of what is committed
        marked = (
            at.ledger_id if view.state is None else view.state.mark_delete.ledger_id
        )  # before it all is acknowledged
        for ledger in self._listed(topic, max(at.ledger_id, marked), upto.ledger_id):
            start = max(0, at.entry_id) if ledger.ledger_id == at.ledger_id else 0
            if Position(ledger.ledger_id, start) > upto:
                return
            closed = ledger.state is LedgerState.CLOSED  # an open one may have grown since it was listed
            if view.state is not None and closed and ledger.span.last <= view.state.mark_delete:
                continue
            yield from ((ledger, row) for row in self._rows(ledger, start))

    def _rows(self, ledger: Ledger, start: int) -> list[Segment]:
        """The ledger's segments that hold entries at or after `start`.

        Raises:
            SegmentGone: It was trimmed since it was listed.
            MissingData: There is a gap between them.
        """
        rows = self._ledgers.segments(ledger.ledger_id, from_entry=start)
        _check_whole(ledger, rows, range(start, ledger.entries))
        return rows

    def _listed(self, topic: Topic, first: LedgerId, last: LedgerId) -> Iterator[Ledger]:
        """Ledgers of these ids, both inclusive, page by page.

        Raises:
            SegmentGone: The last one of a page was trimmed meanwhile, and perhaps others behind it.
        """
        reached, limit = LedgerId(-1), _FIRST_PAGE
        page = self._ledgers.list_ledgers(topic.topic_id, from_ledger=first, limit=limit)
        while page:
            yield from (ledger for ledger in page if reached < ledger.ledger_id <= last)
            if len(page) < limit or page[-1].ledger_id >= last:
                return
            reached, limit = page[-1].ledger_id, min(2 * limit, _MOST_OF_A_PAGE)
            page = self._ledgers.list_ledgers(topic.topic_id, from_ledger=reached, limit=limit)
            if not page or page[0].ledger_id != reached:
                raise SegmentGone(reached, f"ledger {reached}")

    def _check_trimmed(self, topic: Topic, gone: SegmentGone) -> None:
        """Take the loss for a trim if the catalog says so now.

        A trim takes the ledger out of the list before it deletes, so a list read after the miss tells both apart.

        Raises:
            MissingData: The ledger is still listed.
        """
        found = self._ledgers.list_ledgers(topic.topic_id, from_ledger=gone.ledger_id, limit=2)
        listed = [ledger.ledger_id for ledger in found]
        if gone.ledger_id in listed:
            advice = f"see `sexton ledger explain {gone.ledger_id}`"
            raise MissingData(f"topic {topic.name}: {gone} is listed and no copy holds it; {advice}")
        beyond = next((ledger_id for ledger_id in listed if ledger_id > gone.ledger_id), None)
        _LOG.warning(
            "PositionTrimmed: topic %s: ledger %s was trimmed while it was read; going on at %s",
            topic.name,
            gone.ledger_id,
            "the end" if beyond is None else Position(beyond, 0),
        )


def _chosen(
    ledger: Ledger, rows: Iterable[Segment], wanted: BitMap, view: ReadFilter
) -> Iterator[tuple[Ledger, Segment, BitMap]]:
    """Segments that hold some of these entries, with those that the view shows."""
    chosen = ((row, wanted & view.wanted(row, Position(ledger.ledger_id, 0))) for row in rows)
    return ((ledger, row, ids) for row, ids in chosen if ids)


def _check_whole(ledger: Ledger, rows: Sequence[Segment], wanted: range) -> None:
    """Require segments of these entries without a gap, as far as the length reaches that the ledger's row says.

    They are registered in one transaction with that length: what is short now was acknowledged to its producer.

    Raises:
        SegmentGone: There is none: the ledger was trimmed since it was listed.
        MissingData: Entries in between have no segment (apache/bookkeeper#4812).
    """
    end = min(wanted.stop, ledger.entries)
    if wanted.start < end and not rows:
        raise SegmentGone(ledger.ledger_id, f"the segments of ledger {ledger.ledger_id}")
    reached = min(wanted.start, rows[0].first_entry) if rows else wanted.start
    for row in rows:
        if row.first_entry != reached:
            break
        reached += row.entries
    if reached < end:
        raise MissingData(
            f"ledger {ledger.ledger_id}: expected segments for {ledger.entries} entries, found none at entry {reached}"
        )


def _checked(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns to read: those that are asked for, in order, and the publish time, which every entry has."""
    unknown = sorted(set(columns) - set(READABLE_COLUMNS))
    if unknown:
        raise InvalidInput("columns", expected=f"some of {', '.join(READABLE_COLUMNS)}", found=unknown[0])
    return tuple(name for name in READABLE_COLUMNS if name in {"publish_ms", *columns})
