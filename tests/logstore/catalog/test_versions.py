"""Migrations: from empty they are the models; they race harmlessly; a newer catalog is left alone."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from logstore.catalog import Catalog, Database, migrate_catalog, require_current_version
from logstore.catalog.declared.catalog_tables import metadata
from logstore.catalog.engine.catalog_version import VERSIONS, _build_alembic_config
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogVersionMismatch, InvalidInput, ServiceFailed
from logstore.ownership import MAX_BUNDLES
from tests.all_topics import list_all_topics

Connect = Callable[..., Database]

_UPGRADE = """
import sys
from logstore.catalog import Database, migrate_catalog
database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
migrate_catalog(database)
database.close()
"""


def _differences(database: Database) -> list[object]:
    options = {"compare_type": True, "compare_server_default": True}
    return database.read(
        lambda connection: list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))
    )


def _tables(database: Database) -> set[str]:
    return database.read(lambda connection: set(inspect(connection).get_table_names()))


def _triggers(database: Database) -> set[tuple[str, ...]]:
    """Name and text of each trigger and, on PostgreSQL, of its function."""
    statement = (
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        if database.is_sqlite
        else "SELECT t.tgname, pg_get_triggerdef(t.oid), pg_get_functiondef(t.tgfoid) FROM pg_trigger t"
        " WHERE NOT t.tgisinternal"
    )
    return {tuple(row) for row in database.read(lambda connection: connection.execute(text(statement)).all())}


def _set_version(database: Database, version: str) -> None:
    database.write(lambda connection: connection.execute(text(f"UPDATE alembic_version SET version_num = '{version}'")))


def test_upgrade_from_empty_equals_the_models(url: str, connect: Connect) -> None:
    """The migrations and the models say the same, on both databases."""
    database = connect(url)
    migrate_catalog(database)
    assert _differences(database) == []
    assert _tables(database) == {*metadata.tables, "alembic_version"}
    require_current_version(database)


def test_upgrade_from_empty_creates_the_triggers_of_the_outbox(url: str, connect: Connect) -> None:
    """The models do not declare them: a migration that makes a table anew on SQLite loses them without a word."""
    database = connect(url)
    migrate_catalog(database)
    assert len(_triggers(database)) == 26, "a trigger was lost, or a new one is not counted here"


def test_upgrade_repeated_keeps_everything(url: str, connect: Connect) -> None:
    """Repeating it is harmless: one catalog row, same epoch, and what was stored stays."""
    database = connect(url)
    migrate_catalog(database)
    topic = Catalog(database).topics.create_topic("persistent://a/b/c", RetentionPolicy())
    Catalog(database).ledgers.create_ledger(topic.topic_id, application="sexton")
    migrate_catalog(database)
    rows = database.read(lambda connection: connection.execute(text("SELECT epoch, next_ledger_id FROM catalog")).all())
    assert rows == [(1, 1)]
    assert list_all_topics(Catalog(database).topics) == [topic]


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_upgrade_of_an_earlier_version_equals_the_models_and_keeps_rows(
    version: str, url: str, connect: Connect
) -> None:
    database = connect(url)
    database.create_folder()
    database.write(partial(_upgrade_to, version))
    topic = Catalog(database).topics.create_topic("persistent://a/b/c", RetentionPolicy())
    with pytest.raises(CatalogVersionMismatch, match=f"found {version}; run"):
        require_current_version(database)
    migrate_catalog(database)
    assert _differences(database) == []
    assert list_all_topics(Catalog(database).topics) == [topic]


def _upgrade_to(version: str, connection: Connection) -> None:
    config = _build_alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, version)


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
    require_current_version(database)
    assert database.read(lambda connection: connection.execute(text("SELECT count(*) FROM catalog")).scalar_one()) == 1


def test_newer_catalog_is_refused_and_nothing_changes(url: str, connect: Connect) -> None:
    """An older build leaves a newer catalog alone, and says what to do."""
    database = connect(url)
    migrate_catalog(database)
    _set_version(database, "9999")
    before = _tables(database)
    for ask in (migrate_catalog, require_current_version):
        with pytest.raises(CatalogVersionMismatch, match="expected 0002, found 9999; it was written by a newer build"):
            ask(database)
    assert _tables(database) == before
    version = database.read(lambda connection: connection.execute(text("SELECT * FROM alembic_version")).scalar_one())
    assert version == "9999"


def test_check_version_empty_database_is_refused_and_stays_empty(url: str, connect: Connect) -> None:
    """Looking creates nothing."""
    database = connect(url)
    if database.is_sqlite:
        path = Path(str(database.engine.url.database))
        with pytest.raises(ServiceFailed, match=f"database: there is no file {path}; run `sexton up`"):
            require_current_version(database)
        assert database.is_absent
        database.create_folder()
        path.touch()
    with pytest.raises(CatalogVersionMismatch, match="found an empty database; run"):
        require_current_version(database)
    assert _tables(database) == set()


def test_versions_are_those_of_alembic() -> None:
    """The constant saves every command the import of Alembic, and must not lag behind."""
    scripts = ScriptDirectory.from_config(_build_alembic_config())
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(VERSIONS)
    assert scripts.get_current_head() == VERSIONS[-1]


def test_database_of_somebody_else_is_refused_and_left_as_it_is(url: str, connect: Connect) -> None:
    """Neither taken for a catalog nor made one, with an `alembic_version` of its own or without."""
    database = connect(url)
    database.create_folder()
    path = database.engine.url.database if database.is_sqlite else ":memory:"
    with closing(sqlite3.connect(str(path))) as foreign:
        for statement in ("CREATE TABLE invoice (id INTEGER)", "CREATE TABLE alembic_version (version_num TEXT)"):
            if database.is_sqlite:
                foreign.execute(statement)
            else:
                database.write(partial(_run, statement))
            for ask in (migrate_catalog, require_current_version):
                with pytest.raises(ServiceFailed, match=r"database: .* holds tables that are no catalog's; nothing"):
                    ask(database)
        assert not database.is_sqlite or foreign.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert _tables(database) == {"invoice", "alembic_version"}


def _run(statement: str, connection: Connection) -> None:
    connection.execute(text(statement))


def test_check_version_older_catalog_is_refused(url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog of an earlier release is upgraded by choice, not by the way."""
    database = connect(url)
    migrate_catalog(database)
    monkeypatch.setattr("logstore.catalog.engine.catalog_version.VERSIONS", (*VERSIONS, "0003"))
    with pytest.raises(CatalogVersionMismatch, match="expected 0003, found 0002; run"):
        require_current_version(database)


def test_upgrade_from_empty_takes_the_number_of_bundles_given_once(url: str, connect: Connect) -> None:
    """It is fixed when the catalog is created: a later upgrade with another number leaves it."""
    database = connect(url)
    migrate_catalog(database, bundles=1_000)
    assert _bundles(database) == 1_000
    for number in (64, 1):
        migrate_catalog(database, bundles=number)
        assert _bundles(database) == 1_000


def test_upgrade_from_empty_has_64_bundles_by_default(url: str, connect: Connect) -> None:
    """The number of a catalog that nobody sized."""
    database = connect(url)
    migrate_catalog(database)
    assert _bundles(database) == 64


@pytest.mark.parametrize("bundles", [0, -1, MAX_BUNDLES + 1])
def test_upgrade_with_an_impossible_number_of_bundles_creates_nothing(bundles: int, url: str, connect: Connect) -> None:
    """Bad input is refused before anything changes."""
    database = connect(url)
    with pytest.raises(InvalidInput, match=f"bundles: expected 1 to {MAX_BUNDLES}, found {bundles}"):
        migrate_catalog(database, bundles=bundles)
    assert database.is_absent or _tables(database) == set()


def _bundles(database: Database) -> int:
    return database.read(lambda connection: int(connection.execute(text("SELECT bundles FROM catalog")).scalar_one()))


def test_only_a_sqlite_file_is_looked_at_through_an_engine_of_its_own(tmp_path: Path) -> None:
    """A connection to PostgreSQL brings nothing into our mode: its version is read through the engine that is there."""
    for url, own in ((f"sqlite:///{tmp_path}/catalog.db", True), ("postgresql+psycopg://nobody@127.0.0.1/none", False)):
        database = Database(url)
        with database.open_read_only() as looking:
            assert (looking.engine is not database.engine) is own
        database.close()
