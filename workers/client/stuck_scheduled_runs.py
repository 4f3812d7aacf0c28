"""Stuck runs of Sexton's schedules, and the restart of a schedule.

A stuck run blocks its schedule. Endless jobs that schedules restart are checked, too: `flush-records` and coordinators.
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
from workers.client.payload_encryption import get_codec
from workers.client.schedules import RECORDS_SCHEDULE, TRANSACTIONS_SCHEDULE, describe_schedules
from workers.client.wait_for_job import find_workflow_task_failure, format_innermost_failure
from workflows.records.job_definitions import FLUSH_RECORDS
from workflows.transactions.job_definitions import TRANSACTION_COORDINATOR

_MIN_FAILED_TASKS: Final = 3  # a worker fails one or two tasks while it is replaced
_MIN_FAILED_ATTEMPTS: Final = 10  # attempts of an activity, reached after about four minutes with the usual pauses
_MIN_AGE: Final = timedelta(hours=6)  # a sweep or a trim may wait for a large deletion for hours
_MAX_AGE_INTERVALS: Final = 3  # intervals of the schedule, after which a run is too old
_MAX_COORDINATORS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOrEndlessRun:
    schedule_id: str
    workflow_id: str
    expected_type: str
    max_age: timedelta | None  # None: the job is endless
    description: DescribeWorkflowExecutionResponse

    @property
    def run_id(self) -> str:
        return str(self.description.workflow_execution_info.execution.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRun:
    schedule_id: str
    workflow_id: str
    run_id: str
    problem: str

    def __str__(self) -> str:
        return f"{self.schedule_id}: {self.problem}; `sexton schedule restart {self.schedule_id}` starts it anew"


async def find_stuck_runs(client: Client) -> list[StuckRun]:
    """Return the stuck runs of Sexton's schedules, ordered by schedule. Paused schedules are skipped."""
    stuck_runs = list[StuckRun]()
    for schedule in await describe_schedules(client):
        if schedule.schedule.state.paused:
            continue
        async for run in _iterate_scheduled_and_endless_runs(client, schedule):
            problem = await _find_problem_of_run(client, run)
            if problem:
                stuck_runs.append(
                    StuckRun(
                        schedule_id=run.schedule_id, workflow_id=run.workflow_id, run_id=run.run_id, problem=problem
                    )
                )
    return stuck_runs


async def restart_schedule(client: Client, schedule_id: str) -> list[str]:
    """End the running jobs of a schedule, and its endless jobs if they are stuck. Then start a run.

    Return the ids of the ended workflows. A paused schedule starts no run. Idempotent.

    Raises:
        UnknownObject: Sexton has no schedule with this id in the namespace.
    """
    schedules = {schedule.id: schedule for schedule in await describe_schedules(client)}
    if schedule_id not in schedules:
        ids = ", ".join(sorted(schedules)) or "none: `sexton schedule apply` creates them"
        raise UnknownObject("schedule", expected=f"one of {ids}", found=schedule_id)
    ended = list[str]()
    async for run in _iterate_scheduled_and_endless_runs(client, schedules[schedule_id]):
        if run.max_age is None and not await _find_problem_of_run(client, run):
            continue
        handle = client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
        try:
            await handle.terminate(reason=f"sexton schedule restart {schedule_id}")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # not found: the run has ended in the meantime
                raise
        else:
            ended.append(run.workflow_id)
    if not schedules[schedule_id].schedule.state.paused:
        # The schedule may not know yet that its run has ended, and would then skip this run.
        await client.get_schedule_handle(schedule_id).trigger(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
    return ended


async def _iterate_scheduled_and_endless_runs(
    client: Client, schedule: ScheduleDescription
) -> AsyncIterator[ScheduledOrEndlessRun]:
    action = schedule.schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow):
        return
    intervals = [interval.every for interval in schedule.schedule.spec.intervals]
    max_age = max(_MIN_AGE, _MAX_AGE_INTERVALS * max(intervals, default=timedelta()))
    scheduled_jobs = [
        (started.workflow_id, action.workflow, max_age)
        for execution in schedule.info.running_actions
        if isinstance(started := execution, ScheduleActionExecutionStartWorkflow)
    ]
    jobs = [*scheduled_jobs, *await _list_endless_jobs(client, schedule.id)]
    descriptions = await asyncio.gather(*(_describe_if_running(client, workflow_id) for workflow_id, *_ in jobs))
    for (workflow_id, expected_type, job_max_age), description in zip(jobs, descriptions, strict=True):
        if description is not None:
            yield ScheduledOrEndlessRun(
                schedule_id=schedule.id,
                workflow_id=workflow_id,
                expected_type=expected_type,
                max_age=job_max_age,
                description=description,
            )


async def _list_endless_jobs(client: Client, schedule_id: str) -> Sequence[tuple[str, str, None]]:
    if schedule_id == RECORDS_SCHEDULE:
        return [(FLUSH_RECORDS.id(), FLUSH_RECORDS.name, None)]
    if schedule_id == TRANSACTIONS_SCHEDULE:
        name = TRANSACTION_COORDINATOR.name
        running = client.list_workflows(
            f'WorkflowType = "{name}" AND ExecutionStatus = "Running"', limit=_MAX_COORDINATORS
        )
        return [(execution.id, name, None) async for execution in running]
    return []


async def _describe_if_running(client: Client, workflow_id: str) -> DescribeWorkflowExecutionResponse | None:
    try:
        description = (await client.get_workflow_handle(workflow_id).describe()).raw_description
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    running = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
    return description if description.workflow_execution_info.status == running else None


async def _find_problem_of_run(client: Client, run: ScheduledOrEndlessRun) -> str:
    info, task = run.description.workflow_execution_info, run.description.pending_workflow_task
    if info.type.name != run.expected_type:
        return f"{run.workflow_id} is held by a workflow of another type, {info.type.name!r}"
    if unreadable := await _find_decryption_problem(client, run):
        return unreadable
    if task.attempt >= _MIN_FAILED_TASKS:
        execution = WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id)
        failure = await find_workflow_task_failure(client, execution)
        if failure:
            return f"the workflow task of {run.workflow_id} fails again and again (attempt {task.attempt}): {failure}"
    for activity in run.description.pending_activities:
        if activity.attempt >= _MIN_FAILED_ATTEMPTS and activity.HasField("last_failure"):
            name, failure = activity.activity_type.name, format_innermost_failure(activity.last_failure)
            attempt = f"attempt {activity.attempt}"
            return f"activity {name} of {run.workflow_id} fails again and again ({attempt}): {failure}"
    since = info.start_time.ToDatetime(UTC)
    if run.max_age is not None and datetime.now(UTC) - since > run.max_age:
        return f"{run.workflow_id} has not ended since {since:%Y-%m-%dT%H:%M:%SZ}"
    return ""


async def _find_decryption_problem(client: Client, run: ScheduledOrEndlessRun) -> str:
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace, execution=run.description.workflow_execution_info.execution, maximum_page_size=1
    )
    try:
        (first, *_) = (await client.workflow_service.get_workflow_execution_history(request, retry=True)).history.events
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # the run has ended and was removed in the meantime
            return ""
        raise
    try:
        get_codec(client).decrypt(first.workflow_execution_started_event_attributes.input.payloads)
    except InvalidInput as error:
        lacking = f"{run.workflow_id} needs a key that this process lacks ({error})"
        return f"{lacking}. Give it the key; if that is lost, restart"
    return ""
