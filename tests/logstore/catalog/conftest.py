"""Databases without a schema, fresh for every test; a test that leaves a connection in use fails."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import QueuePool

from logstore.catalog import Database
from logstore.catalog.records import rebuild_loading, replica_database
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.postgres import PostgresServer, own_postgres, postgres

__all__ = ["own_postgres", "postgres"]


@pytest.fixture(scope="package", autouse=True)
def _copied_catalogs() -> Iterator[None]:
    """Let rebuilds and replicas begin with a copy of a migrated catalog."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (rebuild_loading, replica_database):
            patched.setattr(module, "migrate_catalog", migrate_or_copy_catalog)
        yield


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that is not there yet."""
    return f"sqlite:///{tmp_path / 'home' / 'catalog.db'}"


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database."""
    with postgres.database() as name:
        yield postgres.url(name)


@pytest.fixture
def connect() -> Iterator[Callable[..., Database]]:
    """Make databases as `Database` does; they are closed at the end, when none of their connections may be in use."""
    made: list[Database] = []

    def make(url: str, **options: float) -> Database:
        made.append(Database(url, **options))  # type: ignore[arg-type]  # pool_size is whole where it is given
        return made[-1]

    yield make
    left = []
    for database in made:
        pool = database.engine.pool
        assert isinstance(pool, QueuePool)
        left.append(pool.checkedout())
        database.close()
    assert set(left) <= {0}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.external_service)])
def url(request: pytest.FixtureRequest) -> str:
    """Of an empty database, each kind in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found
