"""Seal of a topic: the unsealed part of its log becomes index buckets. Index buckets that no reader needs are dropped.

A seal reads only delivery times, and only from segments with delayed messages. A seal ends with the last segment
before the first message of the oldest open transaction. A seal leaves out hidden entries. Due messages are left out,
too, because readers get due messages from the log.

Each new index bucket takes one switch of the topic's list. If the process dies, completed switches stay. A stored
snapshot without a switch is a newborn ledger, which a sweep deletes.

Source: PIP-195 (sealing the last mutable bucket); apache/pulsar#26251, where the loss of an index bucket loses
messages.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, cast

from pyroaring import BitMap

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.delayed.delayed_rows import DelayedRows, merge_row_ranges, select_delayed_rows
from logstore.delayed.entry_bitmaps import Bitmaps
from logstore.delayed.index_buckets import IndexBucketList, SealAndMergeLimits
from logstore.delayed.services.bucket_snapshots import IndexBucketSnapshots
from logstore.delayed.snapshot_file import IndexSnapshotWriter
from logstore.errors import MissingData
from logstore.log.services.entry_reader import Prefetcher
from logstore.log.services.segment_reader import SegmentGone, SegmentSource, TieredCopyFinder
from logstore.ports.catalog.delayed import IndexBucketSwitch
from logstore.ports.catalog.log import Ledger, Segment
from logstore.ports.catalog.transactions import Frontier
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


_AUDIT_REASON: Final = "all its messages have been due, or were acknowledged"


def should_seal(limits: SealAndMergeLimits, *, entries: int, ledgers: int, idle_s: float | None) -> bool:
    """Return whether the unsealed part of a log has reached one of `limits`.

    `entries` is the number of unsealed entries with a delivery time. `ledgers` is the number of ledgers with unsealed
    entries of any kind. `idle_s` is the age of the newest entry with a delivery time, or `None` if unknown.
    """
    if not entries:
        return False
    return entries >= limits.messages or ledgers >= limits.ledgers or (idle_s is not None and idle_s >= limits.idle_s)


@dataclass
class IndexBucketDraft:
    """Index bucket that is being filled. Segments are added in the order of the log."""

    first: Position  # first entry of the covered range
    last: Position | None = None  # last entry of the covered range; None before the first `add_segment`
    parts: list[DelayedRows] = field(default_factory=list)
    messages: int = 0
    ledgers: set[LedgerId] = field(default_factory=set)

    def add_segment(self, rows: DelayedRows, *, last: Position) -> None:
        self.last = last
        self.ledgers.add(last.ledger_id)
        if len(rows):
            self.parts.append(rows)
            self.messages += len(rows)

    def is_full(self, limits: SealAndMergeLimits) -> bool:
        """Return whether the draft has reached one of `limits`. A draft without messages is never full."""
        return self.messages >= limits.messages or (bool(self.messages) and len(self.ledgers) >= limits.ledgers)

    def merge_rows(self) -> DelayedRows:
        return merge_row_ranges(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealResult:
    buckets: int = 0  # new index buckets
    messages: int = 0  # messages in the new index buckets
    dropped: int = 0  # index buckets that no reader needed
    listed: int = 0  # present index buckets of the topic
    overtaken: bool = False  # another process changed the list meanwhile; the next seal continues


@contextmanager
def open_temporary_snapshot(
    folder: Path, topic_id: TopicId, first: Position, last: Position, *, entries: Bitmaps | None = None
) -> Iterator[tuple[BinaryIO, IndexSnapshotWriter]]:
    """Open an unnamed temporary file and a snapshot writer. The file disappears even if the process is killed.

    The folder is created if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as unnamed:
        file = cast("BinaryIO", unnamed)
        writer = IndexSnapshotWriter(file, topic_id, first, last, entries=entries)
        try:
            yield file, writer
        finally:
            writer.close_without_footer()  # no effect after `close`


@dataclass
class _Seal:
    topic_id: TopicId
    listed: IndexBucketList
    frontier: Frontier
    now_ms: int  # the catalog's clock at the start
    idle_s: float | None  # time since the newest delayed message came
    force: bool
    draft: IndexBucketDraft | None = None
    delayed_entries: int = 0  # entries of the draft's range that have a delivery time, due or not
    result: SealResult = SealResult()

    def should_seal(self, limits: SealAndMergeLimits, *, entries: int, ledgers: int) -> bool:
        return self.force or should_seal(limits, entries=entries, ledgers=ledgers, idle_s=self.idle_s)


class Sealer:
    """Sealer of topics. Thread-safe. A seal needs space for a snapshot in the folder `scratch`."""

    def __init__(
        self,
        *,
        index: DelayedIndex,
        transactions: Transactions,
        log: DeliveryTimeReader,
        snapshots: IndexBucketSnapshots,
        limits: SealAndMergeLimits,
        scratch: Path,
    ) -> None:
        self._index, self._transactions, self._log = index, transactions, log
        self._snapshots, self._limits, self._scratch = snapshots, limits, scratch

    def drop_buckets_and_seal(self, topic_id: TopicId, *, force: bool = False) -> SealResult:
        """Drop index buckets that no reader needs, and seal the log if it has reached a limit.

        With `force`, seal all visible entries, even if no limit is reached.

        Idempotency: a sealed part of the log is not sealed again. If two seals run at once, `overtaken` is
        set in the result of one seal.

        Raises:
            MissingData: A listed ledger lacks an object in every copy.
            CorruptData: A segment differs from its row in every copy.
            UnknownObject, PreconditionFailed: The topic does not exist any more, or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, OutcomeUnknown: Repeat the call.
        """
        dropped = self._drop_passed(topic_id)
        seal = self._plan_seal_if_due(topic_id, force=force)
        if seal:
            self._seal_log_into_buckets(seal)
        result = seal.result if seal else SealResult()
        return replace(result, dropped=dropped, listed=len(self._index.get_bucket_list(topic_id).buckets))

    def _drop_passed(self, topic_id: TopicId) -> int:
        """Drop the index buckets that no reader needs. If the list changes meanwhile, drop none and return 0."""
        listed = self._index.get_bucket_list(topic_id)
        passed = self._index.list_droppable_buckets(topic_id)
        if not passed:
            return 0
        drop = IndexBucketSwitch(
            topic_id=topic_id, expected=listed.version, removed=tuple(passed), reason=_AUDIT_REASON
        )
        return len(passed) if self._index.switch_buckets(drop) else 0

    def _plan_seal_if_due(self, topic_id: TopicId, *, force: bool) -> _Seal | None:
        listed, unsealed = self._index.get_bucket_list(topic_id), self._index.count_unsealed_entries(topic_id)
        frontier = self._transactions.read_frontier(topic_id, from_ledger=max(0, listed.sealed_to.ledger_id))
        if frontier.last is None:
            return None
        now_ms = self._index.now_ms()
        seal = _Seal(
            topic_id=topic_id,
            listed=listed,
            frontier=frontier,
            now_ms=now_ms,
            idle_s=None if unsealed.changed_us is None else (now_ms * 1_000 - unsealed.changed_us) / 1_000_000,
            force=force,
        )
        if not seal.should_seal(self._limits, entries=unsealed.entries, ledgers=unsealed.ledgers):
            return None
        # Count again without the part after an open transaction, because this part cannot be sealed yet.
        entries, ledgers = 0, set[LedgerId]()
        for _, segment in self._unsealed_segments(seal):
            entries += segment.delayed
            ledgers.add(segment.ledger_id)
        return seal if seal.should_seal(self._limits, entries=entries, ledgers=len(ledgers)) else None

    def _unsealed_segments(self, seal: _Seal) -> Iterator[tuple[Ledger, Segment]]:
        last = seal.frontier.last or seal.listed.sealed_to
        return self._log.iterate_segments(seal.topic_id, behind=seal.listed.sealed_to, last=last)

    def _seal_log_into_buckets(self, seal: _Seal) -> None:
        wanted = WaitingMessageFilter(topic_id=seal.topic_id, hidden=seal.frontier.hidden, now_ms=seal.now_ms)
        for segment, rows in self._log.read_delayed_rows(self._unsealed_segments(seal), wanted):
            seal.draft = seal.draft or IndexBucketDraft(Position(segment.ledger_id, segment.first_entry))
            seal.draft.add_segment(rows, last=last_position(segment))
            seal.delayed_entries += segment.delayed
            if seal.draft.is_full(self._limits) and not self._switch_to_draft(seal):
                return
        rest = seal.draft
        if rest and seal.should_seal(self._limits, entries=seal.delayed_entries, ledgers=len(rest.ledgers)):
            self._switch_to_draft(seal)

    def _switch_to_draft(self, seal: _Seal) -> bool:
        """Store the draft as an index bucket and add it to the list. A draft without messages only moves `sealed_to`.

        Return `False` if another process has changed the list.
        """
        draft = seal.draft
        assert draft is not None and draft.last is not None  # noqa: PT018 - one fact
        end, rows = draft.last, draft.merge_rows()
        switch = IndexBucketSwitch(topic_id=seal.topic_id, expected=seal.listed.version, sealed_to=end)
        is_switched = (
            self._store_snapshot_and_switch(seal, switch, draft.first, end, rows)
            if len(rows)
            else self._index.switch_buckets(switch)
        )
        seal.listed = self._index.get_bucket_list(seal.topic_id)
        if not is_switched or seal.listed.sealed_to != end:
            seal.result = replace(seal.result, overtaken=True)
            return False
        seal.result = SealResult(
            buckets=seal.result.buckets + bool(len(rows)), messages=seal.result.messages + len(rows)
        )
        seal.draft, seal.delayed_entries = None, 0
        return True

    def _store_snapshot_and_switch(
        self, seal: _Seal, switch: IndexBucketSwitch, first: Position, last: Position, rows: DelayedRows
    ) -> bool:
        with open_temporary_snapshot(self._scratch, seal.topic_id, first, last) as (file, writer):
            writer.add_rows(rows)
            footer = writer.close()
            return self._snapshots.store_and_publish(
                file, footer, lambda added: self._index.switch_buckets(replace(switch, added=(added,)))
            )
