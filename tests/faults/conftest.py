"""Worlds to break, and the main job driven once through each without a fault."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.catalog import Database, migrate_catalog
from tests.fakes.objects import Fault, FaultKind, Operation
from tests.faults.delaying import DELAYED, Delaying
from tests.faults.effects import hits
from tests.faults.offloading import COLD, Offloading
from tests.faults.operators import Operators
from tests.faults.reconciling import LOSING, Reconciling
from tests.faults.recording import RECORDED, Recording
from tests.faults.scene import BESIDE, PAIR, SHORT
from tests.faults.transacting import PARTIES, Transacting
from tests.faults.world import World

SEED = 20_261_120


COURSES = (
    *("short", "offload", "together", "delete", "clear", "reconcile", "transact", "delay", "record", "beside"),
    "remove",
)
Start = Callable[..., Operators]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A way through the main job, and what a run of it comes to where nothing happens."""

    start: Start  # operators of their own, ready to go this way; takes what `Operators` takes
    go: Callable[[Operators], Operators]
    hits: dict[str, int]  # by failpoint
    workflows: frozenset[str]  # that ran
    activities: frozenset[str]
    writes: int


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty catalog to copy."""
    path = tmp_path_factory.mktemp("faults") / "template.db"
    database = Database(f"sqlite:///{path}")
    migrate_catalog(database)
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
    """Ways through it; the one that takes longest is the last.

    `short`: one small topic, whose first writer meets an outage and gives up, written and trimmed.
    `offload`: a topic offloaded, its primary copies removed, trimmed.
    `together`: two topics trimmed in one batch, from where they are written. `delete`: these, written and deleted.
    `clear`: a topic with tiered copies of every state is deleted.
    `reconcile`: objects that nobody refers to are planned and removed.
    `transact`: transactions over two topics and a subscription are decided in every way, and told.
    `delay`: delayed messages of two topics are sealed, merged, dropped, cleared, sealed anew and built.
    `record`: a catalog is flushed, replicated, defragmented, and a tombstone is raided.
    `beside`: a topic is trimmed whose ledgers stand side by side in a shard, so that chunks share listings.
    `remove`: phase one and two of everything, from where all is written and storage begins to misbehave.
    """
    written, pair = Operators(World(fresh(), template)), Operators(World(fresh(), template), PAIR)
    cold, beside = Offloading(World(fresh(), template), COLD), Operators(World(fresh(), template), BESIDE)
    for one in (written, pair, cold, beside):
        one.drive(one.write)

    def short(**more: Any) -> Operators:
        world = World(fresh(), template)
        world.store.plan(_outage())
        return Operators(world, SHORT, **more)

    def delete(**more: Any) -> Operators:
        return Operators(World(fresh(), template), PAIR, **more)

    def reconcile(**more: Any) -> Operators:
        return Reconciling(World(fresh(), template), LOSING, **more)

    def transact(**more: Any) -> Operators:
        return Transacting(World(fresh(), template), PARTIES, **more)

    def delay(**more: Any) -> Operators:
        return Delaying(World(fresh(), template), DELAYED, **more)

    def record(**more: Any) -> Operators:
        return Recording(World(fresh(), template), RECORDED, **more)

    def forked(one: Operators) -> Start:
        return lambda **more: one.fork(one.world.fork(fresh()), **more)

    return {
        "short": _course(short, Operators.run),
        "offload": _course(forked(cold), Operators.run),
        "together": _course(forked(pair), Operators.trim_all),
        "delete": _course(delete, Operators.delete),
        "clear": _course(forked(cold), _clear),
        "reconcile": _course(reconcile, _reconcile),
        "transact": _course(transact, _transact),
        "delay": _course(delay, _delay),
        "record": _course(record, _record),
        "beside": _course(forked(beside), Operators.run),
        "remove": _course(forked(written), Operators.run),
    }


def _course(start: Start, go: Callable[[Operators], Operators]) -> Course:
    undisturbed = start()
    found = hits(lambda: go(undisturbed))
    return Course(
        start=start,
        go=go,
        hits=found,
        workflows=frozenset(undisturbed.driver.server.types),
        activities=frozenset(one.type for one in undisturbed.driver.made),
        writes=undisturbed.world.writes,
    )


def _outage() -> Fault:
    """The store takes no segment for as long as a writer is patient."""
    kind, is_segment = FaultKind.BEFORE, lambda key: key.endswith(".parquet")
    return Fault(operation=Operation.PUT, kind=kind, times=5, matches=is_segment)


def _clear(operators: Operators) -> Operators:
    assert isinstance(operators, Offloading)
    return operators.clear()


def _reconcile(operators: Operators) -> Operators:
    assert isinstance(operators, Reconciling)
    return operators.reconcile()


def _transact(operators: Operators) -> Operators:
    assert isinstance(operators, Transacting)
    return operators.transact()


def _delay(operators: Operators) -> Operators:
    assert isinstance(operators, Delaying)
    return operators.delay()


def _record(operators: Operators) -> Operators:
    assert isinstance(operators, Recording)
    return operators.record()


class _Unstarted(threading.Thread):
    """A thread of heartbeats; here is no server that would miss them."""

    def start(self) -> None:
        """Stay as it is."""

    def join(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""


@pytest.fixture(scope="module", autouse=True)
def _no_heartbeats() -> Iterator[None]:
    """Not of a session: a process may take tests of other folders behind those of faults.

    Every activity starts a thread that beats every two seconds: a third of what it costs here, where it is short.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("activities.heartbeats.threading", SimpleNamespace(Thread=_Unstarted, Event=threading.Event))
        yield


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    """Numbers that a loser of a race draws are the same in every run."""
    random.seed(SEED)
    yield
    random.seed()
