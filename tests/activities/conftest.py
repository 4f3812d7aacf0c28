"""A world of its own for each test."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.activities.activity_world import World, open_activity_world


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Makes any number of worlds that know nothing of each other."""
    numbers, made = itertools.count(), list[World]()

    def make() -> World:
        made.append(open_activity_world(tmp_path / str(next(numbers))))
        return made[-1]

    yield make
    for each in made:
        each.catalog.database.close()


@pytest.fixture
def world(new_world: Callable[[], World]) -> World:
    """One world."""
    return new_world()
