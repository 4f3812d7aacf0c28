"""Queries that are asked all the time read what they need, however much has been deleted before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event

from logstore.catalog import Catalog, Database
from logstore.ports.catalog.deletion import AuditCause, Claim
from tests.migrated_catalogs import migrate_or_copy_catalog


def _plan(database: Database, work: Callable[[], Any]) -> list[str]:
    """How SQLite goes about the last statement of some work."""
    return _explained(database, *_said(database, work)[-1])


def _plans(database: Database, work: Callable[[], Any]) -> list[str]:
    """How SQLite goes about every statement of some work."""
    return [line for one in _said(database, work) for line in _explained(database, *one)]


def _said(database: Database, work: Callable[[], Any]) -> list[tuple[str, Any]]:
    said: list[tuple[str, Any]] = []

    def listen(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        said.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", listen)
    work()
    event.remove(database.engine, "before_cursor_execute", listen)
    return [one for one in said if one[0].startswith(("SELECT", "UPDATE", "DELETE"))]


def _explained(database: Database, statement: str, parameters: Any) -> list[str]:
    rows = database.read(lambda c: c.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all())
    return [row[-1] for row in rows]


def test_inflight_reads_only_what_is_left(tmp_path: Path) -> None:
    """Every worker asks every 15 s: it must not walk over a month of finished rows."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database)
    plan = _plans(database, Catalog(database).deletions.count_undeleted_copies)
    database.close()
    *counts, oldest, first = [line for line in plan if "pending_deletion" in line]
    how = "SEARCH pending_deletion USING COVERING INDEX pending_deletion_by_"  # of the two that begin with the state
    assert [line.startswith(how) for line in (*counts, first)] == [True, True, True]
    assert sorted(line[-9:] for line in (*counts, first)) == ["(state<?)", "(state=?)", "(state>?)"]
    assert oldest == "SEARCH pending_deletion USING INTEGER PRIMARY KEY (rowid=?)"


def test_finished_deletions_of_ledgers_are_read_through_an_index(tmp_path: Path) -> None:
    """A raid asks for every ledger whose tombstone may go, beside a month of finished rows."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database)
    plan = _plan(database, lambda: Catalog(database).records.list_finished_deletions(range(9)))
    database.close()
    assert ["SEARCH pending_deletion USING INDEX" in line for line in plan if "pending_deletion" in line] == [True]


def test_sweep_with_nothing_to_do_reads_through_indexes_only(tmp_path: Path) -> None:
    """Once a minute, beside a month of finished rows and every ledger there is: it must walk over none of them."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database)
    sweeps, nobody = Catalog(database).upkeep, Claim(workflow_id="w", run_id="", ttl_s=1)
    cause = AuditCause(actor="tests", reason="a test", workflow_id="w")
    plans = _plans(database, lambda: sweeps.move_abandoned_work_to_batch(batch_id="b", claim=nobody, limit=9))
    plans += _plans(database, lambda: sweeps.remove_finished_rows(older_than_s=9, limit=9, cause=cause))
    database.close()
    assert len([line for line in plans if line.startswith("SEARCH")]) >= 4
    assert not [line for line in plans if line.startswith("SCAN")]


def test_listing_intents_asks_of_their_own_batches_alone_whether_they_are_paused(tmp_path: Path) -> None:
    """However many batches an operator has paused."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database)
    plan = _plan(database, lambda: Catalog(database).deletions.list_intents(None, limit=9))
    database.close()
    assert [line for line in plan if line.startswith("SEARCH run USING") and "(run_id=?)" in line]
    assert not [line for line in plan if line.startswith("SCAN run")]


def test_what_waits_to_be_flushed_is_told_by_an_index(tmp_path: Path) -> None:
    """Every deletion asks it and each tombstone of a raid, however many changes of other records wait in the outbox."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database)
    catalog = Catalog(database)
    graves = [("ledger", 1), ("ledger", 2), ("topic", 3)]
    put = "INSERT INTO tombstone (kind, id, generation, epoch, at_us, raid) VALUES (?, ?, 1, 1, 1, 'earlier')"
    database.write(lambda c: [c.exec_driver_sql(put, grave) for grave in graves])
    forget = "DELETE FROM record_outbox"  # of what the trigger recorded
    database.write(lambda c: c.exec_driver_sql(forget))
    plans = _plans(database, lambda: catalog.records.find_unflushed_ledgers([1, 2]))
    plans += _plans(database, lambda: catalog.tombstones.mark_raid_candidates("raid", before_us=9, after=None, limit=9))
    plans += _plans(database, lambda: catalog.tombstones.remove_raid_candidates("raid", before_us=9, limit=9))
    left = catalog.tombstones.count_tombstones()
    database.close()
    assert left.by_kind == {}, "all statements of a raid were sent"
    asked = [line for line in plans if "record_outbox" in line]
    assert len(asked) >= 9
    assert {line.split("(")[0] for line in asked} <= {
        "SEARCH record_outbox USING INDEX record_outbox_by_record ",
        "SEARCH record_outbox USING COVERING INDEX record_outbox_by_record ",
    }
    assert not [line for line in plans if line.startswith(("SCAN pending_deletion", "SCAN ledger "))]
