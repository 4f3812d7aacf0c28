"""What the snapshot of a bucket says of itself, in its file's footer: its range, facts of each segment, and bitmaps.

Source: PIP-195 (metadata of bucket snapshots).
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from logstore.cursors.state import pack_acknowledged, unpack_acknowledged
from logstore.delayed.bitmaps import Bitmaps, count
from logstore.errors import CorruptData
from logstore.log.chunk_digests import chunk_digest
from logstore.log.entries import unreadable
from logstore.positions import LedgerId, Position, TopicId

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_VERSION: Final = 1
_LENGTH: Final = struct.Struct("<I")
_FACTS: Final = b"sexton.delayed"
_BITMAPS: Final = b"sexton.delayed.bitmaps"


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment: rows of a stretch of time. Times are milliseconds since 1970, UTC, inclusive."""

    messages: int  # 1 or more
    first_ms: int
    last_ms: int


@dataclass(frozen=True, kw_only=True)
class SnapshotFooter:
    """What a snapshot says of itself: enough to know what is tracked, and which segment to read when."""

    topic_id: TopicId
    first: Position  # the range of the log that the bucket covers, inclusive
    last: Position
    segments: tuple[SegmentFacts, ...]  # ascending by time; 1 or more
    packed: bytes  # the bitmaps, compressed
    digests: tuple[str, ...] = ()  # of the bytes of each segment; empty: written before segments had digests
    name: str = "delayed snapshot"  # of the object, for errors

    @property
    def messages(self) -> int:
        """Messages of all segments."""
        return sum(segment.messages for segment in self.segments)

    @property
    def first_ms(self) -> int:
        """The earliest delivery time."""
        return self.segments[0].first_ms

    @property
    def last_ms(self) -> int:
        """The latest delivery time."""
        return self.segments[-1].last_ms

    @cached_property
    def bitmaps(self) -> Mapping[LedgerId, BitMap]:
        """The entries of the whole bucket, by ledger; no bitmap is to be changed in place.

        Raises:
            CorruptData: They are none, or not as many entries as the segments have.
        """
        found = unpack_acknowledged(_expanded(self.packed, self.name))
        held = count(found)
        if held != self.messages:
            raise CorruptData(f"{self.name}: expected bitmaps of {self.messages} messages, found {held}")
        ends = [Position(ledger_id, at) for ledger_id, bits in found.items() if bits for at in (bits.min(), bits.max())]
        if ends and not self.first <= min(ends) <= max(ends) <= self.last:
            raise CorruptData(f"{self.name}: expected {self.first} to {self.last}, found {min(ends)} to {max(ends)}")
        return found


def parse_footer(metadata: "pq.FileMetaData", name: str) -> SnapshotFooter:
    """What the footer of a snapshot says.

    Args:
        metadata: Of a file whose footer was compared with its digest.
        name: What to call the object in an error.

    Raises:
        CorruptData: It is none of a snapshot, of a format that this build does not know, or contradicts itself.
    """
    told: Mapping[bytes, bytes] = metadata.metadata or {}
    try:
        found = json.loads(told[_FACTS])
        if found["version"] != _VERSION:
            raise CorruptData(f"{name}: expected version {_VERSION} of a delayed snapshot, found {found['version']}")
        footer = SnapshotFooter(
            topic_id=TopicId(int(found["topic_id"])),
            first=_position(found["first"]),
            last=_position(found["last"]),
            segments=tuple(SegmentFacts(*(int(value) for value in facts)) for facts in found["segments"]),
            packed=told[_BITMAPS],
            digests=tuple(str(digest) for digest in found.get("digests", ())),
            name=name,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{name}: not a delayed snapshot: {error!r}") from error
    times = [ms for segment in footer.segments for ms in (segment.first_ms, segment.last_ms)]
    if times != sorted(times):
        raise CorruptData(f"{name}: expected segments in the order of their times, found {times[:20]}")
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if not groups or groups != [segment.messages for segment in footer.segments]:
        raise CorruptData(f"{name}: expected segments of {[one.messages for one in footer.segments]}, found {groups}")
    if footer.digests and len(footer.digests) != len(groups):
        raise CorruptData(f"{name}: expected digests of {len(groups)} segments, found {len(footer.digests)}")
    return footer


def check_segment(footer: SnapshotFooter, number: int, content: bytes) -> None:
    """Compare the bytes of a segment with the digest in the footer.

    A snapshot that an earlier build wrote has none: its pages carry checksums, which tell no bytes of another snapshot.

    Raises:
        CorruptData: They have another digest.
    """
    if footer.digests and chunk_digest(content) != footer.digests[number]:
        expected, found = footer.digests[number], chunk_digest(content)
        raise CorruptData(f"{footer.name}, segment {number}: expected digest {expected}, found {found}")


def to_metadata(footer: SnapshotFooter) -> dict[bytes, bytes]:
    """What `parse_footer` reads back from the metadata of a file."""
    document = {
        "version": _VERSION,
        "topic_id": int(footer.topic_id),
        "first": [int(footer.first.ledger_id), footer.first.entry_id],
        "last": [int(footer.last.ledger_id), footer.last.entry_id],
        "segments": [[one.messages, one.first_ms, one.last_ms] for one in footer.segments],
        "digests": list(footer.digests),
    }
    return {_FACTS: json.dumps(document, sort_keys=True).encode(), _BITMAPS: footer.packed}


def compressed(bitmaps: Bitmaps) -> bytes:
    """Bitmaps as a footer holds them: packed and compressed, with the length before.

    Entries that lie apart take two bytes each, of which one hardly differs.
    """
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    packed = pack_acknowledged(bitmaps)
    return _LENGTH.pack(len(packed)) + bytes(pa.compress(packed, codec="zstd", asbytes=True))


def _expanded(compressed: bytes, name: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    if len(compressed) < _LENGTH.size:
        raise CorruptData(f"{name}: expected bitmaps, found {len(compressed)} bytes")
    (length,) = _LENGTH.unpack_from(compressed)
    try:
        return bytes(pa.decompress(compressed[_LENGTH.size :], length, codec="zstd", asbytes=True))
    except unreadable() as error:
        raise CorruptData(f"{name}: bitmaps that cannot be read: {error}") from error


def _position(pair: Any) -> Position:  # noqa: ANN401 - of JSON
    ledger_id, entry_id = pair
    return Position(LedgerId(int(ledger_id)), int(entry_id))
