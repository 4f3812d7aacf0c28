"""The outbox of the record log: triggers insert its rows, a settled flush removes them, and nothing else writes it.

A trigger records a change whatever statement made it, set-wise ones too, in the transaction of the change. It runs
behind the change, while that holds the lock of the row. The outbox's `version` only tells changes apart: a flush gives
what it writes the number of its manifest (ADR 15).

There are no triggers of removals: a removed row with a tombstone is flushed as that, one without it writes nothing. A
copy that is taken away raises the generation of its ledger (see `ledger_rows`), which records the ledger.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Connection, delete

from infra.catalog import tables as t
from infra.catalog.engine.clock import Clock
from infra.catalog.engine.many import among
from logstore.records.kinds import RecordKind

_CHUNK: Final = 50_000


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


@dataclass(frozen=True, slots=True)
class _Trigger:
    """After which event on which table a record of that kind has changed."""

    kind: RecordKind | None  # None: the row's own column says it
    event: str  # INSERT, UPDATE or DELETE
    of: str = ""  # the columns whose update counts; empty: any
    table: str = ""  # empty: the kind's

    @property
    def source(self) -> Source:
        """The table of the trigger, with the record's key in it."""
        if self.kind is None:
            return Source("tombstone", "id")
        known = SOURCES[self.kind]
        return known._replace(table=self.table) if self.table else known

    @property
    def name(self) -> str:
        """Of the trigger, and of its function on PostgreSQL."""
        return f"record_{self.source.table}_{self.event.lower()}"

    def row(self, alias: str, clock: str) -> str:
        """The outbox's columns, from a row under that name."""
        kind = f"{alias}.kind" if self.kind is None else f"'{self.kind.value}'"
        sub = f"{alias}.{self.source.sub}" if self.source.sub else "''"
        told = f"CAST({sub} AS TEXT)" if self.source.number else sub
        return f"{kind}, {alias}.{self.source.id}, {told}, {clock}"


_K = RecordKind
_TRIGGERS: Final = (
    _Trigger(_K.TOPIC, "INSERT"),
    _Trigger(_K.TOPIC, "UPDATE"),
    _Trigger(_K.LIST, "INSERT"),
    _Trigger(_K.LIST, "UPDATE", of="version"),
    _Trigger(_K.LEDGER, "INSERT"),
    _Trigger(_K.LEDGER, "UPDATE", of="state, place, generation, closed_us"),  # an append's segment says the rest
    _Trigger(_K.LEDGER, "INSERT", table="ledger_copy"),
    _Trigger(_K.LEDGER, "UPDATE", table="ledger_copy"),
    _Trigger(_K.SEGMENT, "INSERT"),
    _Trigger(_K.CURSOR, "INSERT"),
    _Trigger(_K.CURSOR, "UPDATE"),
    _Trigger(_K.SCHEMA, "INSERT"),
    _Trigger(_K.PRODUCER, "INSERT"),
    _Trigger(_K.PRODUCER, "UPDATE"),
    _Trigger(_K.DELETION, "INSERT"),
    _Trigger(_K.DELETION, "UPDATE", of="state, outcome, generation, openings, context"),  # not claims and attempts
    _Trigger(_K.TRANSACTION, "UPDATE", of="state"),
    _Trigger(_K.TRANSACTION, "INSERT", table="buffer_range"),
    _Trigger(_K.TRANSACTION, "DELETE", table="buffer_range"),
    _Trigger(_K.HIDDEN, "INSERT"),
    _Trigger(_K.HIDDEN, "UPDATE"),
    _Trigger(_K.INDEX, "UPDATE", of="version"),
    _Trigger(_K.SNAPSHOT, "INSERT"),
    _Trigger(_K.SNAPSHOT, "UPDATE", of="ledger_id"),
    _Trigger(None, "INSERT"),
    _Trigger(None, "UPDATE", of="generation, epoch, at_us"),
)

_INSERT: Final = f"INSERT INTO {t.record_outbox.name} (kind, id, sub, at_us)"


def create_triggers(connection: Connection) -> None:
    """Create all of them; the tables are there."""
    for statement in _creations(connection.dialect.name, _clock(connection)):
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection) -> None:
    """Remove all of them, as for a bulk load of what is recorded already."""
    for trigger in _TRIGGERS:
        where = "" if connection.dialect.name == "sqlite" else f' ON "{trigger.source.table}"'
        connection.exec_driver_sql(f"DROP TRIGGER {trigger.name}{where}")
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql(f"DROP FUNCTION {trigger.name}()")


def record_everything(connection: Connection) -> None:
    """Let every record be flushed once more, as after a migration of a catalog that had no record log."""
    clock = _clock(connection)
    for kind, source in SOURCES.items():
        row = _Trigger(kind, "INSERT").row("one", clock)
        connection.exec_driver_sql(f'{_INSERT} SELECT {row} FROM "{source.table}" AS one')  # noqa: S608 - names of ours


def forget_changes(connection: Connection, taken: Collection[int]) -> None:
    """Remove the rows that a flush has taken, and no others."""
    ids = sorted(taken)
    for start in range(0, len(ids), _CHUNK):
        chosen = among(connection, t.record_outbox.c.version, ids[start : start + _CHUNK])
        connection.execute(delete(t.record_outbox).where(chosen))


def _clock(connection: Connection) -> str:
    return str(Clock().compile(dialect=connection.dialect))


def _creations(dialect: str, clock: str) -> Iterator[str]:
    for trigger in _TRIGGERS:
        yield from (_of_sqlite(trigger, clock),) if dialect == "sqlite" else _of_postgresql(trigger, clock)


def _head(trigger: _Trigger) -> str:
    columns = f" OF {trigger.of}" if trigger.of else ""
    return f'CREATE TRIGGER {trigger.name} AFTER {trigger.event}{columns} ON "{trigger.source.table}"'


def _of_sqlite(trigger: _Trigger, clock: str) -> str:
    row = trigger.row("OLD" if trigger.event == "DELETE" else "NEW", clock)
    return f"{_head(trigger)} FOR EACH ROW BEGIN {_INSERT} VALUES ({row}); END"


def _of_postgresql(trigger: _Trigger, clock: str) -> Iterator[str]:
    """One call a statement; one a row where columns are named, which PostgreSQL does not allow for a statement."""
    old = trigger.event == "DELETE"
    if trigger.of:
        each, inserted = "FOR EACH ROW", f"VALUES ({trigger.row('NEW', clock)})"
    else:
        each = f"REFERENCING {'OLD' if old else 'NEW'} TABLE AS changed FOR EACH STATEMENT"
        inserted = f"SELECT {trigger.row('changed', clock)} FROM changed"  # noqa: S608
    yield (
        f"CREATE FUNCTION {trigger.name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {_INSERT} {inserted}; RETURN NULL; END $$"
    )
    yield f"{_head(trigger)} {each} EXECUTE FUNCTION {trigger.name}()"
