"""Whoever waits for a job is told what it is, why it does not move, and what to do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType, PendingActivityState, TaskQueueType, TimeoutType, VersioningBehavior
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo, WorkflowExecutionVersioningInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueResponse,
    PollWorkflowTaskQueueRequest,
)
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from activities.deletion.inputs_and_results import RowRangesInput, RowRangesPage
from logstore.errors import StoreUnavailable
from tests.workflows.offload.offloading import offload_all
from tests.workflows.pulsar.cluster_plans import plan as plan_cluster
from tests.workflows.reconciliation.orphaned import apply, orphan_ledgers, planned
from tests.workflows.workflow_harness import WorkflowHarness, assert_eventually
from workers.client import Sexton, task_queue_pollers
from workers.client import wait_for_job as waits_for
from workers.client.task_queue_pollers import explain_waiting_task
from workers.client.wait_for_job import JobStopped, _iterate_snapshots, wait_for_result
from workers.operations.worker_builds import deploy_just_started_build
from workers.settings import Settings
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.offload.job_definitions import OffloadAsk
from workflows.reconciliation.apply_orphans import ApplyOrphans

pytestmark = pytest.mark.external_service


@workflow.defn(name="trim-topic", sandboxed=False)
class Broken:
    """Fails each of its tasks."""

    @workflow.run
    async def run(self, request: Any) -> None:
        """Not a failure of the workflow."""
        raise RuntimeError("a fault in the code")


class Waiting:
    """Somebody who waits, with what was said."""

    def __init__(self, task: asyncio.Task[Any], said: list[str]) -> None:
        self.task = task
        self.said = said

    async def hears(self, *parts: str) -> None:
        """Until one sentence has all these parts."""
        await assert_eventually(lambda: any(all(part in one for part in parts) for one in self.said))


@asynccontextmanager
async def waiting(house: WorkflowHarness, handle: WorkflowHandle[Any, Any]) -> AsyncIterator[Waiting]:
    """Wait impatiently while the block runs."""
    said: list[str] = []
    task = asyncio.create_task(
        wait_for_result(house.client, handle, said.append, patience_s=0.2, check_interval_s=0.05)
    )
    yield Waiting(task, said)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_waiting_without_a_worker_names_the_queue_that_nobody_polls(house: WorkflowHarness) -> None:
    """And how to start one."""
    async with waiting(house, await house.trim()) as waits:
        await waits.hears(f"started {house.trim_workflow_id}")
        await waits.hears("no worker polls the task queue", house.queue, "sexton worker run")


async def test_waiting_while_no_build_is_current_says_so_and_how_to_make_one(house: WorkflowHarness) -> None:
    """Workers poll, and Temporal gives a versioned worker no new run before its build is current."""
    async with house.build("a"), waiting(house, await house.trim()) as waits:
        await waits.hears(f"no build of {house.queue} is current", "workers of a poll", "worker deploy --build-id a")
        await deploy_just_started_build(house.client, house.queue, "a")
        await waits.task


async def test_waiting_while_no_worker_of_the_current_build_polls_names_the_build_and_what_to_do(
    house: WorkflowHarness,
) -> None:
    """Its workers have stopped: one of another build gets none of its work before that is made current."""
    async with house.build("a"):
        await deploy_just_started_build(house.client, house.queue, "a")
    current = f"build a of {house.queue} is current, and no worker of it polls the task queue {house.queue}"
    async with waiting(house, await house.trim()) as waits:
        await waits.hears(current, "start one of that build", "worker deploy --build-id ID")
        async with house.build("b"):
            await waits.hears(f"{current}, though workers of b do; start one", "worker deploy --build-id b")
            await deploy_just_started_build(house.client, house.queue, "b")
            await waits.task


async def test_waiting_for_a_run_that_is_pinned_names_the_build_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build may be current and served: it gets nothing of such a run."""
    pollers = [PollerInfo(identity="w2")]
    pollers[0].deployment_options.deployment_name, pollers[0].deployment_options.build_id = "store", "b"

    async def described(*_: object) -> DescribeTaskQueueResponse:
        found = DescribeTaskQueueResponse(pollers=pollers)
        found.versioning_info.current_deployment_version.deployment_name = "store"
        found.versioning_info.current_deployment_version.build_id = "b"
        return found

    async def live(*_: object) -> list[PollerInfo]:
        return pollers

    monkeypatch.setattr(task_queue_pollers, "describe_task_queue", described)
    monkeypatch.setattr(task_queue_pollers, "list_live_pollers", live)
    told, kind = WorkflowExecutionVersioningInfo(), TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    assert "though w2 polled it" in await explain_waiting_task(
        cast("Client", None), "replicate-records", told, "sexton", kind
    )
    told.behavior = VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
    told.deployment_version.deployment_name, told.deployment_version.build_id = "store", "a"
    said = await explain_waiting_task(cast("Client", None), "replicate-records", told, "sexton", kind)
    expected = "replicate-records is pinned to build a of store, and no worker of it polls the task queue sexton"
    assert said == f"{expected}; start one of that build"


async def test_waiting_for_what_another_started_says_since_when(house: WorkflowHarness) -> None:
    """A start that joined is told from one that began something."""
    handle = await house.trim()
    other = await Client.connect(house.client.service_client.config.target_host, identity="somebody else")
    said: list[str] = []
    task = asyncio.create_task(wait_for_result(other, handle, said.append))
    await assert_eventually(lambda: bool(said))
    task.cancel()
    assert said[0].startswith(f"joined {house.trim_workflow_id}, which has been running since 20")


async def test_waiting_for_a_task_that_fails_again_and_again_says_with_what(house: WorkflowHarness) -> None:
    """As a build with a fault in it does."""
    broken = Worker(house.client, task_queue=house.queue, workflows=[Broken])
    async with broken, waiting(house, await house.trim()) as waits:
        await waits.hears("the workflow task of", "fails again and again", "a fault in the code", "terminate")


async def test_task_whose_time_is_over_is_no_progress(house: WorkflowHarness) -> None:
    """As where a worker was stopped: it took the task, and answers nothing."""
    handle = await house.client.start_workflow(
        "trim-topic", id=house.trim_workflow_id, task_queue=house.queue, task_timeout=timedelta(seconds=1)
    )
    asked = PollWorkflowTaskQueueRequest(
        namespace=house.client.namespace, task_queue=TaskQueue(name=house.queue), identity="stopped"
    )
    await house.client.workflow_service.poll_workflow_task_queue(asked)
    (before,) = [look async for look in _iterate_snapshots(house.client, handle.id, 1)]

    async def timed_out() -> bool:
        kinds = [one.event_type async for one in handle.fetch_history_events()]
        return EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT in kinds

    await assert_eventually(timed_out)
    (after,) = [look async for look in _iterate_snapshots(house.client, handle.id, 1)]
    assert (
        after.description.workflow_execution_info.history_length
        > before.description.workflow_execution_info.history_length
    )
    assert after.progress_fingerprint() == before.progress_fingerprint()
    async with waiting(house, handle) as waits:
        await waits.hears("nobody has picked it up", "stopped polled it a while ago", "sexton worker run")


async def test_waiting_for_an_activity_that_is_retried_says_its_last_error(house: WorkflowHarness) -> None:
    """One sentence down, in the batch that the command's job waits for."""

    @activity.defn(name="deletion.next_ranges")
    def list_ranges_and_renew_claim(request: RowRangesInput) -> RowRangesPage:
        raise StoreUnavailable("planned: the catalog is away")

    house.world.fill(3)
    async with house.worker(replacements=[list_ranges_and_renew_claim]), waiting(house, await house.trim()) as waits:
        await waits.hears("activity deletion.next_ranges of delete-ledgers/", "StoreUnavailable: planned")


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("lost", [True, False])
async def test_waiting_for_an_activity_says_whether_a_worker_was_lost(
    running: bool, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that died is no error that somebody must mend; until that is noticed its name stands there."""

    async def served(*_: object) -> str:
        return "nobody has picked it up"

    monkeypatch.setattr(waits_for, "explain_waiting_task", served)
    states = PendingActivityState
    state = states.PENDING_ACTIVITY_STATE_STARTED if running else states.PENDING_ACTIVITY_STATE_SCHEDULED
    one = PendingActivityInfo(state=state, attempt=2 if lost else 1, last_worker_identity="7@host")
    one.activity_type.name = "reconciliation.run_bulk"
    one.activity_options.heartbeat_timeout.FromSeconds(60)
    if lost:
        one.last_failure.message = "activity Heartbeat timeout"
        one.last_failure.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    look: Any = SimpleNamespace(id="reconcile-orphans/plan-1", queue="sexton", versioning=lambda: None)
    told = await waits_for._explain_activity(cast("Client", None), look, one)
    assert told.startswith("activity reconciliation.run_bulk of reconcile-orphans/plan-1 ")
    assert ("after attempt 1 lost its worker" in told) is lost
    assert "tried again" not in told
    if running:
        assert "is being done by 7@host" in told
        assert "a worker's first one starts Spark" in told
        assert "another one takes it up after 60 s of silence" in told
    else:
        assert told.endswith("nobody has picked it up")


async def test_waiting_for_a_paused_batch_says_how_to_resume_it(house: WorkflowHarness) -> None:
    """Paused before its first chunk, so that nothing of it moves."""
    ledgers = house.world.fill(1)
    handle = await house.delete(ledgers)
    pausing = asyncio.create_task(handle.execute_update(DeleteLedgers.pause))
    async with house.worker(), waiting(house, handle) as waits:
        await pausing
        await waits.hears(f"{handle.id} is paused", f"sexton deletion resume {handle.id}")
        await handle.execute_update(DeleteLedgers.resume)
        assert (await waits.task).outcomes == {"DELETED": 1}


async def test_waiting_for_a_paused_apply_says_how_to_resume_it(house: WorkflowHarness) -> None:
    """Paused before its first page, so that nothing of it moves."""
    orphan_ledgers(house, 1)
    await planned(house)
    handle = await apply(house)
    pausing = asyncio.ensure_future(handle.execute_update(ApplyOrphans.pause))
    async with house.worker(), waiting(house, handle) as waits:
        await pausing
        await waits.hears(f"{handle.id} is paused", f"sexton deletion resume {handle.id}")
        await handle.execute_update(ApplyOrphans.resume)
        assert (await waits.task).done.applied == {"orphan_ledger": 1}


@pytest.mark.parametrize("done", ["terminated", "cancelled"])
async def test_waiting_for_a_job_that_is_stopped_says_so_and_what_becomes_of_the_rest(
    house: WorkflowHarness, done: str
) -> None:
    """One sentence, whatever the SDK's error looks like."""
    handle = await house.trim()
    async with waiting(house, handle) as waits:
        if done == "terminated":
            await handle.terminate(reason="by hand")
        else:
            async with house.worker():
                await handle.cancel()
                with pytest.raises(JobStopped):
                    await waits.task
        with pytest.raises(JobStopped) as stopped:
            await waits.task
    why = " (by hand)" if done == "terminated" else ""
    assert str(stopped.value).startswith(f"{handle.id} was {done}{why}; ")
    assert "sexton deletion sweep" in str(stopped.value)


async def test_waiting_for_a_batch_that_is_terminated_below_names_it(house: WorkflowHarness) -> None:
    """Not the job that waited for it."""

    @activity.defn(name="deletion.next_ranges")
    def list_ranges_and_renew_claim(request: RowRangesInput) -> RowRangesPage:
        raise StoreUnavailable("planned: the catalog is away")

    house.world.fill(1)
    async with house.worker(replacements=[list_ranges_and_renew_claim]), waiting(house, await house.trim()) as waits:
        await waits.hears("activity deletion.next_ranges of delete-ledgers/")
        children = (
            await house.client.get_workflow_handle(house.trim_workflow_id).describe()
        ).raw_description.pending_children
        await house.client.get_workflow_handle(children[0].workflow_id).terminate()
        with pytest.raises(
            JobStopped, match=f"^{children[0].workflow_id}, for which {house.trim_workflow_id} waited, was term"
        ):
            await waits.task


async def test_client_waits_as_commands_do(house: WorkflowHarness) -> None:
    """The typed client has the same wait; an offload's rest is asked for again, not swept."""
    handle = await offload_all(house, OffloadAsk(actor="tests", reason=""))
    said: list[str] = []
    waits = asyncio.create_task(
        Sexton(house.client, Settings(home=Path("unused"))).wait_for_result(handle, said.append)
    )
    await assert_eventually(lambda: said == [f"started {handle.id}"])
    await handle.terminate()
    with pytest.raises(JobStopped, match="ask for the rest again"):
        await waits


async def test_waiting_for_a_plan_between_its_scans_names_the_time(house: WorkflowHarness) -> None:
    async with house.worker(), waiting(house, await plan_cluster(house, between_s=3_600.0)) as waits:
        await waits.hears(f"plan-pulsar/pulsar-{house.queue} is waiting until", "for the second scan")
