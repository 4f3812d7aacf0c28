"""A world of its own for each test, from one migrated catalog."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.catalog import Database, upgrade
from tests.activities.world import World, open_world


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty, migrated catalog, to be copied."""
    path = tmp_path_factory.mktemp("template") / "catalog.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.close()
    return path


@pytest.fixture
def new_world(template: Path, tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Makes any number of worlds that know nothing of each other."""
    numbers, made = itertools.count(), list[World]()

    def make() -> World:
        made.append(open_world(template, tmp_path / str(next(numbers))))
        return made[-1]

    yield make
    for each in made:
        each.catalog.database.close()


@pytest.fixture
def world(new_world: Callable[[], World]) -> World:
    """One world."""
    return new_world()
