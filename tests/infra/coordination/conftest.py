"""One real ZooKeeper a run, and a path of its own for every test."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from infra.coordination.zookeeper_session import EnsembleOptions
from logstore.catalog import Database
from logstore.catalog.ownership.fences import Fences
from tests.infra.coordination.crew import BUNDLES, Crew
from tests.infra.coordination.zookeeper import ZooKeeper
from tests.migrated_catalogs import migrate_or_copy_catalog

_numbers = itertools.count()


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """Killed at the end."""
    home = Path(tempfile.mkdtemp(prefix="sx-"))
    server = ZooKeeper(home)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def ensemble(zookeeper: ZooKeeper) -> EnsembleOptions:
    """A path of the test's own, on a session timeout of two seconds."""
    path = f"/test-{next(_numbers)}"
    with zookeeper.client() as client:
        client.create(path)
    return EnsembleOptions(hosts=f"{zookeeper.address}{path}", timeout_s=2.0)


@pytest.fixture
def looker(zookeeper: ZooKeeper, ensemble: EnsembleOptions) -> Iterator[KazooClient]:
    """A client that looks on, under the test's path."""
    with zookeeper.client(ensemble.hosts) as client:
        yield client


@pytest.fixture
def crew(ensemble: EnsembleOptions, tmp_path: Path) -> Iterator[Crew]:
    """Nobody yet."""
    database = Database(f"sqlite:///{tmp_path / 'catalog.db'}")
    migrate_or_copy_catalog(database, bundles=BUNDLES)
    made = Crew(ensemble, Fences(database))
    yield made
    made.dismiss()
    database.close()
