"""Queries that are asked all the time read what they need, however much has been deleted before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event

from infra.catalog import Database, SqlCatalog, upgrade


def _plan(database: Database, work: Callable[[], Any]) -> list[str]:
    """How SQLite goes about the last statement of some work."""
    said: list[tuple[str, Any]] = []

    def listen(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        said.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", listen)
    work()
    event.remove(database.engine, "before_cursor_execute", listen)
    statement, parameters = said[-1]
    return [
        row[-1]
        for row in database.read(lambda c: c.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all())
    ]


def test_inflight_reads_only_what_is_left(tmp_path: Path) -> None:
    """Every worker asks every 15 s: it must not walk over a month of finished rows."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    upgrade(database)
    plan = _plan(database, SqlCatalog(database).deletions.inflight)
    database.close()
    reads = [line for line in plan if "pending_deletion" in line]
    how = "SEARCH pending_deletion USING COVERING INDEX pending_deletion_by_state"
    assert sorted(reads) == [f"{how} (state<?)", f"{how} (state>?)"]
