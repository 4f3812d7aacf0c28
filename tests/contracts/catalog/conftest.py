"""The catalogs that the suite holds to the port: the fake, SQLite and a real PostgreSQL, each fresh for every test.

A test runs on the fake and on SQLite. The fake keeps what the model's programs and the tests of `tests/logstore` call;
a contract of more bears the mark `sql`, or stands in what `_SQL` names. On PostgreSQL a test runs where that may answer
otherwise, and then bears the mark `postgres`, on the function or on the module:

- locks, races and isolation, for SQLite knows one writer at a time: what waits behind a lock, what is done by many at
  once, what dies between two statements of a transaction;
- types and their limits, order, and whatever else a dialect says in its own way;
- a statement that no marked test sends yet. PostgreSQL refuses statements that SQLite takes (`FOR UPDATE` with an
  aggregate, a parameter whose type it cannot know), so each is sent at least once.

With `--all-faults` (`make faults`) every test runs on PostgreSQL as well.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logstore.catalog import Database, migrate_catalog
from logstore.failpoints import disarm_all_and_take_hits
from tests.contracts.catalog.worlds import MemoryWorld, SqlWorld, World
from tests.migrated_catalogs import create_migrated_sqlite
from tests.postgres import PostgresServer, postgres

__all__ = ["postgres"]

_SQL = {"delayed", "ownership", "reconciliation", "test_audit_log", "test_chosen", "test_compound"}
"""Folders and modules of contracts that the fake does not keep."""
_POSTGRES = pytest.param("postgres", marks=pytest.mark.external_service)


@pytest.hookimpl(tryfirst=True)  # before what is left out goes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what bears no mark to the long run, and what the fake does not keep to the databases."""
    for item in list(items):
        kinds = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if kinds.get("world") == "memory" and (
            item.get_closest_marker("sql") or {item.path.parent.name, item.path.stem} & _SQL
        ):
            items.remove(item)
        is_postgres = "postgres" in {kinds.get("world"), kinds.get("sql_world")}
        if is_postgres and not item.get_closest_marker("postgres"):
            item.add_marker("all_faults")


@pytest.fixture(scope="session")
def emptied(postgres: PostgresServer) -> Iterator[Callable[[], str]]:
    """One catalog, emptied again and again: a tenth of what it costs to copy a database and to learn its tables."""
    with postgres.database() as name:
        database = Database(postgres.url(name))
        migrate_catalog(database)
        database.close()
        named = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        (tables,) = zip(*postgres.execute(named, name), strict=True)
        postgres.execute(f"CREATE SCHEMA kept; {_each('CREATE TABLE kept.{0} AS TABLE {0}', tables)}", name)
        restore = _each("DELETE FROM {0}; INSERT INTO {0} TABLE kept.{0}", tables)
        rewind = (
            "SELECT setval(seqrelid, seqstart, false) FROM pg_sequence WHERE seqrelid <> 'catalog_id_seq'::regclass"
        )
        hang_up = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        others = "AND pid <> pg_backend_pid()"
        again = f"{hang_up} {others}; SET session_replication_role = replica; {restore}; {rewind}"

        def empty() -> str:
            postgres.execute(again, name)
            return postgres.url(name)

        yield empty


def _each(statement: str, tables: Iterable[str]) -> str:
    return "; ".join(statement.format(table) for table in tables)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh catalog."""
    return create_migrated_sqlite(tmp_path / "catalog.db")


@pytest.fixture
def postgres_url(emptied: Callable[[], str]) -> str:
    """A fresh catalog; nobody else is connected to it."""
    return emptied()


@pytest.fixture(params=["sqlite", _POSTGRES])
def sql_world(request: pytest.FixtureRequest) -> Iterator[SqlWorld]:
    """A catalog in SQL, for what a test can say in SQL only."""
    with _in_sql(request) as found:
        yield found


@contextmanager
def _in_sql(request: pytest.FixtureRequest) -> Iterator[SqlWorld]:
    """A fresh one; no test may leave a connection in use."""
    found = SqlWorld(request.getfixturevalue(f"{request.param}_url"))
    yield found
    disarm_all_and_take_hits()
    checked_out = found.database.engine.pool.checkedout()  # type: ignore[attr-defined]  # a QueuePool
    found.database.close()
    assert checked_out == 0


@pytest.fixture(params=["memory", "sqlite", _POSTGRES])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Every implementation of the port."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    with _in_sql(request) as found:
        yield found
