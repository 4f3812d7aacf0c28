"""Scheduled runs that do not go on are named, cannot be read by accident, and are started anew; on a real Temporal."""

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec
from temporalio.service import RPCError
from temporalio.worker import Worker

from logstore.errors import InvalidInput, ServiceFailed, UnknownObject
from tests.workflows.workflow_harness import assert_eventually
from workers.client import Sexton, schedules
from workers.client.schedules import find_stuck_runs, require_readable_schedules, restart_schedule
from workers.hosting.readiness import make_schedules_check
from workers.operations.service_checks import _check_stuck_schedules, run_check_as_row
from workers.settings import Settings
from workflows.deletion.job_definitions import SweepDeletionsInput
from workflows.records.job_definitions import FLUSH_RECORDS

pytestmark = pytest.mark.external_service

_SCHEDULES = {"sexton-sweep": "sweep-deletions", "sexton-records": "sweep-records"}
_QUEUE = "scheduled-runs"


@workflow.defn(name="sweep-deletions", sandboxed=False)
class FailingTask:
    """A job whose workflow task fails always."""

    @workflow.run
    async def run(self, _: SweepDeletionsInput) -> None:
        raise RuntimeError("planned")


class Namespace:
    """Schedules of ours on a queue of the test's own, which nobody serves unless told."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def create(self, name: str = "sexton-sweep") -> None:
        """Create a schedule; its runs start by hand alone."""
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=365))])
        kind = _SCHEDULES[name]
        action = ScheduleActionStartWorkflow(kind, SweepDeletionsInput(), id=kind, task_queue=_QUEUE)
        await self.client.create_schedule(name, Schedule(action=action, spec=spec))

    async def start(self, name: str = "sexton-sweep") -> str:
        """Start a run; its id."""
        await self.client.get_schedule_handle(name).trigger()
        return await self.running(name)

    async def running(self, name: str = "sexton-sweep", *, other_than: str = "") -> str:
        """Wait for a run of the schedule; its id."""
        found = list[str]()

        async def is_running() -> bool:
            actions = (await self.client.get_schedule_handle(name).describe()).info.running_actions
            ids = [getattr(action, "workflow_id", "") for action in actions]
            found[:] = [workflow_id for workflow_id in ids if workflow_id != other_than]
            return bool(found)

        await assert_eventually(is_running)
        return found[0]

    async def problems(self) -> list[tuple[str, str, str]]:
        """Schedule, workflow and problem of each run that is stuck."""
        return [(one.schedule_id, one.workflow_id, one.problem) for one in await find_stuck_runs(self.client)]

    async def remove(self) -> None:
        """Remove what tests have made."""
        for name in _SCHEDULES:
            with suppress(RPCError):
                await self.client.get_schedule_handle(name).delete()
        async for found in self.client.list_workflows(f"TaskQueue = '{_QUEUE}' AND ExecutionStatus = 'Running'"):
            with suppress(RPCError):
                await self.client.get_workflow_handle(found.id).terminate()
        with suppress(RPCError):
            await self.client.get_workflow_handle(FLUSH_RECORDS.id()).terminate()


def _with(settings: Settings, work: Callable[[Namespace], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        namespace = Namespace((await Sexton.connect(settings)).client)
        try:
            return await work(namespace)
        finally:
            await namespace.remove()

    return asyncio.run(connected())


@pytest.fixture
def keyed(settings: Settings, tmp_path: Path) -> Settings:
    """The same namespace with a key."""
    path = tmp_path / "keys"
    path.write_text(f"one {base64.b64encode(secrets.token_bytes(32)).decode()}\n")
    return settings.model_copy(update={"payload_key_file": str(path)})


def test_run_whose_workflow_task_fails_is_named_and_started_anew(settings: Settings) -> None:
    """With the failure, and with the command that starts it anew; a schedule that waits is no fault."""

    async def work(namespace: Namespace) -> None:
        await namespace.create()
        assert await namespace.problems() == []
        stuck = await namespace.start()
        assert await namespace.problems() == []  # it only waits for a worker
        async with Worker(namespace.client, task_queue=_QUEUE, workflows=[FailingTask]):
            await assert_eventually(lambda: _is_stuck(namespace.client))
        (one,) = await find_stuck_runs(namespace.client)
        assert (one.schedule_id, one.workflow_id) == ("sexton-sweep", stuck)
        assert one.problem.startswith(f"the workflow task of {stuck} fails again and again (attempt ")
        assert "planned" in one.problem
        assert str(one).endswith("; `sexton schedule restart sexton-sweep` starts it anew")
        assert await restart_schedule(namespace.client, "sexton-sweep") == [stuck]
        assert await namespace.running(other_than=stuck) != stuck
        assert await namespace.problems() == []

    _with(settings, work)


def test_run_that_does_not_end_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schedule skips each later run meanwhile; one that is paused by hand is nobody's worry."""

    async def work(namespace: Namespace) -> None:
        await namespace.create()
        old = await namespace.start()
        assert await namespace.problems() == []
        monkeypatch.setattr(schedules, "_MAX_AGE_INTERVALS", 0)
        monkeypatch.setattr(schedules, "_MIN_AGE", timedelta())
        ((schedule, workflow_id, problem),) = await namespace.problems()
        assert (schedule, workflow_id) == ("sexton-sweep", old)
        assert problem.startswith(f"{old} has not ended since 2")
        await namespace.client.get_schedule_handle("sexton-sweep").pause(note="an incident")
        assert await namespace.problems() == []
        assert await restart_schedule(namespace.client, "sexton-sweep") == [old]
        assert await restart_schedule(namespace.client, "sexton-sweep") == []

    _with(settings, work)


def test_doctor_names_a_schedule_that_is_stuck(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that starts it anew."""

    async def work(namespace: Namespace) -> None:
        await namespace.create()
        assert await asyncio.to_thread(_check_stuck_schedules, settings) == "1 schedule, and no job of theirs is stuck"
        await namespace.start()
        monkeypatch.setattr(schedules, "_MAX_AGE_INTERVALS", 0)
        monkeypatch.setattr(schedules, "_MIN_AGE", timedelta())
        row = await asyncio.to_thread(run_check_as_row, "schedules", _check_stuck_schedules, settings)
        assert row["ok"] is False
        assert "sexton-sweep: sweep-deletions-2" in str(row["detail"])
        assert "`sexton schedule restart sexton-sweep` starts it anew" in str(row["detail"])

    _with(settings, work)


def test_id_of_a_job_that_a_schedule_keeps_going_held_by_another_type_is_named(settings: Settings) -> None:
    """The sweep would believe for ever that changes are flushed."""

    async def work(namespace: Namespace) -> None:
        await namespace.create("sexton-records")
        await namespace.client.start_workflow("theirs", id=FLUSH_RECORDS.id(), task_queue=_QUEUE)
        problem = "flush-records is held by a workflow of another type, 'theirs'"
        assert await namespace.problems() == [("sexton-records", "flush-records", problem)]
        assert await restart_schedule(namespace.client, "sexton-records") == ["flush-records"]

    _with(settings, work)


def test_flush_that_goes_on_is_left_alone_by_a_restart(settings: Settings) -> None:
    """It runs without end, which is no fault of it."""

    async def work(namespace: Namespace) -> None:
        await namespace.create("sexton-records")
        await namespace.client.start_workflow(FLUSH_RECORDS.name, id=FLUSH_RECORDS.id(), task_queue=_QUEUE)
        assert await namespace.problems() == []
        assert await restart_schedule(namespace.client, "sexton-records") == []

    _with(settings, work)


def test_schedule_that_is_none_of_ours_is_not_restarted(settings: Settings) -> None:
    """Named, with those that there are."""

    async def work(namespace: Namespace) -> None:
        await namespace.create()
        with pytest.raises(UnknownObject, match="schedule: expected one of sexton-sweep, found 'theirs'"):
            await restart_schedule(namespace.client, "theirs")

    _with(settings, work)


def test_run_that_is_encrypted_by_a_key_of_other_workers_is_named(settings: Settings, keyed: Settings) -> None:
    """Workers without the key would fail each task of it. They say what to do, and start."""

    async def work(namespace: Namespace) -> None:
        of_keyed = (await Sexton.connect(keyed)).client
        await Namespace(of_keyed).create()
        encrypted = await namespace.start()
        (run,) = await find_stuck_runs(namespace.client)
        assert (run.schedule_id, run.workflow_id) == ("sexton-sweep", encrypted)
        expected = (
            f"{encrypted} needs a key that this process lacks (payload_key_file: expected a file with the key 'one',"
        )
        assert run.problem.startswith(expected)
        assert str(run).endswith(" if that is lost, restart; `sexton schedule restart sexton-sweep` starts it anew")
        assert await find_stuck_runs(of_keyed) == []
        row = await asyncio.to_thread(run_check_as_row, "schedules", _check_stuck_schedules, settings)
        assert (row["ok"], "needs a key that this process lacks" in str(row["detail"])) == (False, True)
        (check,) = make_schedules_check(lambda: find_stuck_runs(namespace.client)).values()
        with pytest.raises(ServiceFailed, match="needs a key that this process lacks"):
            await check()
        with pytest.raises(InvalidInput, match="'one', by which payloads of this namespace are encrypted"):
            await require_readable_schedules(namespace.client)
        assert await restart_schedule(namespace.client, "sexton-sweep") == [encrypted]

    _with(settings, work)


def test_flush_that_is_encrypted_by_a_lost_key_is_ended_by_a_restart(settings: Settings, keyed: Settings) -> None:
    """Its schedule is in plain, and finds the id taken each time."""

    async def work(namespace: Namespace) -> None:
        await namespace.create("sexton-records")
        of_keyed = (await Sexton.connect(keyed)).client
        request = SweepDeletionsInput()
        await of_keyed.start_workflow(FLUSH_RECORDS.name, request, id=FLUSH_RECORDS.id(), task_queue=_QUEUE)
        await require_readable_schedules(namespace.client)
        assert [workflow_id for _, workflow_id, _ in await namespace.problems()] == ["flush-records"]
        assert await restart_schedule(namespace.client, "sexton-records") == ["flush-records"]

    _with(settings, work)


async def _is_stuck(client: Client) -> bool:
    return bool(await find_stuck_runs(client))
