"""Crews of processes on the run's ZooKeeper, each with a path and a catalog of its own."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore.catalog import Database
from tests.infra.coordination.conftest import zookeeper
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.ownership import fence_story
from tests.ownership.worker_processes import WorkerProcesses
from tests.postgres import postgres

__all__ = ["postgres", "zookeeper"]

BUNDLES = 24
TIMEOUT_S = 2.0  # of a session: the least that this ZooKeeper gives is 1

_path_numbers = itertools.count()

ReportMeasurement = Callable[[str], None]


@pytest.fixture
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database: a SQLite file, or PostgreSQL's where a test asks for it."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path / 'catalog.db'}"
        return
    server = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name)


@pytest.fixture
def crew(zookeeper: ZooKeeper, catalog_url: str, tmp_path: Path) -> Iterator[WorkerProcesses]:
    """Nobody yet; all are killed at the end."""
    path = f"/crew-{next(_path_numbers)}"
    with zookeeper.client() as client:
        client.create(path)
    database = Database(catalog_url)
    migrate_or_copy_catalog(database, bundles=BUNDLES)
    fence_story.create_story_table(database)
    database.close()
    workers = WorkerProcesses(tmp_path, catalog_url, zookeeper, path, TIMEOUT_S)
    yield workers
    workers.dismiss()


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> ReportMeasurement:
    """Tell what was measured: in the report, and to who runs pytest with `-s`."""

    def tell(what: str) -> None:
        record_property("measured", what)
        sys.stderr.write(f"\n{what}\n")

    return tell
