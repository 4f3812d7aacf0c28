"""Two attempts of one activity at the same time: the first only seemed dead, and goes on behind the second.

The second attempt runs to its end just before one call that the first one makes, for every such call in turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.deletion import ChunkInput, ChunkResult, LedgerDeletion, Range
from infra.catalog.deletion.deletions import SqlDeletions
from logstore.deletion.services.primary_copies import PrimaryCopies
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import RowRange
from tests.fakes.owners import NobodyOwns
from tests.faults.auditor import Intent, wrong_at_any_moment, wrong_at_rest
from tests.faults.job import Job
from tests.faults.scene import ORDERS, SHORT, TopicPlan
from tests.faults.world import World

_MOST_CALLS = 200


@dataclass(slots=True)
class _Calls:
    """Counts the calls of the first attempt, and lets the second one run before one of them."""

    rival: Callable[[], object]
    before: int
    made: int = 0
    running: bool = False

    def __call__(self) -> None:
        if self.running:
            return
        self.made += 1
        if self.made == self.before:
            self.running = True
            self.rival()
            self.running = False


class _Watched:
    """The queue of phase two, whose every call is one that the second attempt may come before."""

    def __init__(self, deletions: SqlDeletions, calls: _Calls) -> None:
        self._deletions = deletions
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*args: object, **options: object) -> object:
            self._calls()
            return getattr(self._deletions, name)(*args, **options)

        return call


def _detached(world: World, plan: TopicPlan) -> tuple[Job[World], ChunkInput]:
    """Everything written, phase one done, and phase two of all of it as one chunk."""
    job = Job(world, (plan,))
    job.drive(job.write)
    with world.process() as process:
        topic = process.catalog.topics.get(plan.name)
        job._process = process
        detached = job._detach(f"{topic.topic_id}-overlap", f"trim-topic/{topic.topic_id}", topic, None)
        (rows,) = process.catalog.deletions.ranges(f"{topic.topic_id}-overlap", after=0, rows=1_000, limit=1)
    return job, ChunkInput(
        batch_id=f"{topic.topic_id}-overlap", chunk=_range(rows), catalog_epoch=detached.catalog_epoch
    )


def _range(rows: RowRange) -> Range:
    return Range(first=rows.first, last=rows.last, rows=rows.rows)


def _attempt(world: World, request: ChunkInput, calls: _Calls | None = None) -> ChunkResult:
    with world.process() as process:
        deletion = process.deletion
        if calls:
            watched: Any = _Watched(process.catalog.deletions, calls)
            storages = {CopyKind.LEDGER.value: PrimaryCopies(world.store)}
            deletion = LedgerDeletion(
                deletions=watched,
                ledgers=process.catalog.ledgers,
                topics=process.catalog.topics,
                storages=storages,
                owners=NobodyOwns(),
            )
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, workflow_id=f"delete-ledgers/{request.batch_id}")
        return environment.run(deletion.delete_chunk, request)


def _go_on(job: Job[World], request: ChunkInput, result: ChunkResult) -> None:
    """What the batch does with the answer of the attempt it waited for, and then with the rest."""
    for key in result.alone:
        job._delete_ledger(key, request.catalog_epoch, request.batch_id)
    job._delete_ledgers(request.batch_id, request.catalog_epoch)


def _ended(world: World) -> Mapping[int, Intent]:
    return {row: intent for row, intent in world.look().intents.items() if intent.state != "PENDING"}


@pytest.mark.parametrize("plan", [*SHORT, ORDERS], ids=lambda plan: plan.name.rpartition("/")[2])
def test_chunk_overtaken_by_its_retry_at_any_call_counts_once_and_keeps_outcomes(
    plan: TopicPlan, template: Path, fresh: Callable[[], Path]
) -> None:
    """Two attempts may overlap, and what ended keeps its outcome (temporalio/sdk-python#1048, dust-tt/dust#4272)."""
    written, request = _detached(World(fresh(), template), plan)
    for before in range(1, _MOST_CALLS):
        world = written.world.fork(fresh())
        after_rival: dict[int, Intent] = {}

        def rival(world: World = world, seen: dict[int, Intent] = after_rival) -> None:
            _attempt(world, request)
            seen.update(_ended(world))

        calls = _Calls(rival, before)
        world.store.before_call = calls
        first = _attempt(world, request, calls)
        world.store.before_call = lambda: None
        if calls.made < before:
            return
        assert not wrong_at_any_moment(world.look()), f"overtaken before call {before}"
        kept = {row: intent for row, intent in _ended(world).items() if row in after_rival}
        assert kept == after_rival, f"overtaken before call {before}: an outcome changed after it was final"
        assert sum(first.outcomes.values()) == request.chunk.rows
        job = written.fork(world)
        job.drive(partial(_go_on, job, request, first)).sweep()
        assert not wrong_at_rest(world.look(), job.expected), f"overtaken before call {before}"
    raise AssertionError("the first attempt made more calls than this test tries")
