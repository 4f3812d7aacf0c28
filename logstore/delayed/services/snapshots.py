"""Snapshots of buckets in storage: each is the one segment of a `DELAYED_INDEX` ledger, and is read by ranges.

A reader asks for the footer, which its object's metadata has a digest of, and for one segment at a time, which the
footer has a digest of. Footers are kept, because a segment is of no use without one.

Source: PIP-195 (bucket snapshots in ledgers of their own).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from logstore.delayed.buckets import Bucket
from logstore.delayed.rows import DelayedRows
from logstore.delayed.snapshot_file import read_segment
from logstore.delayed.snapshot_footer import SnapshotFooter, check_segment_digest, parse_footer
from logstore.delayed.sources import SnapshotGone
from logstore.errors import CorruptData
from logstore.log.ledgers import Component, segment_key
from logstore.log.services.component_ledgers import ComponentLedgers, CreatedLedger, FileDraft
from logstore.log.services.read_ahead import ReadCache
from logstore.log.services.read_back import read_twice
from logstore.log.services.segment_file import SegmentGone, group_range, ranges_of, read_footer
from logstore.ports.catalog import Ledgers, NewBucket, Segment
from logstore.ports.objects import ObjectStore
from logstore.positions import LedgerId
from logstore.units import between_units

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_KEPT_BYTES: Final = 64 << 20
"""Footers that are kept, together: those of some ten million messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What is kept of one snapshot."""

    row: Segment
    metadata: "pq.FileMetaData"
    footer: SnapshotFooter  # without bitmaps; a reader that needs these loads a footer of its own


class BucketSnapshots:
    """Writes and reads snapshots. Threads share one."""

    def __init__(
        self, *, ledgers: Ledgers, contents: ComponentLedgers, objects: ObjectStore, kept_bytes: int = _KEPT_BYTES
    ) -> None:
        """Work on a log.

        Args:
            ledgers: Where the segment of each is looked up.
            contents: Writes the ledgers of components.
            objects: The primary bucket.
            kept_bytes: Of all footers that are kept.
        """
        self._ledgers, self._contents, self._objects = ledgers, contents, objects
        self._opened = ReadCache[LedgerId, _Opened](kept_bytes, lambda one: one.metadata.serialized_size, least=1)

    @property
    def memory_bytes(self) -> int:
        """What the footers take that are kept."""
        return self._opened.memory_bytes

    def write(self, file: BinaryIO, footer: SnapshotFooter, publish: Callable[[NewBucket], bool]) -> bool:
        """Store a snapshot file, which is seekable and whole, and publish it as a bucket; what `publish` answers.

        Idempotency: as `ComponentLedgers.write`; `publish` is repeated while its outcome is not known.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
            StoreUnavailable, CatalogBusy, UploadTimedOut, UploadUnproven, OutcomeUnknown: Bounded retries were not
                enough.
        """
        return self._contents.write(_draft(file, footer), lambda born: publish(_bucket(born, footer)))

    def store(self, file: BinaryIO, footer: SnapshotFooter) -> NewBucket:
        """Store a snapshot file that is in no list yet, for a switch that publishes several; raises as `write`."""
        return _bucket(self._contents.store(_draft(file, footer)), footer)

    def footer(self, bucket: Bucket) -> SnapshotFooter:
        """What the bucket's snapshot says of itself.

        Raises:
            SnapshotGone: Storage has no such object, or the catalog no such ledger.
            CorruptData: It is damaged, or not what the bucket's row says.
            StoreUnavailable, CatalogBusy: The catalog or storage did not answer.
        """
        opened = self._open(bucket)
        return parse_footer(opened.metadata, _name(bucket))

    def segment(self, bucket: Bucket, number: int) -> DelayedRows:
        """The rows of one of its segments, from 0; raises as `footer`."""
        opened = self._open(bucket)
        return read_twice(lambda: self._read_segment(bucket, opened, number))

    def _read_segment(self, bucket: Bucket, opened: _Opened, number: int) -> DelayedRows:
        name = _name(bucket)
        start, length = group_range(opened.metadata, number)
        with _telling_what_is_gone(bucket):
            file = ranges_of(self._objects, opened.row)
            content = file.read_range(start, length)
            check_segment_digest(opened.footer, number, content)
            file.hold([(start, content)], compared=bool(opened.footer.digests))
            source = cast("BinaryIO", file)
            return read_segment(source, number, footer=opened.footer, metadata=opened.metadata, name=name)

    def rows(self, bucket: Bucket) -> Iterator[DelayedRows]:
        """Its segments in order, each read when it is drawn; raises as `footer`."""
        for number in range(bucket.segments):
            between_units()
            yield self.segment(bucket, number)

    def _open(self, bucket: Bucket) -> _Opened:
        return self._opened.read(bucket.bucket_id, lambda: read_twice(lambda: self._read(bucket)))

    def _read(self, bucket: Bucket) -> _Opened:
        rows, name = self._ledgers.segments(bucket.bucket_id), _name(bucket)
        if not rows:
            raise SnapshotGone(f"{name}: the catalog has no such ledger")
        with _telling_what_is_gone(bucket):
            metadata = read_footer(self._objects, rows[0]).parsed
        footer = parse_footer(metadata, name)
        found = _facts(bucket.bucket_id, footer)
        if found != bucket:
            raise CorruptData(f"{name}: expected {bucket}, found {found}")
        return _Opened(row=rows[0], metadata=metadata, footer=replace(footer, compressed_bitmaps=b""))


@contextmanager
def _telling_what_is_gone(bucket: Bucket) -> Iterator[None]:
    """Within the block, a missing object is a missing snapshot."""
    try:
        yield
    except SegmentGone as gone:
        raise SnapshotGone(f"{_name(bucket)}: storage has no such object") from gone


def _name(bucket: Bucket) -> str:
    return segment_key(bucket.bucket_id, 0)


def _draft(file: BinaryIO, footer: SnapshotFooter) -> FileDraft:
    facts = {"first": str(footer.first), "last": str(footer.last), "messages": str(footer.messages)}
    return FileDraft(topic_id=footer.topic_id, component=Component.DELAYED_INDEX, keys={}, file=file, facts=facts)


def _bucket(born: CreatedLedger, footer: SnapshotFooter) -> NewBucket:
    return NewBucket(bucket=_facts(born.ledger_id, footer), size_bytes=born.size_bytes, sha256=born.sha256)


def _facts(bucket_id: LedgerId, footer: SnapshotFooter) -> Bucket:
    return Bucket(
        bucket_id=bucket_id,
        first=footer.first,
        last=footer.last,
        messages=footer.messages,
        segments=len(footer.segments),
        first_ms=footer.first_ms,
        last_ms=footer.last_ms,
    )
