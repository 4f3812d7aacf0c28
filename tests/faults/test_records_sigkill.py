"""The record log on real servers: workers die by SIGKILL in a flush, a defragmentation and a raid; another one ends it.

One world at a time: the ids of these jobs name no catalog, for a namespace of Temporal serves one.
"""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from infra.stack import embedded_stack
from logstore.ports.catalog.log import Topic
from logstore.records.newest_versions import select_newest_versions
from logstore.records.record_kinds import RecordKind
from tests.faults.auditor import find_violations_at_any_moment
from tests.faults.real_world import WRITER_PLANS, RealWorld, WorkerProcess, ended, wait_until_true
from tests.faults.writing_programs import WritingPrograms
from tests.servers import create_store_settings
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton, workflow_search
from workers.client.temporal_connection import connect_client

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill, pytest.mark.timeout(1_500)]


class _Workers:
    """One worker after the other."""

    def __init__(self, world: RealWorld) -> None:
        self._world, self._number = world, 0
        self._last: WorkerProcess | None = None

    async def next(self, *armed: str) -> WorkerProcess:
        """The one before is gone, however it went."""
        if self._last:
            await asyncio.to_thread(self._last.kill)
        self._number += 1
        self._last = await asyncio.to_thread(WorkerProcess, self._world, f"worker-{self._number}", *armed)
        return self._last

    async def dies_in(self, point: str, started: Awaitable[WorkflowHandle[Any, Any]]) -> Any:
        """A worker is killed at the point, in the job that is started then; what that comes to with another one."""
        mortal = await self.next(f"{point}=kill")
        handle = await started
        await wait_until_true(lambda: not mortal.alive, f"{point} kills its worker")
        wrong = find_violations_at_any_moment(await asyncio.to_thread(self._world.look))
        assert not wrong, f"right after {point}: {wrong}"
        await self.next()
        await ended(handle)
        return await handle.result()


def _recorded(world: RealWorld) -> tuple[set[int], set[int], int]:
    """Ledgers that a rebuild would find, those that there are, and how many tombstones."""
    with open_log_store(world.settings) as log:
        manifest = log.records.log.read_newest_manifest()
        assert manifest
        blocks = [log.records.log.read_block(one) for one in manifest.blocks if one.kind is RecordKind.LEDGER]
        rows = select_newest_versions(blocks).to_pylist()
        tombstones = sum(log.catalog.tombstones.count_tombstones().by_kind.values())
    return {row["id"] for row in rows if not row["tombstone"]}, set(world.look().ledgers), tombstones


async def _story(world: RealWorld) -> None:
    programs = WritingPrograms(world, WRITER_PLANS)
    await asyncio.to_thread(lambda: programs.drive(programs.write))
    sexton = await Sexton.connect(world.settings)
    topic, doomed = await asyncio.to_thread(_first_ledger, world)
    workers = _Workers(world)

    flushed = await workers.dies_in("records.put_manifest.after", sexton.flush_records("a test", "tests"))
    assert flushed.refused is None
    alive, there, _ = await asyncio.to_thread(_recorded, world)
    assert there <= alive

    await ended(await sexton.delete_ledgers(topic, [doomed], reason="a test", actor="tests"))
    alive, there, tombstones = await asyncio.to_thread(_recorded, world)
    assert (doomed in alive, doomed in there, tombstones) == (False, False, 1), "its tombstone is in a block already"

    done = await workers.dies_in("records.put_manifest.before", sexton.defragment_records("a test", "tests"))
    assert done.done.rewritten > done.done.written > 0
    raided = await workers.dies_in("records.raid_remove.after", sexton.raid_tombstones(0, "a test", "tests"))
    assert raided.refused is None
    alive, there, tombstones = await asyncio.to_thread(_recorded, world)
    assert (there <= alive, doomed in alive, tombstones) == (True, False, 0)


def _first_ledger(world: RealWorld) -> tuple[Topic, Any]:
    """One that every subscription has acknowledged."""
    with open_log_store(world.settings) as log:
        topic = log.catalog.topics.get_topic(WRITER_PLANS[0].name)
        return topic, log.catalog.ledgers.list_ledgers(topic.topic_id)[0].ledger_id


def test_workers_killed_in_a_flush_a_defragmentation_and_a_raid_are_replaced(
    servers: embedded_stack.StackAddresses, tmp_path: Path
) -> None:
    """Promises 5 and 8: what ended durably never returns, and every other ledger would be found by a rebuild."""
    world = RealWorld(create_store_settings(servers, tmp_path)).prepare()

    async def run() -> None:
        await workflow_search.register_search_attributes(await connect_client(world.settings))
        try:
            await _story(world)
        finally:
            await asyncio.to_thread(world.close)

    asyncio.run(run())
