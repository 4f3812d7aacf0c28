"""The outbox of the record log: triggers insert its rows, a settled flush removes them.

Only a record log that is written anew has its rows inserted from here.

A trigger records a change whatever statement made it, set-wise ones too, in the transaction of the change. It runs
behind the change, while that holds the lock of the row. The outbox's `version` only tells changes apart: a flush gives
what it writes the number of its manifest (ADR 15). Migrations alone create triggers, beginning with 0009.

There are no triggers of removals: a removed row with a tombstone is flushed as that, one without it writes nothing. A
copy that is taken away raises the generation of its ledger (see `ledger_rows`), which records the ledger.
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

from infra.catalog import tables as t
from infra.catalog.engine.dialects import among
from logstore.records.kinds import RecordKind


class Source(NamedTuple):
    """The rows that records of a kind are of."""

    table: str
    id: str  # column of the record's id
    sub: str = ""  # column of its sub; empty: none
    number: bool = False  # whether that column is a number


SOURCES: Final[Mapping[RecordKind, Source]] = {
    RecordKind.TOPIC: Source("topic", "topic_id"),
    RecordKind.LIST: Source("ledger_list", "list_id"),
    RecordKind.LEDGER: Source("ledger", "ledger_id"),
    RecordKind.SEGMENT: Source("segment", "ledger_id", "number", number=True),
    RecordKind.CURSOR: Source("cursor", "cursor_id"),
    RecordKind.SCHEMA: Source("schema_version", "topic_id", "version", number=True),
    RecordKind.PRODUCER: Source("producer_sequence", "topic_id", "producer"),
    RecordKind.DELETION: Source("pending_deletion", "row_id"),
    RecordKind.TRANSACTION: Source("transaction", "sequence", "tc_id", number=True),
    RecordKind.HIDDEN: Source("buffer_hidden", "ledger_id"),
    RecordKind.INDEX: Source("delayed_index", "topic_id"),
    RecordKind.SNAPSHOT: Source("transaction_snapshot", "topic_id"),
}


def every_record() -> Iterator[Select[Any]]:
    """The keys of all rows of records, kind by kind, and those of tombstones: kind, id and sub."""
    for kind, source in SOURCES.items():
        c = t.metadata.tables[source.table].c
        sub = cast(c[source.sub], Text) if source.sub else literal("")
        yield select(literal(kind.value), c[source.id], sub)
    yield select(t.tombstone.c.kind, t.tombstone.c.id, literal(""))


def waits(kind: str, record_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether that deletion, ledger or topic has a change in no block, or may have one in a block that is staged.

    It is told by the index of these kinds. SQLite uses an index of some rows only where a statement names those rows in
    the index' own words.
    """
    filed = exists().where(t.record_outbox.c.kind == kind, t.record_outbox.c.id == record_id, _INDEXED)
    return or_(filed, exists().select_from(t.record_staged))


def waiting_ids(kind: str) -> Select[tuple[int]]:
    """Ids of the deletions, ledgers or topics that have a change in the outbox."""
    return select(t.record_outbox.c.id).where(t.record_outbox.c.kind == kind, _INDEXED)


_INDEXED: Final = text("record_outbox.kind IN ('deletion', 'ledger', 'topic')")


def record(connection: Connection, keys: Select[Any], *, at_us: int) -> None:
    """Let these records be flushed once more."""
    rows = keys.add_columns(literal(at_us, BigInteger))
    connection.execute(insert(t.record_outbox).from_select(["kind", "id", "sub", "at_us"], rows))


def forget_changes(connection: Connection, taken: Sequence[int]) -> None:
    """Remove the rows that a flush has taken, and no others; numbers in a row are not told one by one."""
    if not taken:
        return
    version, first, last = t.record_outbox.c.version, min(taken), max(taken)
    gone = version.between(first, last) if last - first + 1 == len(taken) else among(connection, version, taken)
    connection.execute(delete(t.record_outbox).where(gone))
