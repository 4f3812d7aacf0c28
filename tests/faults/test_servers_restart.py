"""Servers that die and come back, and a worker that only seemed dead: for `make faults`."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.stack import embedded_stack
from infra.stack.service_port_choice import RequestedPorts
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from tests.faults.auditor import find_violations_at_any_moment, find_violations_at_rest
from tests.faults.real_world import SQUATTED_PLANS, RealWorld, WorkerProcess, trim_topics_and_wait, wait_until_true
from tests.faults.topic_plans import TopicPlan
from tests.faults.writing_programs import WritingPrograms
from tests.servers import create_store_settings
from workers.client import workflow_search
from workers.client.temporal_connection import connect_client

pytestmark = [
    pytest.mark.external_service,
    pytest.mark.sigkill,
    pytest.mark.all_faults,
    pytest.mark.timeout(1_500),
]

_IN_PHASE_TWO = "storage.delete_data.after=kill@2"
_MANY = (TopicPlan(name="persistent://shop/main/many", ledgers=60, acknowledged={"billing": 60}),)


class OwnStack:
    """Temporal on disk and SeaweedFS, for tests that kill them."""

    def __init__(self, home: Path) -> None:
        self.options = embedded_stack.StackOptions(
            home=home, ports=RequestedPorts.any_free(), services=("temporal", "seaweedfs"), temporal_in_memory=False
        )
        self.addresses = embedded_stack.start_stack(self.options)

    def kill(self, service: str) -> None:
        """End one server at once."""
        assert ServiceProcess(service, StackHome.at(self.options.home)).kill()

    def revive(self) -> None:
        """Start what does not run, on its data and its ports."""
        assert embedded_stack.start_stack(self.options) == self.addresses


@pytest.fixture
def own_stack() -> Iterator[OwnStack]:
    """A stack of this test's own; the path is short for sockets."""
    home = Path(tempfile.mkdtemp(prefix="sx-"))
    try:
        yield OwnStack(home)
    finally:
        embedded_stack.kill_stack(home)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def world(own_stack: OwnStack, tmp_path: Path) -> Iterator[RealWorld]:
    """A world on that stack."""
    quick = {"deletion_chunk": 2, "deletion_parallelism": 1, "deletion_retry_interval": 1}
    settings = create_store_settings(own_stack.addresses, tmp_path, **quick)

    async def register() -> None:
        await workflow_search.register_search_attributes(await connect_client(settings))

    asyncio.run(register())
    found = RealWorld(settings).prepare()
    yield found
    found.close()


async def _until_a_worker_died(world: RealWorld) -> "asyncio.Future[None]":
    """Write, trim, and let the only worker die with segments gone and their ledgers' statements left."""
    programs = WritingPrograms(world, SQUATTED_PLANS)
    await asyncio.to_thread(lambda: programs.drive(programs.write))
    first = await asyncio.to_thread(WorkerProcess, world, "worker-1", _IN_PHASE_TWO)
    trimming = asyncio.ensure_future(trim_topics_and_wait(world))
    await wait_until_true(lambda: not first.alive, "the worker dies in phase two")
    assert not find_violations_at_any_moment(await asyncio.to_thread(world.look))
    return trimming


def _wrong(world: RealWorld, plans: tuple[TopicPlan, ...]) -> list[str]:
    return find_violations_at_rest(world.look(), {plan.name: plan.expected for plan in plans})


def test_temporal_killed_in_phase_two_and_restarted_finishes_every_deletion(
    own_stack: OwnStack, world: RealWorld
) -> None:
    """What Temporal keeps on disk is enough to go on (apache/pulsar#982: a delete that nobody retries leaks)."""

    async def run() -> None:
        trimming = await _until_a_worker_died(world)
        await asyncio.to_thread(own_stack.kill, "temporal")
        await asyncio.gather(trimming, return_exceptions=True)  # its client lost the server
        await asyncio.to_thread(own_stack.revive)
        await asyncio.to_thread(WorkerProcess, world, "worker-2")
        await wait_until_true(lambda: not world.unfinished(), "every intent has ended")
        await trim_topics_and_wait(world)

    asyncio.run(run())
    assert not _wrong(world, SQUATTED_PLANS)


def test_objects_away_in_phase_two_and_back_deletes_every_ledger(own_stack: OwnStack, world: RealWorld) -> None:
    """A store that is down means keep, and ask again later (PIP-186, back-off)."""

    async def run() -> None:
        trimming = await _until_a_worker_died(world)
        await asyncio.to_thread(own_stack.kill, "seaweedfs")
        await asyncio.to_thread(WorkerProcess, world, "worker-2")
        before = world.unfinished()
        await asyncio.to_thread(own_stack.revive)
        assert before, "nothing was left to do when the store went away"
        await trimming

    asyncio.run(run())
    assert not _wrong(world, SQUATTED_PLANS)


def test_worker_paused_past_its_heartbeat_and_continued_harms_nothing(world: RealWorld) -> None:
    """A zombie attempt overlaps the retry, and its work counts once (temporalio/sdk-python#1048, dust-tt/dust#4272)."""

    async def run() -> None:
        programs = WritingPrograms(world, _MANY)
        await asyncio.to_thread(lambda: programs.drive(programs.write))
        zombie = await asyncio.to_thread(WorkerProcess, world, "worker-1")
        trimming = asyncio.ensure_future(trim_topics_and_wait(world, _MANY))
        await wait_until_true(lambda: bool(world.ended()), "phase two has begun")
        zombie.signal(signal.SIGSTOP)
        assert world.unfinished(), "phase two was over before the worker was paused"
        await asyncio.to_thread(WorkerProcess, world, "worker-2")
        paused_at = world.ended()
        await wait_until_true(lambda: world.ended() > paused_at, "the other worker took over", within_s=120)
        zombie.signal(signal.SIGCONT)
        await trimming
        await trim_topics_and_wait(world, _MANY)

    asyncio.run(run())
    assert not _wrong(world, _MANY)
