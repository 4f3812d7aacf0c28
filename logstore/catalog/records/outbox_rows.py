"""Outbox of the record log: changes of records that no flush has written yet.

Triggers insert a row in the transaction of each change, under the lock of the changed row. When a flush is settled, the
flushed rows are removed. `enqueue_records` inserts rows for unchanged records. The column `version` numbers the
changes. In blocks, the column `version` has the number of the manifest (ADR 15).

No trigger records the removal of a row. After a durable deletion, the new tombstone is flushed instead. The removal of
a copy raises the ledger's generation, and a trigger records this change.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Text,
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


class RecordSource(NamedTuple):
    table: str
    id: str  # column of the record's id
    sub: str = ""  # column of the second part of the record's key; empty: the key has one part
    number: bool = False  # whether the column `sub` is an integer


SOURCES: Final[Mapping[RecordKind, RecordSource]] = {
    RecordKind.TOPIC: RecordSource("topic", "topic_id"),
    RecordKind.LIST: RecordSource("ledger_list", "list_id"),
    RecordKind.LEDGER: RecordSource("ledger", "ledger_id"),
    RecordKind.SEGMENT: RecordSource("segment", "ledger_id", "number", number=True),
    RecordKind.CURSOR: RecordSource("cursor", "cursor_id"),
    RecordKind.SCHEMA: RecordSource("schema_version", "topic_id", "version", number=True),
    RecordKind.PRODUCER: RecordSource("producer_sequence", "topic_id", "producer"),
    RecordKind.DELETION: RecordSource("pending_deletion", "row_id"),
    RecordKind.TRANSACTION: RecordSource("transaction", "sequence", "tc_id", number=True),
    RecordKind.HIDDEN: RecordSource("buffer_hidden", "ledger_id"),
    RecordKind.INDEX: RecordSource("delayed_index", "topic_id"),
    RecordKind.SNAPSHOT: RecordSource("transaction_snapshot", "topic_id"),
}


def select_keys_of_all_records() -> Iterator[Select[Any]]:
    """Yield a query for each kind, and one for tombstones. A query selects (kind, id, second part of id) of records."""
    for kind, source in SOURCES.items():
        c = t.metadata.tables[source.table].c
        sub = cast(c[source.sub], Text) if source.sub else literal("")
        yield select(literal(kind.value), c[source.id], sub)
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
