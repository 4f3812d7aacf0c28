"""Worlds to break, and the main job driven once through each without a fault."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.catalog import Database, upgrade
from tests.faults.effects import hits
from tests.faults.job import Job
from tests.faults.offload_job import COLD, OffloadJob
from tests.faults.scene import SHORT
from tests.faults.world import World

SEED = 20_261_120


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A way through the main job, and how often it hits each point."""

    start: Callable[[], Job[World]]  # a job of its own, ready to go this way
    go: Callable[[Job[World]], Job[World]]
    hits: dict[str, int]


def pytest_configure(config: pytest.Config) -> None:
    """What only `make faults` runs has a mark of its own."""
    config.addinivalue_line("markers", "all_faults: only with --all-faults")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave such tests out; to skip them would say that something is missing here."""
    if config.getoption("--all-faults"):
        return
    out = [item for item in items if item.get_closest_marker("all_faults")]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty catalog to copy."""
    path = tmp_path_factory.mktemp("faults") / "template.db"
    database = Database(f"sqlite:///{path}")
    upgrade(database)
    database.close()
    return path


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Paths for databases."""
    folder = tmp_path_factory.mktemp("worlds")
    numbers = iter(range(1_000_000))
    return lambda: folder / f"{next(numbers)}.db"


@pytest.fixture(scope="session")
def courses(template: Path, fresh: Callable[[], Path]) -> dict[str, Course]:
    """Ways through it.

    `short`: one small topic, written and trimmed. `offload`: a topic offloaded, its primary copies removed, trimmed.
    `remove`: phase one and two of everything, from where all is
    written and storage begins to misbehave. `delete`: one small topic, written and deleted. `clear`: every topic is
    deleted, from where all is written.
    """
    written = Job(World(fresh(), template))
    written.drive(written.write)

    cold = OffloadJob(World(fresh(), template), COLD)
    cold.drive(cold.write)

    def short() -> Job[World]:
        return Job(World(fresh(), template), SHORT)

    def offload() -> Job[World]:
        return cold.fork(cold.world.fork(fresh()))

    def remove() -> Job[World]:
        return written.fork(written.world.fork(fresh()))

    return {
        "short": Course(start=short, go=Job.run, hits=hits(lambda: Job.run(short()))),
        "offload": Course(start=offload, go=Job.run, hits=hits(lambda: Job.run(offload()))),
        "remove": Course(start=remove, go=Job.run, hits=hits(lambda: Job.run(remove()))),
        "delete": Course(start=short, go=Job.delete, hits=hits(lambda: Job.delete(short()))),
        "clear": Course(start=remove, go=Job.delete, hits=hits(lambda: Job.delete(remove()))),
    }


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    """Numbers that a loser of a race draws are the same in every run."""
    random.seed(SEED)
    yield
    random.seed()
