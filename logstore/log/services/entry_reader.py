"""Reader of entries, in order or by position. The reader fetches segments ahead. Ledgers may be trimmed meanwhile.

A consumer gets no message before the delivery time of the message. The requested entries of a large segment may all be
delayed messages. In this case, delivery times are fetched first, and message payloads only if an entry is due.

If the primary copy lacks an object, the reader uses the tiered copy. If no copy has the segment, the reader asks the
catalog whether the ledger is still listed:

- If the ledger is no longer listed, the reader continues at the next listed ledger and logs a warning. A missing ledger
  never blocks a reader, and a skip is never silent (apache/pulsar#18620).
- If the ledger is still listed, data is lost, and the reader raises `MissingData`.
"""

import logging
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from pyroaring import BitMap

from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import CursorState
from logstore.errors import InvalidInput, MissingData
from logstore.log.entries import Entry
from logstore.log.ledgers import LedgerState
from logstore.log.services.segment_reader import MAX_WHOLE_READ_BYTES, SegmentGone, SegmentSource, TieredCopyFinder
from logstore.ports.catalog.log import Ledger, Segment, Topic
from logstore.ports.catalog.transactions import Frontier
from logstore.ports.object_storage import ObjectStore
from logstore.positions import EARLIEST, LedgerId, Position
from logstore.retrying_clock import Clock

if TYPE_CHECKING:
    import pyarrow as pa

    Fetch = Callable[[Ledger, Segment, Sequence[str]], pa.Table]


_Item = TypeVar("_Item")
_Value = TypeVar("_Value")
_ITEMS_AHEAD: Final = 2
_THREADS: Final = 4


class Prefetcher:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefetch")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def fetch_ahead(self, items: Iterator[_Item], fetch: Callable[[_Item], _Value]) -> Iterator[tuple[_Item, _Value]]:
        """Yield each item with its value, in order. If `fetch` fails for an item, raise the error instead of this item.

        The first item is fetched alone, because many readers need only one item. Then up to 2 items are fetched ahead.
        """
        pending: deque[tuple[_Item, Future[_Value]]] = deque()
        try:
            for item in islice(items, 1):
                yield item, fetch(item)
            for item in items:
                pending.append((item, self._pool.submit(copy_context().run, fetch, item)))
                if len(pending) > _ITEMS_AHEAD:
                    pending_item, future = pending.popleft()
                    yield pending_item, future.result()
            while pending:
                pending_item, future = pending.popleft()
                yield pending_item, future.result()
        finally:
            for _, future in pending:
                future.cancel()


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ReadCache(Generic[K, V]):
    """Thread-safe cache of the most recently used values. The value of a key must never change."""

    def __init__(self, max_bytes: int, size_of: Callable[[V], int], *, min_values: int = 0) -> None:
        """Keep at most `max_bytes`, measured by `size_of`. The `min_values` most recently used values always stay."""
        self._max_bytes, self._size_of, self._min_values = max_bytes, size_of, min_values
        self._values: OrderedDict[K, V] = OrderedDict()  # the most recently used value is at the end
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        return sum(self._size_of(value) for value in list(self._values.values()))

    def get_or_fetch(self, key: K, fetch: Callable[[], V]) -> V:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = fetch()
        with self._lock:
            self._values[key] = value
            total_bytes = self.memory_bytes
            while total_bytes > self._max_bytes and len(self._values) > self._min_values:
                total_bytes -= self._size_of(self._values.popitem(last=False)[1])
        return value


READABLE_COLUMNS: Final = ("publish_ms", "deliver_at_ms", "producer", "sequence_id", "key", "payload", "properties")

_DELIVERY_COLUMN: Final = "deliver_at_ms"
_ENTRIES_PER_CHUNK: Final = 1024
"""Number of entries that are converted together. With a small number, a reader that stops early wastes little work."""
_EMPTY_BITMAP: Final = BitMap()


class ExcludedEntries(Protocol):
    """Entries that a reader skips, by ledger. Any mapping from ledger to entries implements this protocol."""

    def get(self, ledger_id: LedgerId, default: BitMap, /) -> BitMap:
        """Return the excluded entries of a ledger. A reader calls this before it fetches a segment of the ledger."""


class Postponer(Protocol):
    """Receiver of delayed messages that a reader skips because they are not due."""

    def due_ms(self) -> int:
        """Return the time up to which messages are due now, inclusive, in milliseconds since 1970."""

    def postpone(self, ledger_id: LedgerId, deliver_at_ms_by_entry: Mapping[int, int]) -> None:
        """Receive the delivery times of skipped messages, by entry id. A message may be received several times."""


@dataclass(frozen=True, slots=True)
class DiscardingPostponer:
    clock: Clock

    def due_ms(self) -> int:
        return self.clock.now_us() // 1000

    def postpone(self, ledger_id: LedgerId, deliver_at_ms_by_entry: Mapping[int, int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFilter:
    columns: tuple[str, ...]
    state: CursorState | None = None
    up_to: Position | None = None
    hidden: Mapping[LedgerId, BitMap] = field(default_factory=dict)
    excluded: ExcludedEntries = field(default_factory=dict[LedgerId, BitMap])  # asked for each segment
    postponer: Postponer | None = None  # None: messages that are not due are also returned

    def select_entries(self, segment: Segment, at: Position) -> BitMap:
        """Return the entries of the segment from `at` on that pass the filter. Delivery times are ignored."""
        first, end = segment.first_entry, segment.first_entry + segment.entries
        if segment.ledger_id == at.ledger_id:
            first = max(first, at.entry_id)
        if self.up_to and segment.ledger_id >= self.up_to.ledger_id:
            end = min(end, self.up_to.entry_id + 1) if segment.ledger_id == self.up_to.ledger_id else first
        left_out = self.hidden.get(segment.ledger_id, _EMPTY_BITMAP)
        if self.state is not None:
            mark = self.state.mark_delete
            if segment.ledger_id <= mark.ledger_id:
                first = max(first, mark.entry_id + 1) if segment.ledger_id == mark.ledger_id else end
            left_out = left_out | self.state.acknowledged.get(segment.ledger_id, _EMPTY_BITMAP)
        return BitMap(range(first, end)) - left_out - self.excluded.get(segment.ledger_id, _EMPTY_BITMAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSegment:
    """Visible entries of one segment, with their columns."""

    segment: Segment
    ids: BitMap
    table: "pa.Table | None"  # all rows of the segment; None: `ids` is empty
    deliver_at_ms_by_entry: Mapping[int, int]  # delivery time by entry id, for entries that are not due

    @property
    def end(self) -> Position:
        return Position(self.segment.ledger_id, self.segment.first_entry + self.segment.entries)

    def iterate_entries(self, columns: Sequence[str]) -> Iterator[Entry]:
        remaining = iter(self.ids)
        while self.table is not None and (entry_ids := list(islice(remaining, _ENTRIES_PER_CHUNK))):
            rows = self.table.take([entry_id - self.segment.first_entry for entry_id in entry_ids])
            values = {name: rows.column(name).to_pylist() for name in columns}
            for at, entry_id in enumerate(entry_ids):
                row = {name: column[at] for name, column in values.items()}
                yield _to_entry(Position(self.segment.ledger_id, entry_id), row)


def fetch_segment(
    fetch: "Fetch", ledger: Ledger, segment: Segment, ids: BitMap, read_filter: ReadFilter
) -> FetchedSegment:
    """Fetch the columns of the entries `ids`. `fetch` has the parameters of `SegmentSource.read`."""
    if read_filter.postponer is None or not ids or segment.delayed == 0:
        table = fetch(ledger, segment, read_filter.columns) if ids else None
        return FetchedSegment(segment=segment, ids=ids, table=table, deliver_at_ms_by_entry={})
    has_due_entries = segment.delayed < len(ids)
    fetches_times_first = (
        "payload" in read_filter.columns and segment.size_bytes > MAX_WHOLE_READ_BYTES and not has_due_entries
    )
    first_columns = (
        (_DELIVERY_COLUMN,) if fetches_times_first else tuple(dict.fromkeys((*read_filter.columns, _DELIVERY_COLUMN)))
    )
    table = fetch(ledger, segment, first_columns)
    later = _find_messages_not_due(table, segment, ids, read_filter.postponer.due_ms())
    due = ids - BitMap(later)
    if fetches_times_first:
        table = fetch(ledger, segment, read_filter.columns) if due else None
    return FetchedSegment(segment=segment, ids=due, table=table if due else None, deliver_at_ms_by_entry=later)


def _find_messages_not_due(table: "pa.Table", segment: Segment, ids: BitMap, due_ms: int) -> dict[int, int]:
    import numpy as np  # noqa: PLC0415 - start-up time

    times = table.column(_DELIVERY_COLUMN).fill_null(0).to_numpy()
    entries = np.asarray(ids.to_array(), dtype=np.int64)
    entry_times = times[entries - segment.first_entry]
    is_postponed = entry_times > due_ms
    return dict(zip(entries[is_postponed].tolist(), entry_times[is_postponed].tolist(), strict=True))


def _to_entry(position: Position, row: dict[str, Any]) -> Entry:
    row["properties"] = dict(row.get("properties") or ())
    return Entry(position=position, **row)


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
        """Yield visible entries in order, up to the first message of an open transaction.

        Args:
            topic: Topic to read.
            from_position: First entry, inclusive. If the ledger was trimmed, the scan begins at the next listed ledger.
            columns: Names from `READABLE_COLUMNS`. Other columns are not fetched and are `None`, except `publish_ms`.
            cursor_state: State whose acknowledged entries are skipped. With it, messages that are not due are skipped.
            up_to: Last entry, inclusive.
            frontier: Frontier that the caller has just read, with the hidden entries from the first scanned ledger on.
            excluded: Entries to skip. A segment is not fetched if all its requested entries are skipped.
            postponer: Receives messages that are not due, and decides which messages are due. With `None`, delayed
                messages are skipped only if `cursor_state` is given.

        Raises:
            InvalidInput: A column is unknown.
            MissingData: A listed ledger lacks an object.
            CorruptData: The object of a segment differs from the segment's row.
            StoreUnavailable, CatalogBusy: Storage or catalog did not answer.
        """
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
        self, topic: Topic, positions: Sequence[Position], *, columns: Sequence[str] = READABLE_COLUMNS
    ) -> list[Entry]:
        """Return entries by position, in the given order. Trimmed and hidden entries are absent.

        Delivery times are ignored. Each segment is fetched once and cached. Raise the errors of `scan`.
        """
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
