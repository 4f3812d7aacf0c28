"""Snapshots of index buckets in storage. The object of a snapshot is the only segment of a `DELAYED_INDEX` ledger.

A reader fetches the footer, and then one snapshot segment at a time, by byte ranges. The object's metadata has a digest
of the footer, and the footer has a digest of each snapshot segment. Footers are cached, because each read needs the
footer.

*Publication of built index buckets.* One switch replaces all index buckets of a topic by those that a bulk job has
built for one list version. If a seal or a merge has changed the list since the build began, the built index buckets are
not published. Nothing is lost, because the changed list covers at least the same range of the log. A publication that
dies leaves newborn ledgers, which a sweep deletes.

Source: PIP-195 (bucket snapshots in ledgers of their own).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.catalog.log.message_ledgers import MessageLedgers
from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.index_buckets import IndexBucket
from logstore.delayed.index_build_job import BuiltIndexFiles, BuiltTopicIndex
from logstore.delayed.snapshot_file import (
    IndexSnapshotFooter,
    check_segment_digest,
    parse_snapshot_footer,
    read_segment,
)
from logstore.delayed.tracker import IndexSnapshotGone
from logstore.errors import CorruptData, StoreUnavailable
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import Component
from logstore.log.segment_format import parquet_errors
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, ParquetLedgerDraft
from logstore.log.services.entry_reader import ReadCache
from logstore.log.services.segment_reader import SegmentGone, open_range_file, read_footer, row_group_byte_range
from logstore.log.services.upload_read_back import reread_if_corrupt
from logstore.ports.catalog.delayed import IndexBucketSwitch, NewIndexBucket
from logstore.ports.catalog.log import Segment
from logstore.ports.object_storage import ObjectStore
from logstore.positions import LedgerId, TopicId
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow.parquet as pq


_FOOTER_CACHE_BYTES: Final = 64 << 20
"""Maximum size of cached footers. This is enough for the footers of some ten million messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedFooter:
    row: Segment
    metadata: "pq.FileMetaData"
    footer: IndexSnapshotFooter  # without bitmaps: `read_footer` parses them again


class IndexBucketSnapshots:
    """Writer and reader of snapshots of index buckets. Thread-safe. Cached footers take at most about `cache_bytes`."""

    def __init__(
        self,
        *,
        ledgers: MessageLedgers,
        contents: ComponentLedgers,
        objects: ObjectStore,
        cache_bytes: int = _FOOTER_CACHE_BYTES,
    ) -> None:
        self._ledgers, self._contents, self._objects = ledgers, contents, objects
        self._footers = ReadCache[LedgerId, _CachedFooter](
            cache_bytes, lambda cached: cached.metadata.serialized_size, min_values=1
        )

    @property
    def memory_bytes(self) -> int:
        return self._footers.memory_bytes

    def store_and_publish(
        self, file: BinaryIO, footer: IndexSnapshotFooter, publish: Callable[[NewIndexBucket], bool]
    ) -> bool:
        """Store a complete seekable snapshot file, and publish it as an index bucket. Return the result of `publish`.

        Idempotency: none, because each call makes a new ledger. `publish` must be idempotent, because `publish` is
        called again if its outcome is not known.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, UploadUnproven, OutcomeUnknown: All retries failed.
        """
        return self._contents.write_and_publish(
            _draft(file, footer), lambda created: publish(_new_bucket(created, footer))
        )

    def store_snapshot(self, file: BinaryIO, footer: IndexSnapshotFooter) -> NewIndexBucket:
        """Store a snapshot file without publishing it. Raise the errors of `store_and_publish`."""
        return _new_bucket(self._contents.write_unlisted(_draft(file, footer)), footer)

    def read_footer(self, bucket: IndexBucket) -> IndexSnapshotFooter:
        cached = self._open(bucket)
        return parse_snapshot_footer(cached.metadata, _object_key(bucket))

    def read_segment(self, bucket: IndexBucket, number: int) -> DelayedRows:
        cached = self._open(bucket)
        return reread_if_corrupt(lambda: self._read_segment(bucket, cached, number))

    def _read_segment(self, bucket: IndexBucket, cached: _CachedFooter, number: int) -> DelayedRows:
        name = _object_key(bucket)
        start, length = row_group_byte_range(cached.metadata, number)
        with _translate_segment_gone(bucket):
            file = open_range_file(self._objects, cached.row)
            content = file.read_range(start, length)
            check_segment_digest(cached.footer, number, content)
            file.hold_parts([(start, content)], refuse_other_reads=True)
            source = cast("BinaryIO", file)
            return read_segment(source, number, footer=cached.footer, metadata=cached.metadata, name=name)

    def iterate_rows(self, bucket: IndexBucket) -> Iterator[DelayedRows]:
        for number in range(bucket.segments):
            raise_if_stopped()
            yield self.read_segment(bucket, number)

    def _open(self, bucket: IndexBucket) -> _CachedFooter:
        return self._footers.get_or_fetch(
            bucket.bucket_id, lambda: reread_if_corrupt(lambda: self._fetch_footer(bucket))
        )

    def _fetch_footer(self, bucket: IndexBucket) -> _CachedFooter:
        rows, name = self._ledgers.list_segments(bucket.bucket_id), _object_key(bucket)
        if not rows:
            raise IndexSnapshotGone(f"{name}: the catalog has no such ledger")
        with _translate_segment_gone(bucket):
            metadata = read_footer(self._objects, rows[0]).parsed
        footer = parse_snapshot_footer(metadata, name)
        stored = _to_bucket(bucket.bucket_id, footer)
        if stored != bucket:
            raise CorruptData(f"{name}: expected {bucket}, found {stored}")
        return _CachedFooter(row=rows[0], metadata=metadata, footer=replace(footer, compressed_bitmaps=b""))


@contextmanager
def _translate_segment_gone(bucket: IndexBucket) -> Iterator[None]:
    try:
        yield
    except SegmentGone as gone:
        raise IndexSnapshotGone(f"{_object_key(bucket)}: storage has no such object") from gone


def _object_key(bucket: IndexBucket) -> str:
    return segment_key(bucket.bucket_id, 0)


def _draft(file: BinaryIO, footer: IndexSnapshotFooter) -> ParquetLedgerDraft:
    facts = {"first": str(footer.first), "last": str(footer.last), "messages": str(footer.messages)}
    return ParquetLedgerDraft(
        topic_id=footer.topic_id, component=Component.DELAYED_INDEX, keys={}, file=file, facts=facts
    )


def _new_bucket(created: CreatedLedger, footer: IndexSnapshotFooter) -> NewIndexBucket:
    return NewIndexBucket(
        bucket=_to_bucket(created.ledger_id, footer), size_bytes=created.size_bytes, sha256=created.sha256
    )


def _to_bucket(bucket_id: LedgerId, footer: IndexSnapshotFooter) -> IndexBucket:
    return IndexBucket(
        bucket_id=bucket_id,
        first=footer.first,
        last=footer.last,
        messages=footer.messages,
        segments=len(footer.segments),
        first_ms=footer.first_ms,
        last_ms=footer.last_ms,
    )


_AUDIT_REASON: Final = "built anew from the log"


class BuiltIndexPublisher:
    def __init__(self, *, index: DelayedIndex, snapshots: IndexBucketSnapshots) -> None:
        self._index, self._snapshots = index, snapshots

    def publish_built_index(self, built: BuiltTopicIndex, files: BuiltIndexFiles) -> bool:
        """Switch the topic's list to built index buckets. Return `False` if the list has changed since the build began.

        Idempotency: if the list already consists of the built index buckets, return `True` and change nothing.

        Raises:
            CorruptData: A file is no snapshot, or a snapshot of another topic.
            UnknownObject, PreconditionFailed: The topic does not exist any more, or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, OutcomeUnknown: Repeat the call. `StoreUnavailable` can also
                mean that a sweep deleted snapshots of this call as abandoned, because the call took too long.
        """
        footers = [_read_footer(files.snapshot_path(name), built.topic_id) for name in built.files]
        listed = self._index.get_bucket_list(built.topic_id)
        if listed.version != built.expected_version:
            is_same = [_properties(bucket) for bucket in listed.buckets] == [_properties(footer) for footer in footers]
            return is_same and listed.sealed_to == built.sealed_to
        added = [
            self._store(files.snapshot_path(name), footer) for name, footer in zip(built.files, footers, strict=True)
        ]
        switch = IndexBucketSwitch(
            topic_id=built.topic_id,
            expected=built.expected_version,
            removed=built.removed,
            added=tuple(added),
            sealed_to=built.sealed_to,
            reason=_AUDIT_REASON,
        )
        is_switched = self._index.switch_buckets(switch)
        if not is_switched and self._index.get_bucket_list(built.topic_id).version == built.expected_version:
            raise StoreUnavailable(f"topic {built.topic_id}: its new snapshots were given up before all were stored")
        return is_switched

    def _store(self, path: Path, footer: IndexSnapshotFooter) -> NewIndexBucket:
        raise_if_stopped()
        with path.open("rb") as file:
            return self._snapshots.store_snapshot(file, footer)


def _read_footer(path: Path, topic_id: TopicId) -> IndexSnapshotFooter:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    try:
        footer = parse_snapshot_footer(pq.read_metadata(path), path.name)
    except parquet_errors() as error:
        raise CorruptData(f"{path}: not a snapshot: {error}") from error
    if footer.topic_id != topic_id:
        raise CorruptData(f"{path}: expected messages of topic {topic_id}, found those of topic {footer.topic_id}")
    return footer


def _properties(described: IndexBucket | IndexSnapshotFooter) -> tuple[object, ...]:
    return (described.first, described.last, described.messages, described.first_ms, described.last_ms)
