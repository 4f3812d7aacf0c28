"""Listings of buckets by key ranges, and a fast parser of keys of the primary bucket.

The primary bucket is listed by shard, a tiered bucket by the first character of its keys.
Keys outside these ranges are listed too, because foreign objects must be reported.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.log.ledger_object_keys import SHARDS, shard_prefix
from logstore.ports.object_storage import ObjectInfo, ObjectStore

LISTING_SCHEMA: Final = pa.schema([("key", pa.large_string()), ("size_bytes", pa.int64()), ("modified_us", pa.int64())])
"""Schema of a listed object. `modified_us` is by the object store's clock, or null if the store gives no time."""

_ROWS_PER_BATCH: Final = 50_000
_HEX: Final = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys that begin with `prefix`, are above `after` and are below `before`. An empty text sets no bound."""

    prefix: str = ""
    after: str = ""
    before: str = ""

    def list_objects(self, store: ObjectStore) -> Iterator[ObjectInfo]:
        objects = store.list(self.prefix, start_after=self.after)
        return takewhile(lambda listed: listed.key < self.before, objects) if self.before else objects


def shard_key_range(shard: int) -> KeyRange:
    return KeyRange(prefix=shard_prefix(shard))


TIERED_RANGES: Final = (
    *(KeyRange(prefix=digit) for digit in _HEX),
    KeyRange(before="0"),
    KeyRange(after="9\U0010ffff", before="a"),
    KeyRange(after="f\U0010ffff"),
)
"""Ranges that cover a tiered bucket: one for each hexadecimal digit at the start of a key, and all other keys."""


def list_outside_shards(store: ObjectStore) -> tuple[list[KeyRange], list[ObjectInfo]]:
    """Return folders of the primary bucket that are not shards, and objects directly in the root or in `ledgers/`."""
    ranges: list[KeyRange] = []
    objects: list[ObjectInfo] = []
    shards = {shard_prefix(shard) for shard in range(SHARDS)}
    for level in ("", "ledgers/"):
        for entry in store.list_folder(level):
            if isinstance(entry, ObjectInfo):
                objects.append(entry)
            elif entry not in shards | {"ledgers/"}:
                ranges.append(KeyRange(prefix=entry))
    return ranges, objects


def to_record_batches(objects: Iterator[ObjectInfo]) -> Iterator[pa.RecordBatch]:
    while rows := [(info.key, info.size_bytes, info.modified_us) for info in islice(objects, _ROWS_PER_BATCH)]:
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), LISTING_SCHEMA, strict=True)
        ]
        yield pa.record_batch(columns, schema=LISTING_SCHEMA)


Words = npt.NDArray[np.uint64]

META: Final = -1
"""Value in place of a segment number, for a `meta.json`."""

_SEGMENT_LENGTH: Final = 44  # ledgers/xx/{16 hex}/{8 digits}.parquet
_META_LENGTH: Final = 54  # ledgers/xx/{16 hex}/{16 hex}.meta.json
_ID_OFFSET: Final = 11
_NAME_OFFSET: Final = 28  # offset of the part after the ledger id
_ONES: Final = np.uint64(0x0101010101010101)


@dataclass(frozen=True, slots=True)
class ParsedKeys:
    """Arrays with one element per key. If `is_canonical` is False, the key's other elements are undefined."""

    is_canonical: npt.NDArray[np.bool_]
    ledger_id: npt.NDArray[np.int64]
    number: npt.NDArray[np.int32]  # number of the segment, or META
    digest: Words  # digest in the name of a `meta.json`; 0 for a segment


def parse_ledger_keys(keys: pa.Array) -> ParsedKeys:
    """Parse millions of keys of the primary bucket, eight characters at once.

    A key is parsed only if `segment_key` or `meta_key` of `logstore.log.ledger_object_keys` can write exactly this key.
    """
    offsets, data = _string_buffers(keys)
    length, count = np.diff(offsets), len(keys)
    parsed = ParsedKeys(
        is_canonical=np.zeros(count, np.bool_),
        ledger_id=np.zeros(count, np.int64),
        number=np.full(count, META, np.int32),
        digest=np.zeros(count, np.uint64),
    )
    if len(data) < _SEGMENT_LENGTH:
        return parsed
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    for key_length, parse_names in ((_SEGMENT_LENGTH, _parse_segment_names), (_META_LENGTH, _parse_meta_names)):
        rows = np.flatnonzero(length == key_length)
        starts = offsets[:-1][rows]
        if len(starts):
            ledger_id, has_folders = _parse_ledger_folders(words, data, starts)
            number, digest, has_name = parse_names(words, starts)
            parsed.is_canonical[rows] = has_folders & has_name
            parsed.ledger_id[rows], parsed.number[rows], parsed.digest[rows] = ledger_id, number, digest
    return parsed


def _string_buffers(keys: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    strings = keys.cast(pa.large_string()) if pa.types.is_string(keys.type) else keys
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _parse_ledger_folders(words: Words, data: npt.NDArray[np.uint8], starts: Any) -> tuple[npt.NDArray[np.int64], Any]:  # noqa: ANN401
    """Return ledger ids, and whether the folders are canonical. The shard must be the id's last byte."""
    high, high_ok = _parse_hex(words[starts + _ID_OFFSET])
    low, low_ok = _parse_hex(words[starts + _ID_OFFSET + 8])
    slash = ord("/")
    ok = (words[starts] == _encode_word(b"ledgers/")) & high_ok & low_ok & (high < np.uint64(1 << 31))
    ok &= (data[starts + 8] == data[starts + 25]) & (data[starts + 9] == data[starts + 26])
    ok &= (data[starts + 10] == slash) & (data[starts + 27] == slash)
    return ((high << np.uint64(32)) | low).astype(np.int64), ok


def _parse_segment_names(words: Words, starts: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401
    number, ok = _parse_decimal(words[starts + _NAME_OFFSET])
    return (
        number.astype(np.int32),
        np.zeros(len(starts), np.uint64),
        ok & (words[starts + _NAME_OFFSET + 8] == _encode_word(b".parquet")),
    )


def _parse_meta_names(words: Words, starts: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401
    high, high_ok = _parse_hex(words[starts + _NAME_OFFSET])
    low, low_ok = _parse_hex(words[starts + _NAME_OFFSET + 8])
    ok = high_ok & low_ok
    ok &= (words[starts + _NAME_OFFSET + 16] == _encode_word(b".meta.js")) & (
        words[starts + _NAME_OFFSET + 18] == _encode_word(b"eta.json")
    )
    return np.full(len(starts), META, np.int32), (high << np.uint64(32)) | low, ok


def _parse_hex(word: Words) -> tuple[Words, npt.NDArray[np.bool_]]:
    """Return the value of eight lower-case hex digits, and whether all eight characters are such digits."""
    digit = (word & (np.uint64(15) * _ONES)) + np.uint64(9) * ((word >> np.uint64(6)) & _ONES)
    letter = ((digit + np.uint64(6) * _ONES) >> np.uint64(4)) & _ONES
    ok = (digit + np.uint64(0x30) * _ONES + letter * np.uint64(39) == word) & (digit & (np.uint64(0xF0) * _ONES) == 0)
    pairs = ((digit << np.uint64(4)) | (digit >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs | (pairs >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
    eight = (fours | (fours >> np.uint64(16))) & np.uint64(0xFFFFFFFF)
    return eight.astype("<u4").byteswap().astype(np.uint64), ok


def _parse_decimal(word: Words) -> tuple[Words, npt.NDArray[np.bool_]]:
    """Return the value of eight decimal digits, and whether all eight characters are such digits."""
    digit = word & (np.uint64(15) * _ONES)
    ok = (digit | (np.uint64(0x30) * _ONES)) == word
    ok &= ((digit + np.uint64(6) * _ONES) & (np.uint64(0x10) * _ONES)) == 0
    pairs = ((digit * np.uint64(2561)) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    fours = ((pairs * np.uint64(6553601)) >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(42949672960001)) >> np.uint64(32), ok


def _encode_word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))
