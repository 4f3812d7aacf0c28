"""Bytes as a Pulsar cluster writes them, made here without the messages that Sexton parses them with."""

import struct
from collections.abc import Mapping, Sequence
from uuid import UUID

Field = tuple[int, int | bytes | str]


def encode_varint(number: int) -> bytes:
    number %= 1 << 64  # negative numbers are in two's complement
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def encode_message(*fields: Field) -> bytes:
    """Encode fields: an `int` as a varint, bytes (also nested messages) and texts with their length."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, int):
            encoded += encode_varint(number << 3) + encode_varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            encoded += encode_varint(number << 3 | 2) + encode_varint(len(data)) + data
    return encoded


def pair(key: str, value: str | int) -> bytes:
    return encode_message((1, key), (2, value))


def offload_context(uuid: UUID, *, complete: bool, bookkeeper_deleted: bool = False, bucket: str = "tiered") -> bytes:
    most, least = (half - (1 << 64) if half >> 63 else half for half in divmod(uuid.int, 1 << 64))
    driver = encode_message((1, "S3"), (2, pair("bucket", bucket)), (2, pair("region", "here")))
    return encode_message((1, most), (2, least), (3, complete), (4, bookkeeper_deleted), (6, driver))


def managed_ledger(
    ledger_ids: Sequence[int], *, offloads: Mapping[int, bytes] | None = None, shadow: str = ""
) -> bytes:
    """Encode `ManagedLedgerInfo`: closed ledgers of ten entries."""
    offloads = offloads or {}
    ledgers = [
        encode_message((1, each), (2, 10), (3, 100), (4, 1_700), *([(5, offloads[each])] if each in offloads else []))
        for each in ledger_ids
    ]
    properties = [(3, pair("PULSAR.SHADOW_SOURCE", shadow))] if shadow else []
    return encode_message(*((1, each) for each in ledgers), *properties)


def cursor(ledger_id: int, *, compacted: int | None = None, buckets: Mapping[str, str] | None = None) -> bytes:
    """Encode `ManagedCursorInfo`."""
    compacted_property = [] if compacted is None else [(5, pair("CompactedTopicLedger", compacted))]
    bucket_properties = [
        (8, pair(f"#pulsar.internal.delayed.bucket_{span}", value)) for span, value in (buckets or {}).items()
    ]
    return encode_message((1, ledger_id), (2, 3), (3, 4), *compacted_property, *bucket_properties)


def cursor_position(*, compacted: int | None = None) -> bytes:
    """Encode `PositionInfo`, the last entry of a cursor ledger."""
    return encode_message(
        (1, 3), (2, 4), *([] if compacted is None else [(4, pair("CompactedTopicLedger", compacted))])
    )


def schema_locator(ledger_ids: Sequence[int]) -> bytes:
    entries = [
        encode_message((1, version), (2, encode_message((1, each), (2, 0)))) for version, each in enumerate(ledger_ids)
    ]
    return encode_message((1, entries[-1]), *((2, each) for each in entries))


def frame(kind: int, size: int, compressed: bytes) -> bytes:
    """Put the header of a compressed value before it."""
    header = encode_message((1, kind), (2, size))
    return b"\x47\x78" + len(header).to_bytes(4, "big") + header + compressed


def ledger_metadata(
    *,
    state: int = 3,
    custom: Mapping[str, str | bytes] | None = None,
    bookies: Sequence[str] = ("bk0",),
    last_entry: int = 9,
    length: int = 100,
    first_entry: int = 0,
    quorum: int = 1,
) -> bytes:
    """Encode the znode of a ledger in version 3. States: 1 open, 2 in recovery, 3 closed."""
    segment = encode_message(*((1, each) for each in bookies), (2, first_entry))
    closed = [(4, last_entry)] if state == 3 else []
    body = encode_message(
        (1, quorum), (2, len(bookies)), (3, length), *closed, (5, state), (6, segment), (7, 3), (8, b""), (9, 1),
        *((11, encode_message((1, key), (2, value))) for key, value in (custom or {}).items()),
    )  # fmt: skip
    return b"BookieMetadataFormatVersion\t3\n" + encode_varint(len(body)) + body


def entry_bitmap(entry_ids: Sequence[int]) -> bytes:
    """Encode a RoaringBitmap of ids below 65,536 in the portable format: one container, which is an array."""
    header = struct.pack("<IIHHI", 12_346, 1, 0, len(entry_ids) - 1, 16)
    return header + struct.pack(f"<{len(entry_ids)}H", *sorted(entry_ids))


def index_bucket(*segments: tuple[Mapping[int, Sequence[int]], int, int]) -> bytes:
    """Encode `SnapshotMetadata`: for each segment its entries by ledger, and its first and last due time."""
    return encode_message(
        *(
            (1, encode_message(*((1, _map_entry(*each)) for each in entries.items()), (2, last_ms), (3, first_ms)))
            for entries, first_ms, last_ms in segments
        )
    )


def _map_entry(ledger_id: int, entry_ids: Sequence[int]) -> bytes:
    return encode_message((1, ledger_id), (2, entry_bitmap(entry_ids)))
