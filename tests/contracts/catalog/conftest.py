"""The catalogs that the suite holds to the port: the fake, SQLite and a real PostgreSQL, each fresh for every test.

Every test runs on the fake and on SQLite. On PostgreSQL it runs where that may answer otherwise, and then bears the
mark `postgres`, on the function or on the module:

- locks, races and isolation, for SQLite knows one writer at a time: what waits behind a lock, what is done by many at
  once, what dies between two statements of a transaction;
- types and their limits, order, and whatever else a dialect says in its own way;
- a statement that no marked test sends yet. PostgreSQL refuses statements that SQLite takes (`FOR UPDATE` with an
  aggregate, a parameter whose type it cannot know), so each is sent at least once.

With `--all-faults` (`make faults`) every test runs on PostgreSQL as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.catalog import Database, upgrade
from logstore.failpoints import disarm
from tests.contracts.catalog.worlds import MemoryWorld, SqlWorld, World
from tests.migrated import migrated
from tests.postgres import Postgres, postgres

__all__ = ["postgres"]

_POSTGRES = pytest.param("postgres", marks=pytest.mark.external_service)


@pytest.hookimpl(tryfirst=True)  # before what is left out goes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what bears no mark to the long run."""
    for item in items:
        kinds = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        is_postgres = "postgres" in {kinds.get("world"), kinds.get("sql_world")}
        if is_postgres and not item.get_closest_marker("postgres"):
            item.add_marker("all_faults")


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> Iterator[str]:
    """An empty catalog to copy."""
    with postgres.database() as name:
        database = Database(postgres.url(name))
        upgrade(database)
        database.close()
        yield name


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh catalog."""
    return migrated(tmp_path / "catalog.db")


@pytest.fixture
def postgres_url(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    """A fresh catalog."""
    with postgres.database(template=postgres_template) as name:
        yield postgres.url(name)


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
    disarm()
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
