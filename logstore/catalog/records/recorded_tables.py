"""Declaration of the recorded tables, and the outbox of their changes.

`RECORDED_TABLES` says for each kind of records which rows make a record. Flushes, rebuilds and replicas derive from it
what they read and write. The fields of a kind are in `logstore.records.record_kinds`.

Triggers insert an outbox row in the transaction of each change, under the lock of the changed row. When a flush is
settled, the flushed rows are removed. `enqueue_records` inserts rows for unchanged records. The column `version`
numbers the changes. In blocks, the column `version` has the number of the manifest (ADR 15).

No trigger records the removal of a row. Readers ignore a record without its parent. After a durable deletion, the new
tombstone is flushed instead. The removal of a copy raises the ledger's generation, and a trigger records this change.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Table,
    Text,
    and_,
    cast,
    delete,
    exists,
    insert,
    literal,
    or_,
    select,
    text,
)

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.records.record_kinds import RecordKind


class Trigger(NamedTuple):
    """Event on a row that inserts an outbox row. Migrations create the triggers, and a test compares them."""

    event: str  # INSERT, UPDATE or DELETE
    columns: tuple[str, ...] = ()  # columns whose update is an event; empty: every update


_INSERT: Final = Trigger("INSERT")
_UPDATE: Final = Trigger("UPDATE")


class PartTable(NamedTuple):
    """Table whose rows belong to a record of another table."""

    table: Table
    keys: tuple[str, ...]  # columns of the record's id, and of its `sub` if there is one
    json_field: str = ""  # field with the rows as JSON, without `keys`; empty: the rows have several fields
    triggers: tuple[Trigger, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordedTable:
    """Table whose rows are the records of one kind."""

    table: Table
    id: str  # column of the record's id
    sub: str = ""  # column of the second part of the record's key; empty: the key has one part
    # kind of the record without which this record is ignored; its id is in the column that has the parent's id
    parent: RecordKind | None = None
    # unique columns besides the key; a record that was deleted without a tombstone may have the values of a newer one
    unique: tuple[str, ...] = ()
    parts: tuple[PartTable, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)  # fields of columns that have another name
    # columns that no record has, with their value after a rebuild; `None`: computed from other rows, or the default
    unrecorded: Mapping[str, int | None] = field(default_factory=dict)
    triggers: tuple[Trigger, ...] = (_INSERT, _UPDATE)

    @property
    def has_integer_sub(self) -> bool:
        return bool(self.sub) and isinstance(self.table.c[self.sub].type, Integer)

    @property
    def field_by_column(self) -> Mapping[str, str]:
        """Column of a record version that has the value, for each column of the table that records have."""
        names = {column.name: column.name for column in self.table.c if column.name not in self.unrecorded}
        return names | dict(self.renamed) | {self.id: "id"} | ({self.sub: "sub"} if self.sub else {})

    @property
    def parent_column(self) -> str:
        return RECORDED_TABLES[self.parent].id if self.parent else ""

    def match_key(self, record_id: ColumnElement[int], sub: ColumnElement[str]) -> ColumnElement[bool]:
        """Select the row of the record with this key. `sub` is a text."""
        same_id = self.table.c[self.id] == record_id
        if not self.sub:
            return same_id
        column = self.table.c[self.sub]
        return and_(same_id, column == (cast(sub, column.type) if self.has_integer_sub else sub))


_CLAIM: Final = dict.fromkeys(("claim_workflow", "claim_run", "claim_until_us"))  # a rebuilt catalog has no claims
_TRANSACTION_KEYS: Final = ("sequence", "tc_id")

RECORDED_TABLES: Final[Mapping[RecordKind, RecordedTable]] = {
    RecordKind.TOPIC: RecordedTable(table=t.topic, id="topic_id", unique=("name",)),
    RecordKind.LIST: RecordedTable(
        table=t.ledger_list,
        id="list_id",
        parent=RecordKind.TOPIC,
        unique=("topic_id", "component", "owner"),
        renamed={"version": "list_version"},
        triggers=(_INSERT, Trigger("UPDATE", ("version",))),
    ),
    RecordKind.LEDGER: RecordedTable(
        table=t.ledger,
        id="ledger_id",
        parts=(PartTable(t.ledger_copy, ("ledger_id",), triggers=(_INSERT, _UPDATE)),),
        renamed={"epoch": "ledger_epoch"},
        unrecorded=dict.fromkeys(("entries", "size_bytes", "segments")),  # sums over the ledger's segments
        triggers=(_INSERT, Trigger("UPDATE", ("state", "place", "generation", "closed_us"))),
    ),
    RecordKind.SEGMENT: RecordedTable(
        table=t.segment, id="ledger_id", sub="number", parent=RecordKind.LEDGER, triggers=(_INSERT,)
    ),
    RecordKind.CURSOR: RecordedTable(
        table=t.cursor,
        id="cursor_id",
        parent=RecordKind.TOPIC,
        unique=("topic_id", "name"),
        unrecorded={"releases": None},  # continues above all numbers of the lost catalog
    ),
    RecordKind.SCHEMA: RecordedTable(
        table=t.schema_version, id="topic_id", sub="version", parent=RecordKind.TOPIC, triggers=(_INSERT,)
    ),
    RecordKind.PRODUCER: RecordedTable(
        table=t.producer_sequence, id="topic_id", sub="producer", parent=RecordKind.TOPIC
    ),
    RecordKind.DELETION: RecordedTable(
        table=t.pending_deletion,
        id="row_id",
        renamed={"epoch": "ledger_epoch"},
        unrecorded=_CLAIM | {"keys_left": None, "keys_left_attempts": 0, "trace_id": None},  # of the last attempt
        triggers=(_INSERT, Trigger("UPDATE", ("state", "outcome", "generation", "openings", "context"))),
    ),
    RecordKind.TRANSACTION: RecordedTable(
        table=t.transaction,
        id="sequence",
        sub="tc_id",
        parts=(
            PartTable(t.transaction_participant, _TRANSACTION_KEYS, "participants"),
            PartTable(t.buffer_range, _TRANSACTION_KEYS, "ranges", (_INSERT, Trigger("DELETE"))),
        ),
        unrecorded=_CLAIM | {"trace_id": None},
        triggers=(Trigger("UPDATE", ("state",)),),  # an open transaction without entries is not recorded
    ),
    RecordKind.HIDDEN: RecordedTable(table=t.buffer_hidden, id="ledger_id", parent=RecordKind.LEDGER),
    RecordKind.INDEX: RecordedTable(
        table=t.delayed_index,
        id="topic_id",
        parent=RecordKind.TOPIC,
        parts=(PartTable(t.delayed_bucket, ("topic_id",), "buckets"),),
        renamed={"version": "list_version"},
        unrecorded=_CLAIM | {"unsealed": 0},  # adoption counts unsealed entries again
        triggers=(Trigger("UPDATE", ("version",)),),
    ),
    RecordKind.SNAPSHOT: RecordedTable(
        table=t.transaction_snapshot,
        id="topic_id",
        parent=RecordKind.TOPIC,
        unrecorded={"changes": 0, "due_us": None},  # the next snapshot is due at once
        triggers=(_INSERT, Trigger("UPDATE", ("ledger_id",))),
    ),
}
"""Recorded table of each kind. Parents come before their children."""

TOMBSTONE_TRIGGERS: Final = (_INSERT, Trigger("UPDATE", ("generation", "epoch", "at_us")))
"""Triggers of the table `tombstone`, whose rows are records of other tables."""

LOADED_TABLES: Final[tuple[Table, ...]] = (
    *(
        table
        for recorded in RECORDED_TABLES.values()
        for table in (recorded.table, *(part.table for part in recorded.parts))
    ),
    t.tombstone,
)
"""All tables with data of records, in load order."""


def find_columns_of_dependent_rows(kind: RecordKind) -> Iterator[Column[Any]]:
    """Yield the columns of other tables that have the id of a record. If the record is removed, their rows are too."""
    recorded = RECORDED_TABLES[kind]
    yield from (part.table.c[recorded.id] for part in recorded.parts)
    for child in RECORDED_TABLES.values():
        if child.parent is kind:
            yield from (table.c[recorded.id] for table in (child.table, *(part.table for part in child.parts)))


def select_keys_of_all_records() -> Iterator[Select[Any]]:
    """Yield a query for each kind, and one for tombstones. A query selects (kind, id, second part of id) of records."""
    for kind, recorded in RECORDED_TABLES.items():
        c = recorded.table.c
        sub = cast(c[recorded.sub], Text) if recorded.sub else literal("")
        yield select(literal(kind.value), c[recorded.id], sub)
    yield select(t.tombstone.c.kind, t.tombstone.c.id, literal(""))


def match_unflushed_records(kind: str, record_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Select records of an indexed kind with a change in the outbox. While a block is staged, select all records."""
    in_outbox = exists().where(t.record_outbox.c.kind == kind, t.record_outbox.c.id == record_id, _INDEXED_KINDS)
    return or_(in_outbox, exists().select_from(t.record_staged))


def select_unflushed_ids(kind: str) -> Select[tuple[int]]:
    return select(t.record_outbox.c.id).where(t.record_outbox.c.kind == kind, _INDEXED_KINDS)


_INDEXED_KINDS: Final = text("record_outbox.kind IN ('deletion', 'ledger', 'topic')")
"""Condition of the outbox's partial index. SQLite uses the index only for statements with exactly this text."""


def enqueue_records(connection: Connection, keys: Select[Any], *, at_us: int) -> None:
    rows = keys.add_columns(literal(at_us, BigInteger))
    connection.execute(insert(t.record_outbox).from_select(["kind", "id", "sub", "at_us"], rows))


def remove_outbox_rows(connection: Connection, versions: Sequence[int]) -> None:
    """Remove the outbox rows whose column `version` is in `versions`. Numbers without a gap are removed as a range."""
    if not versions:
        return
    version, first, last = t.record_outbox.c.version, min(versions), max(versions)
    is_run = last - first + 1 == len(versions)
    selected = version.between(first, last) if is_run else is_one_of(connection, version, versions)
    connection.execute(delete(t.record_outbox).where(selected))
