"""Spark data sources over the log store, such as `spark.read.format("sexton_ledgers").load()`.

| format | row | pushed down |
|---|---|---|
| `sexton_objects` | an object of a bucket, as a listing shows it | `bucket = …` |
| `sexton_ledgers` | a row of `ledger` | `ledger_id` with `=`, `<`, `<=`, `>` and `>=` |
| `sexton_entries` | an entry of one topic (option `topic_id`), ordered in a partition | columns, by option `columns` |

Executors read rows as Arrow batches. Addresses and credentials are attributes of the classes. They are not options,
because Spark's plans show options.

Source: Spark's Python Data Source API.
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

from infra.objects.s3_store import BucketAddress
from logstore.catalog.engine.arrow_bulk import build_arrow_schema, open_arrow_reader
from logstore.catalog.reconciliation import bulk_queries
from logstore.errors import InvalidInput
from logstore.log.ledger_object_keys import SHARDS
from logstore.log.segment_format import entry_schema
from logstore.log.services.segment_reader import read_columns
from logstore.ports.catalog.log import Segment
from logstore.positions import LedgerId
from spark.sources.bucket_listings import LISTING_SCHEMA, TIERED_RANGES, shard_key_range, to_record_batches
from spark.sources.store_addresses import CatalogAddresses
from spark.warm_session import exclude_loaded_objects_from_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEDGER_IDS_PER_PARTITION: Final = 500_000
_SEGMENTS_PER_PARTITION: Final = 64
_SHARDS_PER_PARTITION: Final = 8
_OBJECT_SCHEMA: Final = pa.schema([("bucket", pa.string()), ("key", pa.string()), *list(LISTING_SCHEMA)[1:]])
_POSITION_FIELDS: Final = (("ledger_id", pa.int64()), ("entry_id", pa.int64()))


def register_data_sources(spark: "SparkSession", addresses: CatalogAddresses) -> None:
    for source in (ObjectTable, LedgerTable, TopicEntryTable):
        spark.dataSource.register(type(source.__name__, (source,), {"addresses": addresses}))


@dataclass
class _Partition(InputPartition):
    value: Any  # type depends on the reader


class ObjectTable(DataSource):
    """Objects of the catalog's buckets. In the primary bucket, only shards are listed."""

    addresses: ClassVar[CatalogAddresses]

    @classmethod
    def name(cls) -> str:
        return "sexton_objects"

    def schema(self) -> StructType:
        return from_arrow_schema(_OBJECT_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it
        return _ObjectListingReader(self.addresses.stores)


class _ObjectListingReader(DataSourceReader):
    def __init__(self, stores: tuple[BucketAddress, ...]) -> None:
        self._stores = stores

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        for pushed in filters:
            if isinstance(pushed, EqualTo) and pushed.attribute == ("bucket",):
                self._stores = tuple(store for store in self._stores if store.bucket == pushed.value)
            else:
                yield pushed

    def partitions(self) -> list[InputPartition]:
        step = _SHARDS_PER_PARTITION
        shards = [tuple(map(shard_key_range, range(first, first + step))) for first in range(0, SHARDS, step)]
        tiered = [(key_range,) for key_range in TIERED_RANGES]
        return [
            _Partition((store, key_ranges))
            for store in self._stores
            for key_ranges in (shards if store.role == "primary" else tiered)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        exclude_loaded_objects_from_gc()
        address, key_ranges = partition.value
        store = address.store()
        for key_range in key_ranges:
            for batch in to_record_batches(key_range.list_objects(store)):
                bucket = pa.repeat(pa.scalar(address.bucket, pa.string()), batch.num_rows)
                key = batch.column("key").cast(pa.string())
                yield pa.record_batch([bucket, key, *batch.columns[1:]], schema=_OBJECT_SCHEMA)


class LedgerTable(DataSource):
    addresses: ClassVar[CatalogAddresses]

    @classmethod
    def name(cls) -> str:
        return "sexton_ledgers"

    def schema(self) -> StructType:
        return from_arrow_schema(
            build_arrow_schema(bulk_queries.select_ledgers_with_flags(0, 1, self.addresses.application))
        )

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it
        return _LedgerReader(self.addresses)


_MAX_LEDGER_ID: Final = 2**63 - 1
_ID_RANGE_BY_FILTER: Final[dict[type, Callable[[int], tuple[int, int]]]] = {
    EqualTo: lambda value: (value, value + 1),
    LessThan: lambda value: (0, value),
    LessThanOrEqual: lambda value: (0, value + 1),
    GreaterThan: lambda value: (value + 1, _MAX_LEDGER_ID),
    GreaterThanOrEqual: lambda value: (value, _MAX_LEDGER_ID),
}
"""Range of ids that a filter on `ledger_id` selects: the first id, and the id after the last."""


class _LedgerReader(DataSourceReader):
    def __init__(self, addresses: CatalogAddresses) -> None:
        self._addresses = addresses
        self._first, self._end = 0, _MAX_LEDGER_ID

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        pushed: Any
        for pushed in filters:
            to_id_range = _ID_RANGE_BY_FILTER.get(type(pushed))
            if to_id_range is None or pushed.attribute != ("ledger_id",):
                yield pushed
            else:
                first, end = to_id_range(pushed.value)
                self._first, self._end = max(self._first, first), min(self._end, end)

    def partitions(self) -> list[InputPartition]:
        with open_arrow_reader(self._addresses.database_url) as connection:
            (row,) = connection.table(bulk_queries.select_ledger_and_intent_bounds()).to_pylist()
        first, end = max(self._first, row["first_ledger"]), min(self._end, row["last_ledger"] + 1)
        starts = range(first, end, _LEDGER_IDS_PER_PARTITION)
        return [_Partition((start, min(start + starts.step, end))) for start in starts] or [_Partition((0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        exclude_loaded_objects_from_gc()
        with open_arrow_reader(self._addresses.database_url) as connection:
            first, end = partition.value
            yield from connection.batches(
                bulk_queries.select_ledgers_with_flags(first, end, self._addresses.application)
            )


class TopicEntryTable(DataSource):
    """Entries of one topic with positions. Only the columns of option `columns` are fetched."""

    addresses: ClassVar[CatalogAddresses]

    @classmethod
    def name(cls) -> str:
        return "sexton_entries"

    def schema(self) -> StructType:
        fields = [entry_schema().field(name) for name in self._parse_selected_columns()]
        return from_arrow_schema(pa.schema([*_POSITION_FIELDS, *((field.name, field.type) for field in fields)]))

    def _parse_selected_columns(self) -> list[str]:
        known_columns = entry_schema().names
        columns = [
            name.strip() for name in self.options.get("columns", ",".join(known_columns)).split(",") if name.strip()
        ]
        for name in columns:
            if name not in known_columns:
                raise InvalidInput("columns", expected=f"some of {', '.join(known_columns)}", found=name)
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it
        topic_id = self.options.get("topic_id", "")
        if not topic_id.isdigit():
            raise InvalidInput("topic_id", expected="the id of a topic", found=topic_id)
        return _EntryReader(self.addresses, int(topic_id), self._parse_selected_columns())


class _EntryReader(DataSourceReader):
    def __init__(self, addresses: CatalogAddresses, topic_id: int, columns: list[str]) -> None:
        self._addresses, self._topic_id, self._columns = addresses, topic_id, columns

    def partitions(self) -> list[InputPartition]:
        with open_arrow_reader(self._addresses.database_url) as connection:
            rows = connection.table(bulk_queries.select_message_segments_in_entry_order(self._topic_id)).to_pylist()
        starts = range(0, len(rows), _SEGMENTS_PER_PARTITION)
        return [_Partition(rows[start : start + starts.step]) for start in starts] or [_Partition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        exclude_loaded_objects_from_gc()
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
            columns = table.select(self._columns)
            yield from columns.add_column(0, "entry_id", entry).add_column(0, "ledger_id", ledger).to_batches()
