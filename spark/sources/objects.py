"""Listings of buckets by parts of their key space, as executors draw them.

The primary bucket is cut by shard (`ledgers/00/` to `ledgers/ff/`), a tiered one by the first character of its keys;
whatever stands between these parts is listed too, because it is foreign and reported.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Final

import pyarrow as pa

from infra.objects import S3ObjectStore, make_client
from logstore.log.ledgers import SHARDS, shard_prefix
from logstore.ports.objects import ObjectInfo, ObjectStore

LISTED: Final = pa.schema([("key", pa.large_string()), ("size_bytes", pa.int64()), ("modified_us", pa.int64())])
"""One object of a listing; `modified_us` is by the store's own clock, null where it tells none."""

_BATCH: Final = 50_000
_HEX: Final = "0123456789abcdef"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A bucket as an executor reaches it; it travels within tasks, and in no option or property of Spark."""

    role: str
    bucket: str
    endpoint: str = ""  # empty: AWS
    region: str = ""
    access_key: str = field(default="", repr=False)  # empty: of the executor's own environment or role
    secret_key: str = field(default="", repr=False)
    ca_file: str = ""  # at the same path for every executor; empty: what its environment says

    def store(self) -> S3ObjectStore:
        """The bucket, with one client a process."""
        return _connected(self)


@cache
def _connected(address: StoreAddress) -> S3ObjectStore:
    keys = address.access_key or None, address.secret_key or None
    client = make_client(address.endpoint or None, address.region, *keys, ca_file=address.ca_file, pool_size=64)
    return S3ObjectStore(client, address.bucket)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeAddresses:
    """Addresses of the catalog and its buckets; they travel within tasks."""

    database_url: str = field(repr=False)
    primary: StoreAddress
    tiered: tuple[StoreAddress, ...]  # every bucket that carries this catalog's marker, at the configured store
    application: str

    @property
    def stores(self) -> tuple[StoreAddress, ...]:
        """All buckets."""
        return (self.primary, *self.tiered)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys that begin with `prefix`, sort after `after` and before `before`; empty: no such bound."""

    prefix: str = ""
    after: str = ""
    before: str = ""

    def objects(self, store: ObjectStore) -> Iterator[ObjectInfo]:
        """The objects that stand there, complete or an error."""
        listed = store.list(self.prefix, start_after=self.after)
        return takewhile(lambda found: found.key < self.before, listed) if self.before else listed


def shard_range(shard: int) -> KeyRange:
    """One shard of the primary bucket, 0 to 255."""
    return KeyRange(prefix=shard_prefix(shard))


TIERED_RANGES: Final = (
    *(KeyRange(prefix=digit) for digit in _HEX),
    KeyRange(before="0"),
    KeyRange(after="9\U0010ffff", before="a"),
    KeyRange(after="f\U0010ffff"),
)
"""All of a tiered bucket: attempts by the first character of their uuid, and what else may stand there."""


def beside_shards(store: ObjectStore) -> tuple[list[KeyRange], list[ObjectInfo]]:
    """Folders of the primary bucket that are no shard's, to be listed, and objects that stand beside shards."""
    ranges: list[KeyRange] = []
    objects: list[ObjectInfo] = []
    shards = {shard_prefix(shard) for shard in range(SHARDS)}
    for level in ("", "ledgers/"):
        for found in store.level(level):
            if isinstance(found, ObjectInfo):
                objects.append(found)
            elif found not in shards | {"ledgers/"}:
                ranges.append(KeyRange(prefix=found))
    return ranges, objects


def batches(objects: Iterator[ObjectInfo]) -> Iterator[pa.RecordBatch]:
    """Objects as record batches of `LISTED`."""
    keys: list[str] = []
    sizes: list[int] = []
    times: list[int | None] = []
    for found in objects:
        keys.append(found.key)
        sizes.append(found.size_bytes)
        times.append(found.modified_us)
        if len(keys) == _BATCH:
            yield _batch(keys, sizes, times)
            keys, sizes, times = [], [], []
    if keys:
        yield _batch(keys, sizes, times)


def _batch(keys: list[str], sizes: list[int], times: list[int | None]) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.large_string()), pa.array(sizes, pa.int64()), pa.array(times, pa.int64())]
    return pa.record_batch(columns, schema=LISTED)
