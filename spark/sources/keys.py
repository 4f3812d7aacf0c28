"""Keys of the primary bucket as numbers: millions at a time, and nothing that is not exactly canonical.

A key is compared byte by byte with the one form that `logstore.log.ledgers` writes; every other form is foreign, so an
object of another writer can never be taken for a ledger's. Eight characters are decoded at once, as one 64-bit word.

Source: `segment_key` and `meta_key` of `logstore.log.ledgers`.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint64]

META: Final = -1
"""In the place of a segment's number: the object is a `meta.json`."""

_SEGMENT_LENGTH: Final = 44  # ledgers/xx/{16 hex}/{8 digits}.parquet
_META_LENGTH: Final = 54  # ledgers/xx/{16 hex}/{16 hex}.meta.json
_ID: Final = 11  # where the ledger id begins
_NAME: Final = 28  # where the object's own name begins
_ONES: Final = np.uint64(0x0101010101010101)


@dataclass(frozen=True, slots=True)
class ParsedKeys:
    """One element a key; the others are undefined where `ours` is False."""

    ours: npt.NDArray[np.bool_]
    ledger_id: npt.NDArray[np.int64]
    number: npt.NDArray[np.int32]  # of the segment, or META
    digest: Words  # of a `meta.json`; 0 of a segment


def parse_keys(keys: pa.Array) -> ParsedKeys:
    """Parse keys of the primary bucket.

    Args:
        keys: Strings, no null.
    """
    offsets, data = _buffers(keys)
    length, count = np.diff(offsets), len(keys)
    found = ParsedKeys(
        ours=np.zeros(count, np.bool_),
        ledger_id=np.zeros(count, np.int64),
        number=np.full(count, META, np.int32),
        digest=np.zeros(count, np.uint64),
    )
    if len(data) < _SEGMENT_LENGTH:
        return found
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data, strides=(1,))
    for expected, parse in ((_SEGMENT_LENGTH, _segments), (_META_LENGTH, _metas)):
        which = np.flatnonzero(length == expected)
        at = offsets[:-1][which]
        if len(at):
            ledger_id, in_place = _ledgers(words, data, at)
            number, digest, named = parse(words, at)
            found.ours[which] = in_place & named
            found.ledger_id[which], found.number[which], found.digest[which] = ledger_id, number, digest
    return found


def _buffers(keys: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Offsets, one more than keys, and the bytes they point into."""
    whole = keys.cast(pa.large_string()) if pa.types.is_string(keys.type) else keys
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _ledgers(words: Words, data: npt.NDArray[np.uint8], at: Any) -> tuple[npt.NDArray[np.int64], Any]:  # noqa: ANN401
    """Ledger ids, and whether all before the object's own name is as it must be: the shard is the id's last byte."""
    high, high_ok = _hex(words[at + _ID])
    low, low_ok = _hex(words[at + _ID + 8])
    slash = ord("/")
    ok = (words[at] == _word(b"ledgers/")) & high_ok & low_ok & (high < np.uint64(1 << 31))
    ok &= (data[at + 8] == data[at + 25]) & (data[at + 9] == data[at + 26])
    ok &= (data[at + 10] == slash) & (data[at + 27] == slash)
    return ((high << np.uint64(32)) | low).astype(np.int64), ok


def _segments(words: Words, at: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401
    number, ok = _decimal(words[at + _NAME])
    return number.astype(np.int32), np.zeros(len(at), np.uint64), ok & (words[at + _NAME + 8] == _word(b".parquet"))


def _metas(words: Words, at: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401
    high, high_ok = _hex(words[at + _NAME])
    low, low_ok = _hex(words[at + _NAME + 8])
    ok = high_ok & low_ok
    ok &= (words[at + _NAME + 16] == _word(b".meta.js")) & (words[at + _NAME + 18] == _word(b"eta.json"))
    return np.full(len(at), META, np.int32), (high << np.uint64(32)) | low, ok


def _hex(word: Words) -> tuple[Words, npt.NDArray[np.bool_]]:
    """Eight lower-case hex digits as a number, and whether they are such."""
    digit = (word & (np.uint64(15) * _ONES)) + np.uint64(9) * ((word >> np.uint64(6)) & _ONES)
    letter = ((digit + np.uint64(6) * _ONES) >> np.uint64(4)) & _ONES
    ok = (digit + np.uint64(0x30) * _ONES + letter * np.uint64(39) == word) & (digit & (np.uint64(0xF0) * _ONES) == 0)
    pairs = ((digit << np.uint64(4)) | (digit >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = (pairs | (pairs >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
    eight = (fours | (fours >> np.uint64(16))) & np.uint64(0xFFFFFFFF)
    return eight.astype("<u4").byteswap().astype(np.uint64), ok


def _decimal(word: Words) -> tuple[Words, npt.NDArray[np.bool_]]:
    """Eight decimal digits as a number, and whether they are such."""
    digit = word & (np.uint64(15) * _ONES)
    ok = (digit | (np.uint64(0x30) * _ONES)) == word
    ok &= ((digit + np.uint64(6) * _ONES) & (np.uint64(0x10) * _ONES)) == 0
    pairs = ((digit * np.uint64(2561)) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    fours = ((pairs * np.uint64(6553601)) >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    return (fours * np.uint64(42949672960001)) >> np.uint64(32), ok


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))
