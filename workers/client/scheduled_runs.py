"""Runs of our schedules: which of them are stuck, whether a worker can read them, and how one is started anew.

A run that is stuck holds its schedule, because a schedule skips a run while one is at work. Jobs that the runs of a
schedule keep going are looked at with it: `flush-records` and the transaction coordinators hold ids of their own.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
)
from temporalio.client import (
    Client,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleDescription,
    ScheduleOverlapPolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import InvalidInput, UnknownObject
from workers.client.payload_codec import codec_of
from workers.client.schedules import RECORDS, TRANSACTIONS, described_schedules
from workers.client.waiting import failure_of_task, innermost
from workflows.records.values import FLUSH_RECORDS
from workflows.transactions.values import TRANSACTION_COORDINATOR

_MIN_FAILED_TASKS: Final = 3  # a worker that is being replaced fails one or two
_MIN_FAILED_ATTEMPTS: Final = 10  # at an activity: with the usual pauses some four minutes
_MIN_AGE: Final = timedelta(hours=6)  # a sweep or a trim behind a large deletion takes that long
_INTERVALS: Final = 3  # as many runs as an old one has kept from starting
_MAX_COORDINATORS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """A run that a schedule started, or a job that such runs keep going."""

    schedule_id: str
    workflow_id: str
    expected_type: str
    max_age: timedelta | None  # None: it runs without end
    found: DescribeWorkflowExecutionResponse

    @property
    def run_id(self) -> str:
        """Its newest run."""
        return str(self.found.workflow_execution_info.execution.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRun:
    """A scheduled run that does not go on, and why."""

    schedule_id: str
    workflow_id: str
    run_id: str
    problem: str

    def __str__(self) -> str:
        return f"{self.schedule_id}: {self.problem}; `sexton schedule restart {self.schedule_id}` starts it anew"


async def find_stuck_runs(client: Client) -> list[StuckRun]:
    """Return the runs of our schedules that do not go on, by schedule; those of paused schedules are left out."""
    found = list[StuckRun]()
    for schedule in await described_schedules(client):
        if schedule.schedule.state.paused:
            continue
        async for run in _running(client, schedule):
            problem = await _problem(client, run)
            if problem:
                found.append(
                    StuckRun(
                        schedule_id=run.schedule_id, workflow_id=run.workflow_id, run_id=run.run_id, problem=problem
                    )
                )
    return found


async def restart_schedule(client: Client, schedule_id: str) -> list[str]:
    """End the runs of one of our schedules and what is stuck of the jobs that it keeps going, then start a run.

    Every scheduled job finds in the catalog what is left to do, so that no work is lost. A schedule that is paused
    starts nothing. Repeating it is harmless.

    Returns:
        The ids of the workflows that it ended.

    Raises:
        UnknownObject: The namespace has no such schedule of ours.
    """
    schedules = {schedule.id: schedule for schedule in await described_schedules(client)}
    if schedule_id not in schedules:
        known = ", ".join(sorted(schedules)) or "none: `sexton schedule apply` creates them"
        raise UnknownObject("schedule", expected=f"one of {known}", found=schedule_id)
    ended = list[str]()
    async for run in _running(client, schedules[schedule_id]):
        if run.max_age is None and not await _problem(client, run):
            continue
        handle = client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
        try:
            await handle.terminate(reason=f"sexton schedule restart {schedule_id}")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended meanwhile
                raise
        else:
            ended.append(run.workflow_id)
    if not schedules[schedule_id].schedule.state.paused:
        # The schedule may not know yet that its run has ended, and would skip this one.
        await client.get_schedule_handle(schedule_id).trigger(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
    return ended


async def _running(client: Client, schedule: ScheduleDescription) -> AsyncIterator[ScheduledRun]:
    action = schedule.schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow):
        return
    intervals = [interval.every for interval in schedule.schedule.spec.intervals]
    max_age = max(_MIN_AGE, _INTERVALS * max(intervals, default=timedelta()))
    wanted = [
        (started.workflow_id, action.workflow, max_age)
        for execution in schedule.info.running_actions
        if isinstance(started := execution, ScheduleActionExecutionStartWorkflow)
    ]
    kept = await _kept_going(client, schedule.id)
    found = await asyncio.gather(*(_described(client, workflow_id) for workflow_id, *_ in [*wanted, *kept]))
    for (workflow_id, expected_type, age), description in zip([*wanted, *kept], found, strict=True):
        if description is not None:
            yield ScheduledRun(
                schedule_id=schedule.id,
                workflow_id=workflow_id,
                expected_type=expected_type,
                max_age=age,
                found=description,
            )


async def _kept_going(client: Client, schedule_id: str) -> Sequence[tuple[str, str, None]]:
    """Return ids and types of the jobs that a schedule's runs start and leave."""
    if schedule_id == RECORDS:
        return [(FLUSH_RECORDS.id(), FLUSH_RECORDS.name, None)]
    if schedule_id == TRANSACTIONS:
        name = TRANSACTION_COORDINATOR.name
        running = client.list_workflows(
            f'WorkflowType = "{name}" AND ExecutionStatus = "Running"', limit=_MAX_COORDINATORS
        )
        return [(execution.id, name, None) async for execution in running]
    return []


async def _described(client: Client, workflow_id: str) -> DescribeWorkflowExecutionResponse | None:
    """Return the newest run under the id, or None if none is running."""
    try:
        found = (await client.get_workflow_handle(workflow_id).describe()).raw_description
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    running = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
    return found if found.workflow_execution_info.status == running else None


async def _problem(client: Client, run: ScheduledRun) -> str:
    """Return why the run does not go on; "" if it does."""
    info, task = run.found.workflow_execution_info, run.found.pending_workflow_task
    if info.type.name != run.expected_type:
        return f"{run.workflow_id} is held by a workflow of another type, {info.type.name!r}"
    if unreadable := await _decryption_problem(client, run):
        return unreadable
    if task.attempt >= _MIN_FAILED_TASKS:
        execution = WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id)
        why = await failure_of_task(client, execution)
        if why:
            return f"the workflow task of {run.workflow_id} fails again and again (attempt {task.attempt}): {why}"
    for pending in run.found.pending_activities:
        if pending.attempt >= _MIN_FAILED_ATTEMPTS and pending.HasField("last_failure"):
            name, why = pending.activity_type.name, innermost(pending.last_failure)
            return f"activity {name} of {run.workflow_id} fails again and again (attempt {pending.attempt}): {why}"
    since = info.start_time.ToDatetime(UTC)
    if run.max_age is not None and datetime.now(UTC) - since > run.max_age:
        return f"{run.workflow_id} has not ended since {since:%Y-%m-%dT%H:%M:%SZ}"
    return ""


async def _decryption_problem(client: Client, run: ScheduledRun) -> str:
    """Return why a worker with this client's keys would fail each task of the run; "" if it can read the input."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace, execution=run.found.workflow_execution_info.execution, maximum_page_size=1
    )
    try:
        (first, *_) = (await client.workflow_service.get_workflow_execution_history(request)).history.events
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # it has ended meanwhile, and was removed
            return ""
        raise
    try:
        codec_of(client).decrypt(first.workflow_execution_started_event_attributes.input.payloads)
    except InvalidInput as error:
        lacking = f"{run.workflow_id} needs a key that this process lacks ({error})"
        return f"{lacking}. Give it the key; if that is lost, restart"
    return ""
