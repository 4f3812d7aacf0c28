"""Catalogs with many rows of each large table, by one statement a table, and what these rows take on disk."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection

from logstore.catalog import Database

_NUMBERS: Final = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
_US: Final = 1_763_000_000_000_000
_NAME: Final = "'persistent://tenant-1/payments-eu/topic-' || (i + 10000000)"
_COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "topic": {
        "topic_id": "i",
        "name": _NAME,
        "state": "'ACTIVE'",
        "retention_s": "0",
        "created_us": f"{_US} + i",
    },
    "ledger_list": {
        "list_id": "i",
        "topic_id": "i",
        "component": "'MANAGED_LEDGER'",
        "owner": "''",
        "version": "100",
    },
    "cursor": {
        "cursor_id": "i",
        "topic_id": "1 + i / 2",
        "name": "'subscription-' || i",
        "mark_ledger": "i * 50",
        "mark_entry": "2000",
        "acknowledged": "{empty}",
        "seeks": "0",
        "created_us": f"{_US} + i",
    },
    "ledger": {
        "ledger_id": "i",
        "list_id": "1 + i / 100",
        "place": "i",
        "application": "'sexton'",
        "state": "'CLOSED'",
        "entries": "50000",
        "size_bytes": "64000000",
        "segments": "10",
        "last_segment": "9",
        "generation": "0",
        "epoch": "1",
        "created_us": f"{_US} + i",
        "closed_us": f"{_US} + i",
    },
    "ledger_copy": {"ledger_id": "i", "kind": "'LEDGER'", "state": "'LIVE'", "context": "'{{}}'"},
    "segment": {
        "ledger_id": "1 + i / 10",
        "number": "i % 10",
        "first_entry": "5000 * (i % 10)",
        "entries": "5000",
        "size_bytes": "6400000",
        "sha256": "'0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'",
        "delayed": "0",
    },
    "pending_deletion": {
        "row_id": "i",
        "batch_id": "'trim-0123456789ab'",
        "ledger_id": "i",
        "copy": "'LEDGER'",
        "generation": "1",
        "application": "'sexton'",
        "component": "'MANAGED_LEDGER'",
        "topic_id": "1 + i / 100",
        "topic": _NAME,
        "keys": "'{{}}'",
        "context": "'{{}}'",
        "segments": "10",
        "last_segment": "9",
        "ledger_created_us": f"{_US} + i",
        "size_bytes": "64000000",
        "epoch": "1",
        "state": "'DELETED'",
        "outcome": "'DELETED'",
        "attempts": "1",
        "objects_deleted": "11",
        "bytes_deleted": "64000000",
        "created_us": f"{_US} + i",
        "finished_us": f"{_US} + i",
        "actor": "'schedule'",
        "reason": "''",
        "trace_id": "'0123456789abcdef0123456789abcdef'",
    },
}


def bytes_a_row(database: Database, *, rows: int) -> dict[str, float]:
    """What a row of each large table takes, indexes included, once there are so many.

    The outbox of the record log is left out: triggers do not run.
    """
    taken: dict[str, float] = {}
    for table, columns in _COLUMNS.items():
        with database.engine.begin() as connection:
            _stop_triggers(connection, table)
            before = _size(connection, table)
            connection.exec_driver_sql(_insert(connection, table, columns, rows))
        with database.engine.begin() as connection:
            taken[table] = (_size(connection, table) - before) / rows
    return taken


def stored_bytes(database: Database, table: str) -> int:
    """Return what a table takes with its indexes; on SQLite, what the whole catalog takes."""
    with database.engine.begin() as connection:
        return _size(connection, table)


def _insert(connection: Connection, table: str, columns: Mapping[str, str], rows: int) -> str:
    lite = connection.dialect.name == "sqlite"
    empty, casts = ("x''", "") if lite else ("''::bytea", "::json")
    values = [value.format(empty=empty) + (casts if name == "context" else "") for name, value in columns.items()]
    names = ", ".join(f'"{name}"' for name in columns)
    chosen = f"SELECT {', '.join(values)} FROM n"
    numbers = _NUMBERS.format(rows=rows)
    target = f'INSERT INTO "{table}" ({names})'
    return (f"{target} {numbers} {chosen}" if lite else f"{numbers} {target} {chosen}").replace(
        "%", "%" if lite else "%%"
    )


def _stop_triggers(connection: Connection, table: str) -> None:
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        return
    found = connection.exec_driver_sql(
        f"SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{table}'"
    )
    for (name,) in found.all():
        connection.exec_driver_sql(f'DROP TRIGGER "{name}"')


def _size(connection: Connection, table: str) -> int:
    if connection.dialect.name != "sqlite":
        return int(connection.exec_driver_sql(f"SELECT pg_total_relation_size('\"{table}\"')").scalar_one())
    pages, free, size = (
        int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
