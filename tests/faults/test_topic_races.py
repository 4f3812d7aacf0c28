"""A topic is deleted while programs append to it, roll it, subscribe, trim and create its name again.

On SQL and a store in memory, with threads; in the end the independent auditor looks.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import SextonError
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.faults.auditor import find_violations_at_any_moment
from tests.faults.main_job_operators import MainJobOperators
from tests.faults.simulated_world import World
from tests.faults.topic_plans import PAIR_PLANS
from workers.assembly.log_store import LogStore

_PLAN = PAIR_PLANS[0]
_WRITERS = 3


def _go_on(stop: threading.Event, act: Callable[[], object]) -> int:
    """Do it again and again until told to stop; what the topic's deletion refuses is no fault. How often it worked."""
    done = 0
    while not stop.is_set():
        try:
            act()
            done += 1
        except SextonError:
            stop.wait(0.001)
    return done


def _append(process: LogStore, topic: Topic) -> object:
    return process.topic_logs.append(topic, ProducedEntries(entries=[NewEntry(payload=b"x")]))


def _create_again(process: LogStore) -> object:
    return process.catalog.topics.create_topic(_PLAN.name, RetentionPolicy())


@pytest.mark.parametrize("_turn", range(3))
def test_topic_deleted_under_everybody_leaves_nothing_of_it(
    _turn: int, template: Path, fresh: Callable[[], Path]
) -> None:
    """Whatever runs beside it (apache/pulsar#13526, #350), what is stored is of the topic created again."""
    operators = MainJobOperators(World(fresh(), template), (_PLAN,))
    operators.drive(operators.write)
    stop = threading.Event()
    with operators.world.process() as process:
        topic = process.catalog.topics.get_topic(_PLAN.name)
        cursors = process.catalog.cursors
        acts: list[Callable[[], object]] = [
            *[partial(_append, process, topic)] * _WRITERS,
            lambda: process.topic_logs.roll(topic),
            lambda: cursors.create_subscription(topic.topic_id, "late", latest=True),
            partial(_create_again, process),
        ]
        with ThreadPoolExecutor(len(acts)) as pool:
            running = [pool.submit(_go_on, stop, act) for act in acts]
            operators.drive(operators.delete_topics)
            stop.set()
            done = [one.result() for one in running]
    operators.drive(operators.redrive_and_sweep)
    seen = operators.world.look()
    assert done[-1] <= 1
    assert topic.topic_id not in seen.topics
    assert not find_violations_at_any_moment(seen)
    assert not {row for row, ledger in seen.ledgers.items() if ledger.topic_id == topic.topic_id}
    assert not seen.ledgers_with_intent_state("PENDING")
    assert set(seen.stored) <= {*seen.ledgers, *seen.ledgers_with_intent_state("DEAD_LETTERED")}


def test_writer_that_uploads_behind_the_deletion_leaves_nothing(template: Path, fresh: Callable[[], Path]) -> None:
    """Its segment comes when phase two has looked already; the refusal lets that look again, without reconciliation."""
    operators = MainJobOperators(World(fresh(), template), (_PLAN,))
    operators.drive(operators.write)
    reached, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        go_on.wait(30)

    fault = Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, matches=lambda key: ".parquet" in key, action=wait)
    operators.world.store.plan(fault)
    with operators.world.process() as process, ThreadPoolExecutor(1) as pool:
        late = pool.submit(_append, process, process.catalog.topics.get_topic(_PLAN.name))
        assert reached.wait(30)
        operators.drive(operators.delete_topics)
        assert not operators.world.look().stored
        go_on.set()
        assert isinstance(late.exception(30), SextonError)
    assert operators.world.look().stored
    operators.drive(operators.redrive_and_sweep)
    assert not operators.world.look().stored
