"""Worlds to break, and the main job driven once through each without a fault."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.catalog import Database, migrate_catalog
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.delayed_message_course import DELAYED_PLANS, DelayedMessageOperators
from tests.faults.failpoint_hits import hits
from tests.faults.main_job_operators import MainJobOperators
from tests.faults.offload_course import OFFLOAD_PLANS, OffloadOperators
from tests.faults.reconciliation_course import RECONCILIATION_PLANS, ReconciliationOperators
from tests.faults.record_log_course import RECORD_LOG_PLANS, RecordLogOperators
from tests.faults.simulated_world import World
from tests.faults.topic_plans import NEIGHBOUR_PLANS, PAIR_PLANS, SHORT_PLANS
from tests.faults.transaction_course import TRANSACTION_PLANS, TransactionOperators

SEED = 20_261_120


COURSE_NAMES = (
    *("short", "offload", "together", "delete", "clear", "reconcile", "transact", "delay", "record", "beside"),
    "remove",
)
StartOperators = Callable[..., MainJobOperators]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCourse:
    """A way through the main job, and what a run of it comes to where nothing happens."""

    start: StartOperators  # operators of their own, ready to go this way; takes what `Operators` takes
    go: Callable[[MainJobOperators], MainJobOperators]
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
def courses(template: Path, fresh: Callable[[], Path]) -> dict[str, JobCourse]:
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
    written, pair = MainJobOperators(World(fresh(), template)), MainJobOperators(World(fresh(), template), PAIR_PLANS)
    cold, beside = (
        OffloadOperators(World(fresh(), template), OFFLOAD_PLANS),
        MainJobOperators(World(fresh(), template), NEIGHBOUR_PLANS),
    )
    for operators in (written, pair, cold, beside):
        operators.drive(operators.write)

    def short(**options: Any) -> MainJobOperators:
        world = World(fresh(), template)
        world.store.plan(_refuse_segments())
        return MainJobOperators(world, SHORT_PLANS, **options)

    def delete(**options: Any) -> MainJobOperators:
        return MainJobOperators(World(fresh(), template), PAIR_PLANS, **options)

    def reconcile(**options: Any) -> MainJobOperators:
        return ReconciliationOperators(World(fresh(), template), RECONCILIATION_PLANS, **options)

    def transact(**options: Any) -> MainJobOperators:
        return TransactionOperators(World(fresh(), template), TRANSACTION_PLANS, **options)

    def delay(**options: Any) -> MainJobOperators:
        return DelayedMessageOperators(World(fresh(), template), DELAYED_PLANS, **options)

    def record(**options: Any) -> MainJobOperators:
        return RecordLogOperators(World(fresh(), template), RECORD_LOG_PLANS, **options)

    def forked(operators: MainJobOperators) -> StartOperators:
        return lambda **options: operators.fork(operators.world.fork(fresh()), **options)

    return {
        "short": _run_undisturbed_course(short, MainJobOperators.run),
        "offload": _run_undisturbed_course(forked(cold), MainJobOperators.run),
        "together": _run_undisturbed_course(forked(pair), MainJobOperators.trim_all),
        "delete": _run_undisturbed_course(delete, MainJobOperators.delete),
        "clear": _run_undisturbed_course(forked(cold), _run_clear),
        "reconcile": _run_undisturbed_course(reconcile, _run_reconcile),
        "transact": _run_undisturbed_course(transact, _run_transact),
        "delay": _run_undisturbed_course(delay, _run_delay),
        "record": _run_undisturbed_course(record, _run_record),
        "beside": _run_undisturbed_course(forked(beside), MainJobOperators.run),
        "remove": _run_undisturbed_course(forked(written), MainJobOperators.run),
    }


def _run_undisturbed_course(start: StartOperators, go: Callable[[MainJobOperators], MainJobOperators]) -> JobCourse:
    undisturbed = start()
    hits_by_failpoint = hits(lambda: go(undisturbed))
    return JobCourse(
        start=start,
        go=go,
        hits=hits_by_failpoint,
        workflows=frozenset(undisturbed.driver.server.types),
        activities=frozenset(attempt.type for attempt in undisturbed.driver.made),
        writes=undisturbed.world.writes,
    )


def _refuse_segments() -> Fault:
    """The store takes no segment for as long as a writer is patient."""
    kind, is_segment = FaultKind.BEFORE, lambda key: key.endswith(".parquet")
    return Fault(operation=StoreOperation.PUT, kind=kind, times=5, matches=is_segment)


def _run_clear(operators: MainJobOperators) -> MainJobOperators:
    assert isinstance(operators, OffloadOperators)
    return operators.clear()


def _run_reconcile(operators: MainJobOperators) -> MainJobOperators:
    assert isinstance(operators, ReconciliationOperators)
    return operators.reconcile()


def _run_transact(operators: MainJobOperators) -> MainJobOperators:
    assert isinstance(operators, TransactionOperators)
    return operators.transact()


def _run_delay(operators: MainJobOperators) -> MainJobOperators:
    assert isinstance(operators, DelayedMessageOperators)
    return operators.delay()


def _run_record(operators: MainJobOperators) -> MainJobOperators:
    assert isinstance(operators, RecordLogOperators)
    return operators.record()


class _UnstartedThread(threading.Thread):
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
        patch.setattr(
            "activities.heartbeats.threading", SimpleNamespace(Thread=_UnstartedThread, Event=threading.Event)
        )
        yield


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    """Numbers that a loser of a race draws are the same in every run."""
    random.seed(SEED)
    yield
    random.seed()
