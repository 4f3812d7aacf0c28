"""Kinds of records, and the columns of each kind in the record log.

`(kind, id, sub)` identifies a record. A block has record versions of one kind. The columns of the block are
`RECORD_COLUMNS` and the columns of the kind. In a tombstone the columns of the kind are null.

Source: Aerospike's records; ADR 15.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_LOG_FORMAT: Final = 1
"""Format number of blocks and manifests. A build refuses higher numbers."""


class RecordKind(StrEnum):
    """Kind of a record. The comments say what `id` and `sub` are. A kind without a comment on `sub` has no `sub`."""

    TOPIC = "topic"  # id: topic id
    LIST = "list"  # id: list id
    LEDGER = "ledger"  # id: ledger id; the record includes the copies of the ledger
    SEGMENT = "segment"  # id: ledger id; sub: segment number
    CURSOR = "cursor"  # id: cursor id
    SCHEMA = "schema"  # id: topic id; sub: schema version
    PRODUCER = "producer"  # id: topic id; sub: name of the producer
    DELETION = "deletion"  # id: row id of the intent
    TRANSACTION = "transaction"  # id: sequence; sub: tc id; includes participants and unsettled entry ranges
    HIDDEN = "hidden"  # id: ledger id
    INDEX = "index"  # id: topic id; the record includes the topic's index buckets of delayed messages
    SNAPSHOT = "snapshot"  # id: topic id; the record is the topic's transaction snapshot


RECORD_COLUMNS: Final = (
    ("id", "int64"),
    ("sub", "string"),  # empty if the kind has no `sub`
    ("epoch", "int64"),  # epoch of the catalog that wrote the record version
    ("version", "int64"),  # number of the manifest that was stored right after the record version
    ("generation", "int64"),  # generation of a ledger or an intent; 0 for other kinds
    ("at_us", "int64"),  # last update by the catalog's clock, microseconds since 1970; does not order record versions
    ("tombstone", "bool"),
)
"""Columns of every record version, never null. `(epoch, version)` orders the record versions of a record."""

COLUMNS_BY_KIND: Final[Mapping[RecordKind, tuple[tuple[str, str], ...]]] = {
    RecordKind.TOPIC: (
        ("name", "string"),
        ("state", "string"),
        ("retention_s", "int64"),
        ("retention_bytes", "int64"),  # null: no limit
        ("durable_delete", "int64"),  # 1: durable; 0: not durable; null: the operation decides
        ("created_us", "int64"),
    ),
    RecordKind.LIST: (
        ("topic_id", "int64"),
        ("component", "string"),
        ("owner", "string"),  # keys of the component as canonical JSON
        ("list_version", "int64"),
        ("ledgers", "binary"),  # 64-bit roaring bitmap of the listed ids; ascending ids are the order of the list
    ),
    RecordKind.LEDGER: (
        ("list_id", "int64"),
        ("topic_id", "int64"),
        ("topic", "string"),  # encoded name
        ("component", "string"),
        ("owner", "string"),  # as in LIST
        ("place", "int64"),  # null: the ledger is in no list yet
        ("application", "string"),
        ("state", "string"),
        ("last_segment", "int64"),  # lower bound; newer segments may exist
        ("ledger_epoch", "int64"),  # epoch of the catalog that created the ledger
        ("created_us", "int64"),
        ("closed_us", "int64"),
        ("primary_state", "string"),  # null: the ledger has no primary copy
        ("primary_context", "string"),  # JSON
        ("tiered_state", "string"),
        ("tiered_context", "string"),
    ),
    RecordKind.SEGMENT: (
        ("first_entry", "int64"),
        ("entries", "int64"),
        ("size_bytes", "int64"),
        ("sha256", "string"),
        ("delayed", "int64"),
    ),
    RecordKind.CURSOR: (
        ("topic_id", "int64"),
        ("name", "string"),
        ("mark_ledger", "int64"),
        ("mark_entry", "int64"),
        ("acknowledged", "binary"),
        ("snapshot_ledger", "int64"),
        ("seeks", "int64"),
        ("created_us", "int64"),
    ),
    RecordKind.SCHEMA: (
        ("ledger_id", "int64"),
        ("digest", "string"),
        ("size_bytes", "int64"),
        ("created_us", "int64"),
    ),
    RecordKind.PRODUCER: (
        ("sequence_id", "int64"),
        ("kept_id", "int64"),
        ("txn_tc", "int64"),
        ("txn_seq", "int64"),
    ),
    RecordKind.DELETION: (
        ("batch_id", "string"),
        ("ledger_id", "int64"),
        ("copy", "string"),
        ("application", "string"),
        ("component", "string"),
        ("topic_id", "int64"),
        ("topic", "string"),
        ("keys", "string"),
        ("context", "string"),  # JSON
        ("segments", "int64"),
        ("last_segment", "int64"),
        ("ledger_created_us", "int64"),
        ("size_bytes", "int64"),
        ("ledger_epoch", "int64"),  # epoch of the deleted ledger
        ("state", "string"),
        ("outcome", "string"),
        ("attempts", "int64"),
        ("last_error", "string"),
        ("objects_deleted", "int64"),
        ("bytes_deleted", "int64"),
        ("created_us", "int64"),
        ("finished_us", "int64"),
        ("actor", "string"),
        ("reason", "string"),
        ("openings", "int64"),
        ("durable", "int64"),
    ),  # the column `generation` has the generation of the intent
    RecordKind.TRANSACTION: (
        ("state", "string"),
        ("created_us", "int64"),
        ("deadline_us", "int64"),
        ("decided_us", "int64"),
        ("finished_us", "int64"),
        ("timed_out", "int64"),
        ("attempts", "int64"),
        ("last_error", "string"),
        ("participants", "string"),  # JSON: rows of `transaction_participant`, positions in base64
        ("ranges", "string"),  # JSON: rows of `buffer_range`
    ),
    RecordKind.HIDDEN: (("topic_id", "int64"), ("entries", "binary")),
    RecordKind.INDEX: (
        ("list_version", "int64"),
        ("sealed_ledger", "int64"),
        ("sealed_entry", "int64"),
        ("changed_us", "int64"),
        ("buckets", "string"),  # JSON: rows of `delayed_bucket`
    ),
    RecordKind.SNAPSHOT: (
        ("ledger_id", "int64"),
        ("read_ledger", "int64"),
        ("read_entry", "int64"),
    ),
}
"""Nullable columns of each kind. A column without a comment equals the catalog's column of the same name."""

TOMBSTONED_KINDS: Final = (RecordKind.TOPIC, RecordKind.LEDGER)
"""Kinds of records that get tombstones."""


@cache
def block_schema(kind: RecordKind) -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    types = {"int64": pa.int64(), "string": pa.string(), "binary": pa.binary(), "bool": pa.bool_()}
    fixed = [pa.field(name, types[type_name], nullable=False) for name, type_name in RECORD_COLUMNS]
    return pa.schema([*fixed, *(pa.field(name, types[type_name]) for name, type_name in COLUMNS_BY_KIND[kind])])
