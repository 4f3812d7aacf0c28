"""The log store as tables of Spark: `spark.read.format("sexton_ledgers").load()`, and more of the kind.

| format | row | pushed down |
|---|---|---|
| `sexton_objects` | an object of a bucket, as a listing shows it | `bucket = …` |
| `sexton_ledgers` | a row of `ledger` | `ledger_id` with `=`, `<`, `<=`, `>` and `>=` |
| `sexton_entries` | an entry of the topic of option `topic_id`, in order in a part | columns, by option `columns` |

Rows are read by executors as Arrow batches. Addresses and keys travel within the sources' classes, not in options,
which Spark shows in its plans. Source: Spark's Python Data Source API.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from infra.catalog.engine.adbc import arrow_schema, open_arrow_reader
from infra.catalog.reconciliation import facts as sql
from logstore.errors import InvalidInput
from logstore.log.entries import schema as entry_schema
from logstore.log.ledgers import SHARDS
from logstore.log.services.segment_file import read_columns
from logstore.ports.catalog import Segment
from logstore.positions import LedgerId
from spark.session import spare_the_collector
from spark.sources.objects import (
    LISTED,
    TIERED_RANGES,
    KeyRange,
    NativeAddresses,
    StoreAddress,
    batches,
    shard_range,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS: Final = 500_000
_SEGMENTS: Final = 64  # of a partition
_OBJECTS: Final = pa.schema([("bucket", pa.string()), ("key", pa.string()), *list(LISTED)[1:]])
_POSITION: Final = (("ledger_id", pa.int64()), ("entry_id", pa.int64()))


def register(spark: "SparkSession", addresses: NativeAddresses) -> None:
    """Make the formats known to a session."""
    for source in (Objects, Ledgers, Entries):
        spark.dataSource.register(type(source.__name__, (source,), {"addresses": addresses}))


@dataclass
class _Part(InputPartition):
    """One partition; what it is, its reader knows."""

    value: Any


class Objects(DataSource):
    """Objects of the catalog's buckets; of the primary one those in shards."""

    addresses: ClassVar[NativeAddresses]

    @classmethod
    def name(cls) -> str:
        """Of the format."""
        return "sexton_objects"

    def schema(self) -> StructType:
        """Bucket, key, bytes, and microseconds by the store's clock."""
        return from_arrow_schema(_OBJECTS)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - of Spark
        """Of every bucket, until a filter says which."""
        return _ObjectReader(self.addresses.stores)


class _ObjectReader(DataSourceReader):
    def __init__(self, stores: tuple[StoreAddress, ...]) -> None:
        self._stores = stores

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - of Spark
        """Take `bucket = …`."""
        for one in filters:
            if isinstance(one, EqualTo) and one.attribute == ("bucket",):
                self._stores = tuple(store for store in self._stores if store.bucket == one.value)
            else:
                yield one

    def partitions(self) -> list[InputPartition]:
        """Eight shards each, or one range of a tiered bucket."""
        shards = [tuple(map(shard_range, range(first, first + 8))) for first in range(0, SHARDS, 8)]
        tiered = [(one,) for one in TIERED_RANGES]
        return [
            _Part((store, cut)) for store in self._stores for cut in (shards if store.role == "primary" else tiered)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor."""
        spare_the_collector()
        found: tuple[StoreAddress, tuple[KeyRange, ...]] = partition.value
        address, ranges = found
        store = address.store()
        for one in ranges:
            for batch in batches(one.objects(store)):
                bucket = pa.repeat(pa.scalar(address.bucket, pa.string()), batch.num_rows)
                key = batch.column("key").cast(pa.string())
                yield pa.record_batch([bucket, key, *batch.columns[1:]], schema=_OBJECTS)


class Ledgers(DataSource):
    """Rows of `ledger`."""

    addresses: ClassVar[NativeAddresses]

    @classmethod
    def name(cls) -> str:
        """Of the format."""
        return "sexton_ledgers"

    def schema(self) -> StructType:
        """As `facts.ledgers` says."""
        return from_arrow_schema(arrow_schema(sql.ledgers(0, 1, self.addresses.application)))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - of Spark
        """Of every id, until filters narrow them."""
        return _LedgerReader(self.addresses)


class _LedgerReader(DataSourceReader):
    def __init__(self, addresses: NativeAddresses) -> None:
        self._addresses = addresses
        self._first, self._end = 0, _LAST

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - of Spark
        """Take bounds of `ledger_id`."""
        for one in filters:
            bounds = _bounds(one)
            if bounds is None:
                yield one
            else:
                self._first, self._end = max(self._first, bounds[0]), min(self._end, bounds[1])

    def partitions(self) -> list[InputPartition]:
        """Ranges of ids."""
        with open_arrow_reader(self._addresses.database_url) as connection:
            (row,) = connection.table(sql.bounds()).to_pylist()
        first, end = max(self._first, row["first_ledger"]), min(self._end, row["last_ledger"] + 1)
        return [_Part((at, min(at + _ROWS, end))) for at in range(first, end, _ROWS)] or [_Part((0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor."""
        spare_the_collector()
        with open_arrow_reader(self._addresses.database_url) as connection:
            first, end = partition.value
            yield from connection.batches(sql.ledgers(first, end, self._addresses.application))


_LAST: Final = 2**63 - 1
_LETS_THROUGH: Final[dict[type, Callable[[int], tuple[int, int]]]] = {
    EqualTo: lambda value: (value, value + 1),
    LessThan: lambda value: (0, value),
    LessThanOrEqual: lambda value: (0, value + 1),
    GreaterThan: lambda value: (value + 1, _LAST),
    GreaterThanOrEqual: lambda value: (value, _LAST),
}


def _bounds(one: Any) -> tuple[int, int] | None:  # noqa: ANN401 - a filter of any kind
    """First id and the one behind the last that a filter lets through, or None if it is no such filter."""
    known = _LETS_THROUGH.get(type(one))
    if known is None or one.attribute != ("ledger_id",):
        return None
    return known(one.value)


class Entries(DataSource):
    """Entries of one topic with their positions; of a segment's columns only those that are asked for are read."""

    addresses: ClassVar[NativeAddresses]

    @classmethod
    def name(cls) -> str:
        """Of the format."""
        return "sexton_entries"

    def schema(self) -> StructType:
        """Ledger and entry id, then the columns asked for."""
        fields = [entry_schema().field(name) for name in self._columns()]
        return from_arrow_schema(pa.schema([*_POSITION, *((field.name, field.type) for field in fields)]))

    def _columns(self) -> list[str]:
        known = entry_schema().names
        asked = [name.strip() for name in self.options.get("columns", ",".join(known)).split(",") if name.strip()]
        for name in asked:
            if name not in known:
                raise InvalidInput("columns", expected=f"some of {', '.join(known)}", found=name)
        return asked

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - of Spark
        """Of the topic that the option names."""
        told = self.options.get("topic_id", "")
        if not told.isdigit():
            raise InvalidInput("topic_id", expected="the id of a topic", found=told)
        return _EntryReader(self.addresses, int(told), self._columns())


class _EntryReader(DataSourceReader):
    def __init__(self, addresses: NativeAddresses, topic_id: int, columns: list[str]) -> None:
        self._addresses, self._topic_id, self._columns = addresses, topic_id, columns

    def partitions(self) -> list[InputPartition]:
        """Runs of segments."""
        with open_arrow_reader(self._addresses.database_url) as connection:
            rows = connection.table(sql.topic_segments(self._topic_id)).to_pylist()
        return [_Part(rows[at : at + _SEGMENTS]) for at in range(0, len(rows), _SEGMENTS)] or [_Part([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor: each segment checked as any reader does."""
        spare_the_collector()
        store = self._addresses.primary.store()
        for row in partition.value:
            segment = Segment(
                ledger_id=LedgerId(row["ledger_id"]),
                number=row["number"],
                first_entry=row["first_entry"],
                entries=row["entries"],
                size_bytes=row["size_bytes"],
                sha256=row["sha256"] or None,
            )
            table = read_columns(store, segment, self._columns)
            ledger = pa.repeat(pa.scalar(int(segment.ledger_id), pa.int64()), table.num_rows)
            entry = pa.array(range(segment.first_entry, segment.first_entry + segment.entries), pa.int64())
            whole = table.select(self._columns).add_column(0, "entry_id", entry).add_column(0, "ledger_id", ledger)
            yield from whole.to_batches()
