"""Merge of two neighbouring index buckets, the sources, into one new index bucket.

Memory has one snapshot segment of each source and the new footer, however large the index buckets are. The sources stay
in the list until the switch. A merge that dies leaves a newborn ledger, which a sweep deletes.

The merge leaves out messages that were due a minute before the merge began, because readers get due messages from the
log. Without this rule, repeated merges would never drop a message.

Source: PIP-195 (merging buckets); apache/pulsar#26251, where a merge loses a segment; apache/pulsar#26241, where small
bucket limits fail.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from pyroaring import BitMap

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.delayed.delayed_rows import DelayedRows, merge_sorted_sources
from logstore.delayed.entry_bitmaps import add_entries, first_position, remove_entries, subtract_entries
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.services.bucket_snapshots import IndexBucketSnapshots
from logstore.delayed.services.log_sealer import open_temporary_snapshot
from logstore.delayed.tracker import IndexSnapshotGone
from logstore.errors import CorruptData
from logstore.ports.catalog.delayed import IndexBucketSwitch, NewIndexBucket
from logstore.positions import LedgerId, TopicId

_AUDIT_REASON: Final = "merged into a larger bucket"
_PASSED_MS: Final = 60_000
"""Time after which a message that is due by the catalog's clock is also due by the clock of every process."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPair:
    """Result of a merge, as jobs store it."""

    switched: bool = False  # whether the new index bucket has replaced the two sources in the list
    messages: int = 0  # messages in the new index bucket; 0: there is no new index bucket
    passed: int = 0  # due messages that are in no index bucket any more
    damaged: LedgerId | None = None  # listed index bucket whose snapshot cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMergeResult(MergedPair):
    loads: int = field(default=0, compare=False)  # snapshot segments that were read
    load_s: float = field(default=0.0, compare=False)  # total time of these reads


class _MergeSourceReader:
    """Reader of the rows of index buckets. `bucket` is the index bucket that was read last, even if the read failed."""

    def __init__(self, snapshots: IndexBucketSnapshots) -> None:
        self._snapshots = snapshots
        self.bucket: IndexBucket
        self.loads, self.load_s = 0, 0.0

    def iterate_rows(self, bucket: IndexBucket) -> Iterator[DelayedRows]:
        segments = self._snapshots.iterate_rows(bucket)
        while True:
            self.bucket, started_s = bucket, time.monotonic()
            rows = next(segments, None)
            if rows is None:
                return
            self.loads, self.load_s = self.loads + 1, self.load_s + time.monotonic() - started_s
            yield rows


class Merger:
    """Merger of index buckets. Thread-safe. A merge needs space for a snapshot in the folder `scratch`."""

    def __init__(self, *, index: DelayedIndex, snapshots: IndexBucketSnapshots, scratch: Path) -> None:
        self._index, self._snapshots, self._scratch = index, snapshots, scratch

    def merge_pair(
        self, topic_id: TopicId, pair: tuple[LedgerId, LedgerId], *, progress: Callable[[int], None] = lambda _: None
    ) -> IndexMergeResult:
        """Replace two neighbouring index buckets by one. `pair` has the ids of these index buckets, in log order.

        `progress` is called repeatedly with the number of messages written so far.

        Idempotency: if the two index buckets are not listed any more, nothing changes. If two merges of a pair run at
        once, one merge succeeds. The other merge is refused, and an intent is filed for its newborn ledger.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist any more, or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, OutcomeUnknown: Repeat the call.
        """
        listed = self._index.get_bucket_list(topic_id)
        first = next((number for number, bucket in enumerate(listed.buckets) if bucket.bucket_id == pair[0]), None)
        sources = () if first is None else listed.buckets[first : first + 2]
        if tuple(bucket.bucket_id for bucket in sources) != pair:
            return IndexMergeResult()
        reader = _MergeSourceReader(self._snapshots)
        try:
            result = self._store_merged_and_switch(topic_id, listed.version, sources, reader, progress)
        except (IndexSnapshotGone, CorruptData) as unreadable:
            if reader.bucket.bucket_id not in {
                bucket.bucket_id for bucket in self._index.get_bucket_list(topic_id).buckets
            }:
                return IndexMergeResult()
            _LOG.error("topic %s: bucket %s cannot be read: %s", topic_id, reader.bucket.bucket_id, unreadable)
            result = IndexMergeResult(damaged=reader.bucket.bucket_id)
        return replace(result, loads=reader.loads, load_s=reader.load_s)

    def _store_merged_and_switch(
        self,
        topic_id: TopicId,
        version: int,
        sources: tuple[IndexBucket, ...],
        reader: _MergeSourceReader,
        progress: Callable[[int], None],
    ) -> IndexMergeResult:
        from_ms = self._index.now_ms() - _PASSED_MS
        removed = tuple(bucket.bucket_id for bucket in sources)
        switch = IndexBucketSwitch(topic_id=topic_id, expected=version, removed=removed, reason=_AUDIT_REASON)

        def publish(added: NewIndexBucket) -> bool:
            return self._index.switch_buckets(replace(switch, added=(added,)))

        written_rows, entries = 0, self._unite_entries(sources, reader)
        first, last = sources[0].first, sources[-1].last
        with open_temporary_snapshot(self._scratch, topic_id, first, last, entries=entries) as (file, writer):
            on_skipped = partial(_remove_skipped_entries, entries, sources, reader)
            windows = [reader.iterate_rows(bucket) for bucket in sources]
            for window in merge_sorted_sources(windows, from_ms=from_ms, on_skipped=on_skipped):
                writer.add_rows(window)
                written_rows += len(window)
                progress(written_rows)
            if written_rows:
                is_switched = self._snapshots.store_and_publish(file, writer.close(), publish)
            else:
                is_switched = self._index.switch_buckets(switch)
        if not is_switched:
            return IndexMergeResult()
        passed = sum(bucket.messages for bucket in sources) - written_rows
        return IndexMergeResult(switched=True, messages=written_rows, passed=passed)

    def _unite_entries(self, sources: tuple[IndexBucket, ...], reader: _MergeSourceReader) -> dict[LedgerId, BitMap]:
        """Return the entries of all sources. Read them from the footers, which is faster than to read rows."""
        entries: dict[LedgerId, BitMap] = {}
        for bucket in sources:
            reader.bucket = bucket
            add_entries(entries, self._snapshots.read_footer(bucket).bitmaps)
        return entries


def _remove_skipped_entries(
    entries: dict[LedgerId, BitMap], sources: tuple[IndexBucket, ...], reader: _MergeSourceReader, rows: DelayedRows
) -> None:
    """Remove the skipped `rows` from `entries`, which are the entries of all sources.

    If a row is not in `entries`, set `reader.bucket` to the index bucket with this row, and raise `CorruptData`.
    """
    skipped = rows.to_bitmaps()
    if first := first_position(subtract_entries(skipped, entries)):
        reader.bucket = next((bucket for bucket in sources if first <= bucket.last), sources[-1])
        raise CorruptData(f"expected entry {first} of a segment in the bitmaps of the footer, too")
    remove_entries(entries, skipped)
