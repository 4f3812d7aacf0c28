"""Migrations: from empty they are the models; they race harmlessly; a newer catalog is left alone."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from infra.catalog import Database, SqlCatalog, check_version, upgrade
from infra.catalog.tables import metadata
from logstore.errors import CatalogVersionMismatch
from logstore.retention import RetentionPolicy

Connect = Callable[..., Database]

_UPGRADE = """
import sys
from infra.catalog import Database, upgrade
database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
upgrade(database)
database.close()
"""


def _differences(database: Database) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True}
    return database.read(
        lambda connection: list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))
    )


def _tables(database: Database) -> set[str]:
    return database.read(lambda connection: set(inspect(connection).get_table_names()))


def _set_version(database: Database, version: str) -> None:
    database.write(lambda connection: connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'")))


def test_upgrade_from_empty_equals_the_models(url: str, connect: Connect) -> None:
    """The migrations and the models say the same, on both databases."""
    database = connect(url)
    upgrade(database)
    assert _differences(database) == []
    assert _tables(database) == {*metadata.tables, "alembic_version"}
    check_version(database)


def test_upgrade_repeated_keeps_everything(url: str, connect: Connect) -> None:
    """Repeating it is harmless: one catalog row, same epoch, and what was stored stays."""
    database = connect(url)
    upgrade(database)
    topic = SqlCatalog(database).topics.create("persistent://a/b/c", RetentionPolicy())
    SqlCatalog(database).ledgers.create(topic.topic_id, application="sexton")
    upgrade(database)
    rows = database.read(lambda connection: connection.execute(text("SELECT epoch, next_ledger_id FROM catalog")).all())
    assert rows == [(1, 1)]
    assert SqlCatalog(database).topics.all() == [topic]


def test_upgrade_three_processes_at_once_all_succeed(url: str, connect: Connect) -> None:
    """Whoever comes second finds it done, whichever process is first."""
    runs = [
        subprocess.Popen([sys.executable, "-c", _UPGRADE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write(b"\n")
        run.stdin.flush()
    for run in runs:
        run.communicate(timeout=60)
    assert [run.returncode for run in runs] == [0, 0, 0]
    database = connect(url)
    check_version(database)
    assert database.read(lambda connection: connection.execute(text("SELECT count(*) FROM catalog")).scalar_one()) == 1


def test_newer_catalog_is_refused_and_nothing_changes(url: str, connect: Connect) -> None:
    """An older build leaves a newer catalog alone, and says what to do."""
    database = connect(url)
    upgrade(database)
    _set_version(database, "9999")
    before = _tables(database)
    for ask in (upgrade, check_version):
        with pytest.raises(CatalogVersionMismatch, match="expected 0002, found 9999; it was written by a newer build"):
            ask(database)
    assert _tables(database) == before
    version = database.read(lambda connection: connection.execute(text("SELECT * FROM alembic_version")).scalar_one())
    assert version == "9999"


def test_check_version_empty_database_is_refused_and_stays_empty(url: str, connect: Connect) -> None:
    """Looking creates nothing."""
    database = connect(url)
    with pytest.raises(CatalogVersionMismatch, match="found an empty database; run"):
        check_version(database)
    assert database.is_absent or _tables(database) == set()


def test_check_version_older_catalog_is_refused(url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog of an earlier release is upgraded by choice, not by the way."""
    database = connect(url)
    upgrade(database)
    monkeypatch.setattr("infra.catalog.versions._head", lambda: "0003")
    with pytest.raises(CatalogVersionMismatch, match="expected 0003, found 0002; run"):
        check_version(database)
