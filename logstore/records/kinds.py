"""Kinds of records: what the record log keeps of the catalog's rows, as columns of Arrow.

A record is one row of the catalog, or one aggregate of rows, by `(kind, id, sub)`. A version of it is what the row held
at one flush. Every block holds versions of one kind, and its columns are `RECORD` and those of the kind; in the
version of a tombstone the columns of the kind are null.

Source: Aerospike's records, here rows; ADR 15.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = 1
"""Of blocks and manifests; a build refuses those of a higher one by name."""


class RecordKind(StrEnum):
    """What a record is of. Beside each kind: its id, and its `sub` where that is not empty."""

    TOPIC = "topic"  # topic id
    LIST = "list"  # list id
    LEDGER = "ledger"  # ledger id; with its copies
    SEGMENT = "segment"  # ledger id; number
    CURSOR = "cursor"  # cursor id
    SCHEMA = "schema"  # topic id; version
    PRODUCER = "producer"  # topic id; name of the producer
    DELETION = "deletion"  # row id of the intent
    TRANSACTION = "transaction"  # sequence; tc id. With its participants and its unsettled ranges of entries
    HIDDEN = "hidden"  # ledger id
    INDEX = "index"  # topic id; with the buckets of delayed messages
    SNAPSHOT = "snapshot"  # topic id: its transaction snapshot


RECORD: Final = (
    ("id", "int64"),
    ("sub", "string"),  # empty where the kind has none
    ("epoch", "int64"),  # of the catalog that wrote the version
    ("version", "int64"),  # the number of the manifest that first named it: a flush sets it
    ("generation", "int64"),  # of a ledger; otherwise 0
    ("at_us", "int64"),  # last update by the catalog's clock, microseconds since 1970; ages tombstones, orders nothing
    ("tombstone", "bool"),
)
"""Columns of every version, none null. `(epoch, version)` orders the versions of a record."""

FIELDS: Final[Mapping[RecordKind, tuple[tuple[str, str], ...]]] = {
    RecordKind.TOPIC: (
        ("name", "string"),
        ("state", "string"),
        ("retention_s", "int64"),
        ("retention_bytes", "int64"),  # null: no limit
        ("durable_delete", "int64"),  # 1, 0 or null: as the operation says
        ("created_us", "int64"),
    ),
    RecordKind.LIST: (
        ("topic_id", "int64"),
        ("component", "string"),
        ("owner", "string"),  # the component's keys as canonical JSON
        ("list_version", "int64"),
        (
            "ledgers",
            "binary",
        ),  # ids of the listed ledgers: a 64-bit roaring bitmap; places are ids, so it says the order
    ),
    RecordKind.LEDGER: (
        ("list_id", "int64"),
        ("topic_id", "int64"),
        ("topic", "string"),  # its name, encoded
        ("component", "string"),
        ("owner", "string"),  # as of the list
        ("place", "int64"),  # null: not listed yet
        ("application", "string"),
        ("state", "string"),
        ("last_segment", "int64"),  # at least; segments say more
        ("ledger_epoch", "int64"),  # of the catalog that created the ledger
        ("created_us", "int64"),
        ("closed_us", "int64"),
        ("primary_state", "string"),  # of its copies; null: it has none of the kind
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
        ("ledger_epoch", "int64"),  # the row's own epoch
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
    ),  # the intent's generation is the record's
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
"""Columns of each kind, any of which may be null; those without a note are the catalog's columns of the same name."""

TOMBSTONED: Final = (RecordKind.TOPIC, RecordKind.LEDGER)
"""What a durable delete ends. What else there is goes with its topic or ledger."""

PARENTS: Final[Mapping[RecordKind, RecordKind]] = {
    RecordKind.LIST: RecordKind.TOPIC,  # by `topic_id`
    RecordKind.CURSOR: RecordKind.TOPIC,
    RecordKind.SCHEMA: RecordKind.TOPIC,  # by `id`
    RecordKind.PRODUCER: RecordKind.TOPIC,
    RecordKind.INDEX: RecordKind.TOPIC,
    RecordKind.SNAPSHOT: RecordKind.TOPIC,
    RecordKind.SEGMENT: RecordKind.LEDGER,
    RecordKind.HIDDEN: RecordKind.LEDGER,
}
"""Records that live no longer than their parent. Their removal is not recorded: without it they count for nothing."""


@cache
def schema(kind: RecordKind) -> "pa.Schema":
    """The columns of a block of the kind."""
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    types = {"int64": pa.int64(), "string": pa.string(), "binary": pa.binary(), "bool": pa.bool_()}
    fixed = [pa.field(name, types[kind_of], nullable=False) for name, kind_of in RECORD]
    return pa.schema([*fixed, *(pa.field(name, types[kind_of]) for name, kind_of in FIELDS[kind])])
