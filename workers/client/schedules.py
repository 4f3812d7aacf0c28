"""Recurring jobs as Temporal schedules, their stuck runs, and the restart of a schedule.

After an outage of Temporal, a schedule starts at most one missed run. A stuck run blocks its schedule. Endless jobs
that schedules restart are checked, too: `flush-records` and coordinators.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryRequest,
)
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import InvalidInput, UnknownObject
from workers.client.data_converter import encryption_key_name, get_codec
from workers.client.job_client import deletion_policy
from workers.client.wait_for_job import find_workflow_task_failure, format_innermost_failure
from workers.settings import Settings
from workflows.job_definition import DescribedJobInput, JobDefinition, JobSchedule
from workflows.jobs import SCHEDULED_JOBS
from workflows.records.job_definitions import FLUSH_RECORDS, SWEEP_RECORDS
from workflows.transactions.job_definitions import SWEEP_TRANSACTIONS, TRANSACTION_COORDINATOR

SCHEDULE_IDS: Final = tuple(job.schedule.id for job in SCHEDULED_JOBS if job.schedule)
_OFF_NOTE: Final = "its interval is 0s"
"""Note of a schedule that the settings turned off. A schedule that a person paused has another note."""
_MIN_CATCHUP_WINDOW: Final = timedelta(seconds=10)  # the server's minimum
_MIN_FAILED_TASKS: Final = 3  # a worker fails one or two tasks while it is replaced
_MIN_FAILED_ATTEMPTS: Final = 10  # attempts of an activity, reached after about four minutes with the usual pauses
_MIN_AGE: Final = timedelta(hours=6)  # a sweep or a trim may wait for a large deletion for hours
_MAX_AGE_INTERVALS: Final = 3  # intervals of the schedule, after which a run is too old
_MAX_COORDINATORS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringJob:
    schedule_id: str
    job: JobDefinition[Any, Any]
    request: DescribedJobInput
    interval_s: int  # 0: the job is not scheduled
    triggers_immediately: bool = False  # whether the first run starts at once, instead of after one interval


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedSchedule:
    schedule_id: str
    change: str  # created, updated or unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSummary:
    schedule_id: str
    workflow: str
    interval_s: int
    next_run: datetime | None  # None: the schedule is paused or has no more runs
    last_run: datetime | None
    paused: bool


def list_recurring_jobs(settings: Settings) -> Sequence[RecurringJob]:
    """Return every recurring job of this build. The job `sexton-records` only restarts the endless `flush-records`."""
    return [_build_recurring_job(job, job.schedule, settings) for job in SCHEDULED_JOBS if job.schedule]


def _build_recurring_job(job: JobDefinition[Any, Any], schedule: JobSchedule, settings: Settings) -> RecurringJob:
    values = dict(schedule.fields)
    values |= {field: getattr(settings, setting) for field, setting in schedule.setting_by_field.items()}
    values |= {"queue": job.queue(settings.task_queue)} if job.queue else {}
    if any(field.name == "policy" for field in fields(job.request)):
        values["policy"] = deletion_policy(settings)
    is_required_set = not schedule.required_setting or getattr(settings, schedule.required_setting)
    return RecurringJob(
        schedule_id=schedule.id,
        job=job,
        request=job.request(actor=schedule.id, reason="schedule", **values),
        interval_s=getattr(settings, schedule.interval) if is_required_set else 0,
        triggers_immediately=schedule.triggers_immediately,
    )


async def apply_schedules(client: Client, settings: Settings) -> list[AppliedSchedule]:
    """Create missing schedules and update changed schedules. Other schedules stay as they are. Idempotent.

    A job with interval 0 gets no schedule, and an existing schedule is paused. A pause by a person stays.
    """
    changes = await asyncio.gather(
        *(_create_update_or_pause_schedule(client, job, settings.task_queue) for job in list_recurring_jobs(settings))
    )
    return [change for change in changes if change]


async def list_schedules(client: Client) -> list[ScheduleSummary]:
    return [_summary_from_description(description) for description in await describe_schedules(client)]


async def describe_schedules(client: Client) -> list[ScheduleDescription]:
    """Return the descriptions of Sexton's schedules in the namespace. Arguments of the jobs may be encrypted."""
    handles = [client.get_schedule_handle(schedule_id) for schedule_id in SCHEDULE_IDS]
    descriptions = await asyncio.gather(*(_describe_schedule(handle) for handle in handles))
    return list(filter(None, descriptions))


async def require_readable_schedules(client: Client) -> None:
    """Raise `InvalidInput` if the client lacks the key of an encrypted schedule. A worker needs the key for the job."""
    for description in await describe_schedules(client):
        action = description.schedule.action
        if isinstance(action, ScheduleActionStartWorkflow):
            await get_codec(client).decode([payload for payload in action.args if isinstance(payload, Payload)])


async def _create_update_or_pause_schedule(
    client: Client, job: RecurringJob, task_queue: str
) -> AppliedSchedule | None:
    handle = client.get_schedule_handle(job.schedule_id)
    description = await _describe_schedule(handle)
    if description is None and not job.interval_s:
        return None
    if description is None:
        try:
            schedule = _build_schedule(job, task_queue, ScheduleState())
            await client.create_schedule(job.schedule_id, schedule, trigger_immediately=job.triggers_immediately)
            return AppliedSchedule(schedule_id=job.schedule_id, change="created")
        except ScheduleAlreadyRunningError:  # another process has created the schedule in the meantime
            description = await handle.describe()
    if await _is_schedule_current(client, description, job, task_queue):
        return AppliedSchedule(schedule_id=job.schedule_id, change="unchanged")
    await handle.update(lambda update: _update_schedule(update, job, task_queue))
    return AppliedSchedule(schedule_id=job.schedule_id, change="updated")


async def _describe_schedule(handle: ScheduleHandle) -> ScheduleDescription | None:
    try:
        return await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


def _build_schedule(job: RecurringJob, task_queue: str, state: ScheduleState) -> Schedule:
    every = timedelta(seconds=job.interval_s)
    return Schedule(
        action=ScheduleActionStartWorkflow(
            job.job.name,
            job.request,
            id=job.job.id(),  # for each run, the server appends the time
            task_queue=task_queue,
            static_summary=job.job.summary(job.request),
            static_details=job.request.details(),
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=max(every, _MIN_CATCHUP_WINDOW)),
        state=state,
    )


def _update_schedule(update: ScheduleUpdateInput, job: RecurringJob, task_queue: str) -> ScheduleUpdate:
    schedule = update.description.schedule
    state = _keep_or_switch_pause(schedule.state, job)
    if not job.interval_s:
        return ScheduleUpdate(schedule=replace(schedule, state=state))
    return ScheduleUpdate(schedule=_build_schedule(job, task_queue, state))


def _keep_or_switch_pause(state: ScheduleState, job: RecurringJob) -> ScheduleState:
    """Pause the schedule if the settings turn the job off, and resume it otherwise. Keep a pause by a person."""
    if not job.interval_s and not state.paused:
        return replace(state, paused=True, note=_OFF_NOTE)
    if job.interval_s and state.paused and state.note == _OFF_NOTE:
        return replace(state, paused=False, note=None)
    return state


async def _is_schedule_current(
    client: Client, description: ScheduleDescription, job: RecurringJob, task_queue: str
) -> bool:
    current = description.schedule
    state = _keep_or_switch_pause(current.state, job)
    if (state.paused, state.note) != (current.state.paused, current.state.note):
        return False
    if not job.interval_s:
        return True
    updated = _build_schedule(job, task_queue, state)
    return await _decrypted_schedule_fields(client, current) == await _decrypted_schedule_fields(client, updated)


async def _decrypted_schedule_fields(client: Client, schedule: Schedule) -> tuple[object, ...]:
    action = schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow):
        return (action,)
    values = [*action.args, action.static_summary, action.static_details]
    encode, codec = client.data_converter.encode, get_codec(client)
    payloads = [value if isinstance(value, Payload) else (await encode([value]))[0] for value in values]
    contents = [*map(encryption_key_name, payloads), *(payload.data for payload in await codec.decode(payloads))]
    intervals = [(interval.every, interval.offset or timedelta()) for interval in schedule.spec.intervals]
    timing = (intervals, schedule.policy.overlap, schedule.policy.catchup_window)
    return (action.workflow, action.id, action.task_queue, contents, *timing)


def _summary_from_description(description: ScheduleDescription) -> ScheduleSummary:
    schedule = description.schedule
    action: Any = schedule.action
    intervals = schedule.spec.intervals
    recent_runs = [
        run for run in description.info.recent_actions if isinstance(run.action, ScheduleActionExecutionStartWorkflow)
    ]
    upcoming_runs = [] if schedule.state.paused else list(description.info.next_action_times)
    return ScheduleSummary(
        schedule_id=description.id,
        workflow=str(action.workflow),
        interval_s=int(intervals[0].every.total_seconds()) if intervals else 0,
        next_run=min(upcoming_runs, default=None),
        last_run=max((run.started_at for run in recent_runs), default=None),
        paused=schedule.state.paused,
    )


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
    jobs = [*scheduled_jobs, *await _list_endless_jobs(client, action.workflow)]
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


async def _list_endless_jobs(client: Client, scheduled_type: str) -> Sequence[tuple[str, str, None]]:
    if scheduled_type == SWEEP_RECORDS.name:
        return [(FLUSH_RECORDS.id(), FLUSH_RECORDS.name, None)]
    if scheduled_type == SWEEP_TRANSACTIONS.name:
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
