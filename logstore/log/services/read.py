"""Reading entries in order, a few segments ahead, while ledgers are trimmed under the reader's eyes.

A reader that misses an object looks at the catalog again. Ledger no longer listed: it goes on at the first
listed entry beyond, and says so in the log, because a missing ledger never pins a reader and a skip is never
silent (apache/pulsar#18620). Still listed: it reads the tiered copy. No copy holds it: data loss, `MissingData`.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyroaring import BitMap

from logstore.clock import Clock
from logstore.cursors.state import CursorState
from logstore.errors import InvalidInput, MissingData
from logstore.log.entries import Entry
from logstore.log.ledgers import LedgerState
from logstore.log.services.segment_file import SegmentGone
from logstore.log.services.tiered_segments import SegmentSource, TieredSegments
from logstore.ports.catalog import Ledger, Ledgers, Segment, Topic, Transactions
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId, Position

if TYPE_CHECKING:
    import pyarrow as pa

_Item = TypeVar("_Item")
_Value = TypeVar("_Value")

_AHEAD: Final = 2
_THREADS: Final = 4


class Prefetcher:
    """A few threads, shared by all readers of a process and started with the first that goes beyond one item."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefetch")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def run(self, items: Iterator[_Item], fetch: Callable[[_Item], _Value]) -> Iterator[tuple[_Item, _Value]]:
        """Each item with its value, in order.

        The first item is fetched alone, since many readers want no more; from then on up to 2 are ahead. What
        `fetch` raises is raised at that item's turn.
        """
        under_way: deque[tuple[_Item, Future[_Value]]] = deque()
        try:
            for item in islice(items, 1):
                yield item, fetch(item)
            for item in items:
                under_way.append((item, self._pool.submit(copy_context().run, fetch, item)))
                if len(under_way) > _AHEAD:
                    ready, future = under_way.popleft()
                    yield ready, future.result()
            while under_way:
                ready, future = under_way.popleft()
                yield ready, future.result()
        finally:
            for _, future in under_way:
                future.cancel()


_LOG = logging.getLogger(__name__)

READABLE: Final = ("publish_ms", "deliver_at_ms", "producer", "sequence_id", "key", "payload", "properties")
"""Columns that a reader may ask for."""

_ROWS: Final = 1024
"""Entries made at a time: a reader that stops early pays for no more of a large segment."""

_FIRST_PAGE: Final = 8
"""Ledgers looked up at first: a reader that wants one entry pays for few; each further page is twice as long."""
_MOST_OF_A_PAGE: Final = 1024

_BEGINNING: Final = Position(LedgerId(-1), -1)
_NONE: Final = BitMap()


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What of the log a reader wants to see."""

    columns: tuple[str, ...]
    hidden: frozenset[str]  # read for their own sake, not asked for
    state: CursorState | None
    upto: Position | None
    unseen: Mapping[LedgerId, BitMap] = field(default_factory=dict)  # markers, and messages of aborted transactions


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

    def close(self) -> None:
        """End the threads that read ahead; scans under way end with an error."""
        self._prefetcher.close()

    def scan(
        self,
        topic: Topic,
        *,
        from_position: Position | None = None,
        columns: Sequence[str] = READABLE,
        cursor_state: CursorState | None = None,
        upto: Position | None = None,
    ) -> Iterator[Entry]:
        """See `ManagedLedger.scan`."""
        unknown = sorted(set(columns) - set(READABLE))
        if unknown:
            raise InvalidInput("columns", expected=f"some of {', '.join(READABLE)}", found=unknown[0])
        needed = {"publish_ms", *columns, *(("deliver_at_ms",) if cursor_state else ())}
        view = _View(
            columns=tuple(name for name in READABLE if name in needed),
            hidden=frozenset(needed - {"publish_ms"} - set(columns)),
            state=cursor_state,
            upto=upto,
        )
        return self._scan(topic, view, _BEGINNING if from_position is None else from_position)

    def _scan(self, topic: Topic, view: _View, at: Position) -> Iterator[Entry]:
        source = SegmentSource(self._objects, self._tiered)
        committed = self._committed(topic, view, at)
        if committed is None:
            return
        view = committed
        while True:
            segments = self._segments(topic, view, at)
            wanted = ((ledger, segment, ids) for ledger, segment in segments if (ids := _wanted(segment, view, at)))
            fetched = self._prefetcher.run(wanted, lambda item: source.read(item[0], item[1], view.columns))
            try:
                for (_, segment, ids), table in fetched:
                    yield from self._visible(segment, ids, table, view)
                    at = Position(segment.ledger_id, segment.first_entry + segment.entries)
            except SegmentGone as gone:
                self._check_trimmed(topic, gone)
            else:
                return

    def _committed(self, topic: Topic, view: _View, at: Position) -> _View | None:
        """The view up to the first message of an open transaction; None if there is nothing to see yet."""
        marked = at if view.state is None else max(at, view.state.mark_delete)
        frontier = self._transactions.frontier(topic.topic_id, from_ledger=marked.ledger_id)
        if frontier.last is None:
            return None
        upto = frontier.last if view.upto is None else min(view.upto, frontier.last)
        return replace(view, upto=upto, unseen=frontier.hidden)

    def _segments(self, topic: Topic, view: _View, at: Position) -> Iterator[tuple[Ledger, Segment]]:
        """Registered segments at or after `at`, in order, looked up ledger by ledger as they are drawn."""
        marked = (
            at.ledger_id if view.state is None else view.state.mark_delete.ledger_id
        )  # before it all is acknowledged
        for ledger in self._listed(topic, max(at.ledger_id, marked)):
            start = max(0, at.entry_id) if ledger.ledger_id == at.ledger_id else 0
            if view.upto and Position(ledger.ledger_id, start) > view.upto:
                return
            closed = ledger.state is LedgerState.CLOSED  # an open one may have grown since it was listed
            if view.state is not None and closed and ledger.span.last <= view.state.mark_delete:
                continue
            rows = self._ledgers.segments(ledger.ledger_id, from_entry=start)
            if start < ledger.entries and not rows:
                raise SegmentGone(ledger.ledger_id, f"the segments of ledger {ledger.ledger_id}")
            _check_whole(ledger, rows, start)
            yield from ((ledger, row) for row in rows)

    def _listed(self, topic: Topic, first: LedgerId) -> Iterator[Ledger]:
        """Ledgers from that id on, page by page, up to the one that was the last when they were first asked for.

        Raises:
            SegmentGone: The last one of a page was trimmed meanwhile, and perhaps others behind it.
        """
        last = self._ledgers.last(topic.topic_id)
        if last is None:
            return
        reached, limit = LedgerId(-1), _FIRST_PAGE
        page = self._ledgers.listed(topic.topic_id, from_ledger=first, limit=limit)
        while page:
            yield from (ledger for ledger in page if reached < ledger.ledger_id <= last.ledger_id)
            if len(page) < limit or page[-1].ledger_id >= last.ledger_id:
                return
            reached, limit = page[-1].ledger_id, min(2 * limit, _MOST_OF_A_PAGE)
            page = self._ledgers.listed(topic.topic_id, from_ledger=reached, limit=limit)
            if not page or page[0].ledger_id != reached:
                raise SegmentGone(reached, f"ledger {reached}")

    def _visible(self, segment: Segment, ids: BitMap, table: "pa.Table", view: _View) -> Iterator[Entry]:
        """Entries of one segment, by id, without those that a subscription may not see yet."""
        remaining = iter(ids)
        while chosen := list(islice(remaining, _ROWS)):
            rows = table.take([entry_id - segment.first_entry for entry_id in chosen])
            now_ms = self._clock.now_us() // 1000
            values = {name: rows.column(name).to_pylist() for name in view.columns}
            for at, entry_id in enumerate(chosen):
                row = {name: column[at] for name, column in values.items()}
                if view.state is None or (row["deliver_at_ms"] or 0) <= now_ms:
                    yield _entry(Position(segment.ledger_id, entry_id), row, view.hidden)

    def _check_trimmed(self, topic: Topic, gone: SegmentGone) -> None:
        """Take the loss for a trim if the catalog says so now.

        A trim takes the ledger out of the list before it deletes, so a list read after the miss tells both apart.

        Raises:
            MissingData: The ledger is still listed.
        """
        found = self._ledgers.listed(topic.topic_id, from_ledger=gone.ledger_id, limit=2)
        listed = [ledger.ledger_id for ledger in found]
        if gone.ledger_id in listed:
            raise MissingData(f"topic {topic.name}: {gone} is listed and no copy holds it")
        beyond = next((ledger_id for ledger_id in listed if ledger_id > gone.ledger_id), None)
        _LOG.warning(
            "PositionTrimmed: topic %s: ledger %s was trimmed while it was read; going on at %s",
            topic.name,
            gone.ledger_id,
            "the end" if beyond is None else Position(beyond, 0),
        )


def _check_whole(ledger: Ledger, rows: Sequence[Segment], start: int) -> None:
    """Require segments without a gap from `start` up to the length that the ledger's row says.

    They are registered in one transaction with that length: what is short now was acknowledged to its producer.

    Raises:
        MissingData: Entries in between have no segment (apache/bookkeeper#4812).
    """
    reached = min(start, rows[0].first_entry) if rows else start
    for row in rows:
        if row.first_entry != reached:
            break
        reached += row.entries
    if reached < ledger.entries:
        raise MissingData(
            f"ledger {ledger.ledger_id}: expected segments for {ledger.entries} entries, found none at entry {reached}"
        )


def _wanted(segment: Segment, view: _View, at: Position) -> BitMap:
    """Entry ids of the segment at or after `at`, up to the limit, that consumers see and have not acknowledged."""
    first, end = segment.first_entry, segment.first_entry + segment.entries
    if segment.ledger_id == at.ledger_id:
        first = max(first, at.entry_id)
    if view.upto and segment.ledger_id >= view.upto.ledger_id:
        end = min(end, view.upto.entry_id + 1) if segment.ledger_id == view.upto.ledger_id else first
    unseen = view.unseen.get(segment.ledger_id, _NONE)
    if view.state is None:
        return BitMap(range(first, end)) - unseen
    mark = view.state.mark_delete
    if segment.ledger_id <= mark.ledger_id:
        first = max(first, mark.entry_id + 1) if segment.ledger_id == mark.ledger_id else end
    return BitMap(range(first, end)) - view.state.acknowledged.get(segment.ledger_id, _NONE) - unseen


def _entry(position: Position, row: dict[str, Any], hidden: frozenset[str]) -> Entry:
    for name in hidden:
        row[name] = None
    row["properties"] = dict(row.get("properties") or ())
    return Entry(position=position, **row)
