"""Listings of buckets by key ranges: the primary bucket by shard, a tiered bucket by the first character of its keys.

Keys outside these ranges are listed too, because foreign objects must be reported.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

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
