"""A catalog as the first release left it: made by its migration alone, filled with plain SQL."""

import json
from typing import Any, Final

from alembic import command
from pyroaring import BitMap
from sqlalchemy import Connection, text

from infra.catalog import Database
from infra.catalog.engine.versions import _build_alembic_config
from logstore.cursors.state import pack_acknowledged
from logstore.positions import LedgerId

NAME: Final = "persistent://shop/main/orders"
LEDGERS: Final = (0, 1, 2, 3)  # ten entries each; the last one is open
ACKNOWLEDGED: Final = {LedgerId(1): BitMap([0, 1, 5]), LedgerId(2): BitMap([9])}  # beyond 0:9
STALLED: Final = 101  # its batch's claim ended long ago
RETRYING: Final = 102  # has a workflow of its own, which is long dead too
DEAD: Final = 103
DELETED: Final = 104
NEXT_LEDGER: Final = 200
_LONG_AGO: Final = 1_700_000_000_000_000


def make_first_release(database: Database) -> None:
    """Create the tables of version 0001 and fill them."""
    database.make_folder()
    migrate_to(database, "0001")
    database.write(_fill)


def rows_of(database: Database, columns: dict[str, list[str]]) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the tables, by these columns, in any order that is always the same."""

    def work(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
        found = {}
        for table, names in columns.items():
            rows = connection.execute(text(f"SELECT {', '.join(names)} FROM {table}")).all()
            found[table] = sorted((tuple(map(_plain, row)) for row in rows), key=repr)
        return found

    return database.read(work)


def columns_of(database: Database) -> dict[str, list[str]]:
    """Columns of every table, as the database has them."""
    from sqlalchemy import inspect  # noqa: PLC0415 - of a connection, not of Python

    def work(connection: Connection) -> dict[str, list[str]]:
        found = inspect(connection)
        names = [name for name in found.get_table_names() if name != "alembic_version"]
        return {name: [column["name"] for column in found.get_columns(name)] for name in names}

    return database.read(work)


def _plain(value: Any) -> Any:
    """JSON is text in SQLite and a value in PostgreSQL."""
    if isinstance(value, str) and value.startswith("{"):
        return json.dumps(json.loads(value), sort_keys=True)
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return bytes(value) if isinstance(value, memoryview) else value


def migrate_to(database: Database, version: str) -> None:
    """Run migrations as far as that version, and no further."""

    def work(connection: Connection) -> None:
        config = _build_alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, version)

    database.write(work)


def _fill(connection: Connection) -> None:
    _insert(connection, "topic", name=NAME, state="ACTIVE", retention_s=0, retention_bytes=None, created_us=_LONG_AGO)
    _insert(connection, "ledger_list", topic_id=1, component="MANAGED_LEDGER", owner="{}", version=4)
    for ledger_id in LEDGERS:
        _ledger(connection, ledger_id)
    _insert(
        connection,
        "cursor",
        topic_id=1,
        name="billing",
        mark_ledger=0,
        mark_entry=9,
        acknowledged=pack_acknowledged(ACKNOWLEDGED),
        created_us=_LONG_AGO,
    )
    _insert(connection, "producer_sequence", topic_id=1, producer="writer", sequence_id=39)
    for run_id in ("1-old", "1-older"):
        _run(connection, run_id)
    _intent(connection, STALLED, "1-old", state="PENDING")
    dead_workflow = {"claim_workflow": f"delete-ledger/{RETRYING}/LEDGER/1", "claim_until_us": _LONG_AGO, "attempts": 3}
    _intent(connection, RETRYING, "1-old", state="PENDING", last_error="StoreUnavailable: 503", **dead_workflow)
    mismatch = {"outcome": "METADATA_MISMATCH", "last_error": "another application's", "attempts": 1}
    _intent(connection, DEAD, "1-older", state="DEAD_LETTERED", finished_us=_LONG_AGO, **mismatch)
    _intent(connection, DELETED, "1-older", state="DELETED", outcome="DELETED", attempts=1, finished_us=_LONG_AGO)
    _insert(
        connection,
        "audit",
        at_us=_LONG_AGO,
        act="detach",
        actor="ann",
        reason="end of day",
        workflow_id="delete-ledgers/1-old",
        topic_id=1,
        topic=NAME,
        detail=json.dumps({"ledgers": 2, "first": STALLED, "last": RETRYING, "sample": [STALLED, RETRYING]}),
    )
    connection.execute(text(f"UPDATE catalog SET next_ledger_id = {NEXT_LEDGER}"))


def _ledger(connection: Connection, ledger_id: int) -> None:
    is_open = ledger_id == LEDGERS[-1]
    _insert(
        connection,
        "ledger",
        ledger_id=ledger_id,
        list_id=1,
        place=ledger_id,
        application="sexton",
        state="OPEN" if is_open else "CLOSED",
        entries=10,
        size_bytes=100,
        segments=1,
        last_segment=0,
        generation=0,
        epoch=1,
        created_us=_LONG_AGO,
        closed_us=None if is_open else _LONG_AGO,
    )
    _insert(connection, "ledger_copy", ledger_id=ledger_id, kind="LEDGER", state="LIVE", context="{}")
    _insert(connection, "segment", ledger_id=ledger_id, number=0, first_entry=0, entries=10, size_bytes=100)


def _run(connection: Connection, run_id: str) -> None:
    finished = _LONG_AGO if run_id == "1-older" else None
    claim = {} if finished else {"claim_workflow": f"delete-ledgers/{run_id}", "claim_until_us": _LONG_AGO}
    summary = {"ledgers": 2, "intents": 2, "finished": {}, "request": "0" * 64}
    _insert(
        connection,
        "run",
        run_id=run_id,
        kind="delete-ledgers",
        topic_id=1,
        summary=json.dumps(summary),
        created_us=_LONG_AGO,
        finished_us=finished,
        **claim,
    )


def _intent(connection: Connection, ledger_id: int, batch_id: str, **more: Any) -> None:
    fixed: dict[str, Any] = {
        "batch_id": batch_id,
        "ledger_id": ledger_id,
        "copy": "LEDGER",
        "generation": 1,
        "application": "sexton",
        "component": "MANAGED_LEDGER",
        "topic_id": 1,
        "topic": NAME,
        "keys": "{}",
        "context": "{}",
        "segments": 1,
        "last_segment": 0,
        "ledger_created_us": _LONG_AGO,
        "size_bytes": 100,
        "epoch": 1,
        "attempts": 0,
        "objects_deleted": 0,
        "bytes_deleted": 0,
        "created_us": _LONG_AGO,
    }
    _insert(connection, "pending_deletion", **(fixed | more))


def _insert(connection: Connection, table: str, **values: Any) -> None:
    names = ", ".join(f'"{name}"' for name in values)
    connection.execute(
        text(f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name in values)})"), values
    )
