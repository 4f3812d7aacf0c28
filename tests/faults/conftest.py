"""Worlds to break, and the main job driven once through each without a fault."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.catalog import Database, upgrade
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.faults.effects import hits
from tests.faults.job import Job
from tests.faults.offload_job import COLD, OffloadJob
from tests.faults.scene import PAIR, SHORT
from tests.faults.world import World

SEED = 20_261_120


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A way through the main job, and how often it hits each point."""

    start: Callable[[], Job[World]]  # a job of its own, ready to go this way
    go: Callable[[Job[World]], Job[World]]
    hits: dict[str, int]


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

    `short`: one small topic, whose first writer meets an outage and gives up, written and trimmed.
    `offload`: a topic offloaded, its primary copies removed, trimmed.
    `remove`: phase one and two of everything, from where all is written and storage begins to misbehave.
    `together`: two topics trimmed in one batch, from where they are written. `delete`: these, written and deleted.
    `clear`: a topic with tiered copies of every state is deleted.
    """
    written = Job(World(fresh(), template))
    written.drive(written.write)

    pair = Job(World(fresh(), template), PAIR)
    pair.drive(pair.write)

    cold = OffloadJob(World(fresh(), template), COLD)
    cold.drive(cold.write)

    def short() -> Job[World]:
        world = World(fresh(), template)
        world.store.plan(_outage())
        return Job(world, SHORT)

    def offload() -> Job[World]:
        return cold.fork(cold.world.fork(fresh()))

    def remove() -> Job[World]:
        return written.fork(written.world.fork(fresh()))

    def together() -> Job[World]:
        return pair.fork(pair.world.fork(fresh()))

    def delete() -> Job[World]:
        return Job(World(fresh(), template), PAIR)

    return {
        "short": Course(start=short, go=Job.run, hits=hits(lambda: Job.run(short()))),
        "offload": Course(start=offload, go=Job.run, hits=hits(lambda: Job.run(offload()))),
        "remove": Course(start=remove, go=Job.run, hits=hits(lambda: Job.run(remove()))),
        "together": Course(start=together, go=Job.trim_all, hits=hits(lambda: Job.trim_all(together()))),
        "delete": Course(start=delete, go=Job.delete, hits=hits(lambda: Job.delete(delete()))),
        "clear": Course(start=offload, go=_clear, hits=hits(lambda: _clear(offload()))),
    }


def _outage() -> Fault:
    """The store takes no segment for as long as a writer is patient."""
    kind, is_segment = FaultKind.BEFORE, lambda key: key.endswith(".parquet")
    return Fault(operation=Operation.PUT, kind=kind, times=5, matches=is_segment)


def _clear(job: Job[World]) -> Job[World]:
    assert isinstance(job, OffloadJob)
    return job.clear()


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    """Numbers that a loser of a race draws are the same in every run."""
    random.seed(SEED)
    yield
    random.seed()
