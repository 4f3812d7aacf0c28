"""Footer of an index bucket's snapshot: covered range, summary of each snapshot segment, and bitmaps of all entries.

Source: PIP-195 (metadata of bucket snapshots).
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from logstore.cursors.cursor_state import pack_acknowledged, unpack_acknowledged
from logstore.delayed.entry_bitmaps import Bitmaps, count_entries
from logstore.errors import CorruptData
from logstore.log.segment_format import digest_chunk, parquet_errors
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_FORMAT_VERSION: Final = 1
_LENGTH_PREFIX: Final = struct.Struct("<I")
_SUMMARY_KEY: Final = b"sexton.delayed"
_BITMAPS_KEY: Final = b"sexton.delayed.bitmaps"


@dataclass(frozen=True, slots=True)
class IndexSnapshotSegment:
    """Summary of one snapshot segment. Times are delivery times in milliseconds since 1970, UTC."""

    messages: int  # 1 or more
    first_ms: int
    last_ms: int  # inclusive


@dataclass(frozen=True, kw_only=True)
class IndexSnapshotFooter:
    topic_id: TopicId
    first: Position  # first entry of the range that the index bucket covers
    last: Position  # last entry of that range, inclusive
    segments: tuple[IndexSnapshotSegment, ...]  # ascending by time; 1 or more
    compressed_bitmaps: bytes
    digests: tuple[str, ...]  # digest of the bytes of each snapshot segment
    name: str = "delayed snapshot"  # name of the object in errors

    @property
    def messages(self) -> int:
        return sum(segment.messages for segment in self.segments)

    @property
    def first_ms(self) -> int:
        return self.segments[0].first_ms

    @property
    def last_ms(self) -> int:
        return self.segments[-1].last_ms

    @cached_property
    def bitmaps(self) -> Mapping[LedgerId, BitMap]:
        """Entries of the whole index bucket, by ledger. Callers share the bitmaps and must not change them.

        Raise `CorruptData` if the bitmaps cannot be read, or disagree with the snapshot segments or the covered range.
        """
        entries = unpack_acknowledged(_decompress_bitmaps(self.compressed_bitmaps, self.name))
        entry_count = count_entries(entries)
        if entry_count != self.messages:
            raise CorruptData(f"{self.name}: expected bitmaps of {self.messages} messages, found {entry_count}")
        ends = [
            Position(ledger_id, entry_id)
            for ledger_id, bits in entries.items()
            if bits
            for entry_id in (bits.min(), bits.max())
        ]
        if ends and not self.first <= min(ends) <= max(ends) <= self.last:
            raise CorruptData(f"{self.name}: expected {self.first} to {self.last}, found {min(ends)} to {max(ends)}")
        return entries


def parse_snapshot_footer(metadata: "pq.FileMetaData", name: str) -> IndexSnapshotFooter:
    """Return the content of a snapshot's footer. The caller must have checked the digest of `metadata`.

    Raise `CorruptData` if the file is no snapshot, has an unknown format, or contradicts itself.
    """
    pairs: Mapping[bytes, bytes] = metadata.metadata or {}
    try:
        summary = json.loads(pairs[_SUMMARY_KEY])
        version = summary["version"]
        if version != _FORMAT_VERSION:
            raise CorruptData(f"{name}: expected version {_FORMAT_VERSION} of a delayed snapshot, found {version}")
        footer = IndexSnapshotFooter(
            topic_id=TopicId(int(summary["topic_id"])),
            first=_parse_position(summary["first"]),
            last=_parse_position(summary["last"]),
            segments=tuple(IndexSnapshotSegment(*(int(value) for value in segment)) for segment in summary["segments"]),
            compressed_bitmaps=pairs[_BITMAPS_KEY],
            digests=tuple(str(digest) for digest in summary["digests"]),
            name=name,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{name}: not a delayed snapshot: {error!r}") from error
    times = [ms for segment in footer.segments for ms in (segment.first_ms, segment.last_ms)]
    if times != sorted(times):
        raise CorruptData(f"{name}: expected segments in the order of their times, found {times[:20]}")
    row_counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    expected_counts = [segment.messages for segment in footer.segments]
    if not row_counts or row_counts != expected_counts:
        raise CorruptData(f"{name}: expected segments of {expected_counts} rows, found {row_counts}")
    if len(footer.digests) != len(row_counts):
        raise CorruptData(f"{name}: expected digests of {len(row_counts)} segments, found {len(footer.digests)}")
    return footer


def check_segment_digest(footer: IndexSnapshotFooter, number: int, content: bytes) -> None:
    if digest_chunk(content) != footer.digests[number]:
        expected, found = footer.digests[number], digest_chunk(content)
        raise CorruptData(f"{footer.name}, segment {number}: expected digest {expected}, found {found}")


def footer_to_metadata(footer: IndexSnapshotFooter) -> dict[bytes, bytes]:
    summary = {
        "version": _FORMAT_VERSION,
        "topic_id": int(footer.topic_id),
        "first": [int(footer.first.ledger_id), footer.first.entry_id],
        "last": [int(footer.last.ledger_id), footer.last.entry_id],
        "segments": [[segment.messages, segment.first_ms, segment.last_ms] for segment in footer.segments],
        "digests": list(footer.digests),
    }
    return {_SUMMARY_KEY: json.dumps(summary, sort_keys=True).encode(), _BITMAPS_KEY: footer.compressed_bitmaps}


def compress_bitmaps(bitmaps: Bitmaps) -> bytes:
    """Pack and compress bitmaps. The result begins with the length of the packed, uncompressed bitmaps.

    An entry id that does not adjoin another id of its bitmap is packed into two bytes. The high byte varies little and
    compresses well.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    packed = pack_acknowledged(bitmaps)
    return _LENGTH_PREFIX.pack(len(packed)) + bytes(pa.compress(packed, codec="zstd", asbytes=True))


def _decompress_bitmaps(compressed: bytes, name: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    if len(compressed) < _LENGTH_PREFIX.size:
        raise CorruptData(f"{name}: expected bitmaps, found {len(compressed)} bytes")
    (length,) = _LENGTH_PREFIX.unpack_from(compressed)
    try:
        return bytes(pa.decompress(compressed[_LENGTH_PREFIX.size :], length, codec="zstd", asbytes=True))
    except parquet_errors() as error:
        raise CorruptData(f"{name}: the bitmaps cannot be read: {error}") from error


def _parse_position(pair: Any) -> Position:  # noqa: ANN401 - of JSON
    ledger_id, entry_id = pair
    return Position(LedgerId(int(ledger_id)), int(entry_id))
