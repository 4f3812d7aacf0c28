"""The same promises on real servers: processes die by SIGKILL, others go on, an auditor asks S3 and SQLite.

In every run a seeded sample; with `--all-faults` every failpoint. Cases run side by side, for a killed worker is
noticed only when its heartbeat is missed.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock

import pytest

from infra.stack import embedded_stack
from logstore.errors import ServiceFailed
from tests.faults.auditor import find_violations_at_any_moment, find_violations_at_rest
from tests.faults.conftest import SEED, JobCourse
from tests.faults.delayed_worker_deaths import (
    BUILD_POINTS,
    SEAL_AND_MERGE_POINTS,
    worker_dies_in_a_build,
    worker_dies_in_a_merge,
    worker_dies_in_a_seal,
)
from tests.faults.failpoint_hits import Interruption, hits
from tests.faults.main_job_operators import MainJobOperators
from tests.faults.real_world import (
    REAL_NEIGHBOUR_PLANS,
    SQUATTED_PLANS,
    WRITER_PLANS,
    RealWorld,
    WorkerProcess,
    delete_intents_one_by_one,
    delete_topics_and_wait,
    offload_topics_and_trim,
    run_writer_process,
    trim_topics_and_wait,
    wait_until_true,
)
from tests.faults.simulated_world import World
from tests.faults.topic_plans import CURSOR_INLINE_BYTES, TopicPlan
from tests.faults.writing_programs import WritingPrograms
from tests.run_parts import RunPart
from tests.servers import create_store_settings
from workers.client import workflow_search
from workers.client.temporal_connection import connect_client
from workers.settings import Settings

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill, pytest.mark.timeout(1_500)]

_SIDE_BY_SIDE = 3
_DEATHS = (("before", "kill"), ("after", "kill"), ("reported_failed", "fail"))
_ONLY_IN_PROCESS = {
    "catalog.hand_over",
    "catalog.hold",
    "catalog.abandon_offload",
    "tiered.abort_uploads",
    "storage.abort_uploads",
}
"""Needs storage that refuses one key and not the others, which no real server can be asked for, or large objects."""

_OF_ONE_LEDGER = ("catalog.take.", "catalog.finish.", "storage.")  # what deleting a single ledger does, in this order
_BEHIND_A_WALK = ("storage.delete_", "catalog.finish.")
_OF_TIERED_COPIES = (
    "offload.",
    "tiered.",
    "catalog.begin_offload.",
    "catalog.publish_offload.",
    "catalog.remove_primaries.",
)

_AT_THE_START = "catalog.raise_fence."  # a single worker owns everything before it polls
_AS_IT_MARKS = "identity."  # the buckets of other cases are marked before anything else
_ONE_PAGE = {"catalog.remove_primaries"}  # of the size that real pages have

Case = Callable[[RealWorld, Interruption], Awaitable[None]]


async def _dies_in(
    world: RealWorld,
    one: Interruption,
    work: Callable[[RealWorld], Awaitable[None]],
    plans: tuple[TopicPlan, ...] = SQUATTED_PLANS,
) -> None:
    """A worker meets its failpoint in `work`; another one goes on."""
    programs = WritingPrograms(world, plans)
    await asyncio.to_thread(lambda: programs.drive(programs.write))
    first = await asyncio.to_thread(WorkerProcess, world, "worker-1", str(one))
    working = asyncio.ensure_future(work(world))
    if one.action == "kill":
        await wait_until_true(lambda: not first.alive, f"{one} kills its worker")
        wrong = find_violations_at_any_moment(await asyncio.to_thread(world.look))
        assert not wrong, f"right after {one}: {wrong}"
        await asyncio.to_thread(WorkerProcess, world, "worker-2")
    await working
    await _at_rest(world, one, plans, work)


async def _worker_dies_behind_a_shared_listing(world: RealWorld, one: Interruption) -> None:
    """It has listed two ledgers by one walk through their shard, and the next worker walks anew."""
    await _dies_in(world, one, partial(trim_topics_and_wait, plans=REAL_NEIGHBOUR_PLANS), REAL_NEIGHBOUR_PLANS)


async def _worker_dies_in_a_trim(world: RealWorld, one: Interruption) -> None:
    await _dies_in(world, one, trim_topics_and_wait)


async def _worker_dies_with_one_ledger(world: RealWorld, one: Interruption) -> None:
    await _dies_in(world, one, delete_intents_one_by_one)


async def _worker_dies_in_a_delete(world: RealWorld, one: Interruption) -> None:
    await _dies_in(world, one, delete_topics_and_wait)


async def _worker_dies_in_an_offload(world: RealWorld, one: Interruption) -> None:
    await _dies_in(world, one, offload_topics_and_trim)


async def _worker_dies_before_it_polls(world: RealWorld, one: Interruption) -> None:
    """A worker ends as it starts, killed or for what it was told; the next one begins as if nothing had been."""
    programs = WritingPrograms(world, SQUATTED_PLANS)
    await asyncio.to_thread(lambda: programs.drive(programs.write))
    with pytest.raises(ServiceFailed, match="ended while starting"):
        await asyncio.to_thread(WorkerProcess, world, "worker-1", str(one))
    await asyncio.to_thread(WorkerProcess, world, "worker-2")
    await trim_topics_and_wait(world)
    await _at_rest(world, one, SQUATTED_PLANS, trim_topics_and_wait)


async def _worker_dies_as_it_marks(world: RealWorld, one: Interruption) -> None:
    """A worker on a store from before markers is killed as it marks a bucket, or told that it failed."""
    programs = WritingPrograms(world, SQUATTED_PLANS)
    await asyncio.to_thread(lambda: programs.drive(programs.write))
    await asyncio.to_thread(world.unmark)
    if one.action == "kill":
        with pytest.raises(ServiceFailed, match="ended while starting"):
            await asyncio.to_thread(WorkerProcess, world, "worker-1", str(one))
        await asyncio.to_thread(WorkerProcess, world, "worker-2")
    else:
        await asyncio.to_thread(WorkerProcess, world, "worker-1", str(one))
    await trim_topics_and_wait(world)
    await _at_rest(world, one, SQUATTED_PLANS, trim_topics_and_wait)


async def _writer_dies(world: RealWorld, one: Interruption) -> None:
    """A program that appends dies; it is started again, and then the topic is trimmed."""
    code = await asyncio.to_thread(run_writer_process, world, str(one))
    assert (code != 0) == (one.action == "kill"), f"{one} did not happen"
    wrong = find_violations_at_any_moment(await asyncio.to_thread(world.look))
    assert not wrong, f"right after {one}: {wrong}"
    assert await asyncio.to_thread(run_writer_process, world) == 0
    await asyncio.to_thread(WorkerProcess, world, "worker-1")
    await trim_topics_and_wait(world)
    await _at_rest(world, one, WRITER_PLANS, trim_topics_and_wait)


async def _at_rest(
    world: RealWorld, one: Interruption, plans: tuple[TopicPlan, ...], work: Callable[[RealWorld], Awaitable[None]]
) -> None:
    """Every promise holds, and the same once more, or one more trim, changes nothing."""
    gone = work is delete_topics_and_wait
    expected = {plan.name: plan.expected_after_deletion if gone else plan.expected for plan in plans}
    seen = await asyncio.to_thread(world.look)
    newborn = [f"ledger {row} was never attached" for row, it in seen.ledgers.items() if it.state == "CREATING"]
    wrong = [it for it in find_violations_at_rest(seen, expected) if not any(it.startswith(known) for known in newborn)]
    assert not wrong, f"{one}: {wrong}"  # a newborn ledger waits for its registration timeout
    await (work if gone else partial(trim_topics_and_wait, plans=plans))(world)
    again = await asyncio.to_thread(world.look)
    assert (again.objects, again.rows, again.audit) == (seen.objects, seen.rows, seen.audit), (
        f"{one}: twice is not once"
    )


def _side_by_side(cases: Sequence[tuple[Case, Interruption]], worlds: Callable[[], RealWorld]) -> None:
    """Run cases in worlds of their own, a few at a time, and report every one that failed."""

    async def run() -> list[str]:
        turn = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def one(case: Case, interruption: Interruption) -> str | None:
            async with turn:
                world = await asyncio.to_thread(worlds)
                try:
                    await case(world, interruption)
                except Exception as error:  # noqa: BLE001 - the others are to run all the same
                    return f"{interruption}: {error!r}"
                finally:
                    await asyncio.to_thread(world.close)
            return None

        return [it for it in await asyncio.gather(*(one(*case) for case in cases)) if it]

    failed = asyncio.run(run())
    assert not failed, "\n".join(failed)


@pytest.fixture
def worlds(servers: embedded_stack.StackAddresses, tmp_path: Path) -> Callable[[], RealWorld]:
    """Worlds on the shared servers, each with its bucket, catalog and queue."""
    numbers, one_at_a_time = iter(range(1_000)), Lock()  # Alembic migrates one database at a time
    quick = {"deletion_chunk": 2, "deletion_parallelism": 1, "deletion_retry_interval": 1}
    quick["cursor_inline_bytes"] = CURSOR_INLINE_BYTES

    def make() -> RealWorld:
        with one_at_a_time:
            return RealWorld(create_store_settings(servers, tmp_path / str(next(numbers)), **quick)).prepare()

    async def register(settings: Settings) -> None:
        await workflow_search.register_search_attributes(await connect_client(settings))

    asyncio.run(register(make().settings))
    return make


@pytest.fixture(scope="module")
def every_case(
    template: Path, fresh: Callable[[], Path], courses: dict[str, JobCourse]
) -> list[tuple[Case, Interruption]]:
    """Every failpoint with every way to die there, by who meets it, from dry runs of the same plan in one process."""
    operators = MainJobOperators(World(fresh(), template), SQUATTED_PLANS)
    written = hits(lambda: operators.drive(operators.write))
    trimmed = hits(lambda: operators.drive(operators.remove))
    deleted = hits(lambda: operators.drive(operators.delete_topics))
    cold = {name: count for name, count in courses["offload"].hits.items() if name.startswith(_OF_TIERED_COPIES)}
    started = {name: 1 for name in trimmed if name.startswith(_AT_THE_START)}
    alone = {name: 1 for name in courses["remove"].hits if name.startswith(_OF_ONE_LEDGER)}
    beside = {name: 1 for name in courses["beside"].hits if name.startswith(_BEHIND_A_WALK)}
    marked = {name: 1 for name in courses["offload"].hits if name.startswith(_AS_IT_MARKS)}
    found: list[tuple[Case, Interruption]] = []
    for case, points in (
        (_writer_dies, {name: count for name, count in written.items() if name not in marked}),
        (_worker_dies_before_it_polls, started),
        (_worker_dies_as_it_marks, marked),
        (_worker_dies_in_a_trim, {name: count for name, count in trimmed.items() if name not in {*started, *marked}}),
        (_worker_dies_with_one_ledger, alone),
        (_worker_dies_behind_a_shared_listing, beside),
        (_worker_dies_in_an_offload, cold),
        (_worker_dies_in_a_delete, {name: count for name, count in deleted.items() if "_topic" in name}),
        (worker_dies_in_a_seal, SEAL_AND_MERGE_POINTS),
        (worker_dies_in_a_merge, SEAL_AND_MERGE_POINTS),
        (worker_dies_in_a_build, BUILD_POINTS),
    ):
        for point, count in sorted(points.items()):
            effect, _, moment = point.rpartition(".")
            action = dict(_DEATHS)[moment]
            if effect not in _ONLY_IN_PROCESS:
                nth = 1 if effect in _ONE_PAGE else min(count, 2)
                found.append((case, Interruption(point, action, nth)))
    return found


def test_processes_killed_at_a_sample_of_effects_lose_nothing(
    every_case: list[tuple[Case, Interruption]], worlds: Callable[[], RealWorld]
) -> None:
    """Kill -9 of a worker or a writer between two effects: promises 1, 2, 3 and 8 (apache/pulsar#13526, #20898)."""
    dice = random.Random(SEED)
    deadly = [case for case in every_case if case[1].action == "kill"]
    of = {who: [case for case in deadly if case[0] is who] for who, _ in deadly}
    sample = [  # one case of each kind of process and store; the fault matrix has the other points in one process
        *dice.sample(of[_writer_dies], 1),
        *dice.sample([case for case in of[_worker_dies_with_one_ledger] if case[1].point.startswith("storage.")], 1),
        *dice.sample(of[worker_dies_in_a_merge], 1),
        *dice.sample([case for case in of[_worker_dies_in_an_offload] if case[1].point.startswith("offload.")], 1),
    ]
    _side_by_side(sample, worlds)


@pytest.mark.all_faults
@pytest.mark.timeout(600)  # Java starts in a worker
def test_build_goes_on_after_a_worker_was_killed_at_an_effect_of_its_switch(
    every_case: list[tuple[Case, Interruption]], worlds: Callable[[], RealWorld]
) -> None:
    """Another worker switches what the bulk job of the dead one has published: promises 6 and 8."""
    deaths = [case for case in every_case if case[0] is worker_dies_in_a_build and case[1].action == "kill"]
    switching = [case for case in deaths if "run_bulk" not in case[1].point]
    _side_by_side(random.Random(SEED).sample(switching, 1), worlds)


@pytest.mark.all_faults
@pytest.mark.timeout(3_600)
def test_processes_killed_at_every_effect_lose_nothing(
    every_case: list[tuple[Case, Interruption]], worlds: Callable[[], RealWorld], run_part: RunPart
) -> None:
    """All of it, for `make faults`."""
    selected = [(case, point) for case, point in every_case if run_part.includes(f"{case.__name__} {point}")]
    _side_by_side(selected, worlds)
