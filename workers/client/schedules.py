"""Recurring jobs as Temporal schedules. After an outage of Temporal, a schedule starts at most one missed run."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio.api.common.v1 import Payload
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

from workers.client.payload_encryption import encryption_key_name, get_codec
from workers.settings import Settings
from workflows.delayed.job_definitions import SEAL_BUCKETS
from workflows.deletion.job_definitions import SWEEP_DELETIONS, TRIM_TOPICS, DeletionPolicy
from workflows.job_definition import DescribedJobInput, JobDefinition
from workflows.pulsar.job_definitions import PLAN_PULSAR
from workflows.reconciliation.job_definitions import RECONCILE_ORPHANS, SCRUB_LEDGERS
from workflows.records.job_definitions import DEFRAGMENT_RECORDS, RAID_TOMBSTONES, REPLICATE_RECORDS, SWEEP_RECORDS
from workflows.task_queues import bulk_queue, records_queue, transactions_queue
from workflows.transactions.job_definitions import SWEEP_TRANSACTIONS

_SWEEP: Final = "sexton-sweep"
_TRIM: Final = "sexton-trim"
_PLAN: Final = "sexton-plan"
TRANSACTIONS_SCHEDULE: Final = "sexton-transactions"
_SCRUB: Final = "sexton-scrub"
_PULSAR: Final = "sexton-pulsar"
_DELAYED: Final = "sexton-delayed"
RECORDS_SCHEDULE: Final = "sexton-records"
_DEFRAGMENT: Final = "sexton-defragment"
_RAID: Final = "sexton-raid"
_REPLICATE: Final = "sexton-replicate"
JOB_BY_SCHEDULE: Final[Mapping[str, JobDefinition[Any, Any]]] = {
    _SWEEP: SWEEP_DELETIONS,
    _TRIM: TRIM_TOPICS,
    _PLAN: RECONCILE_ORPHANS,
    _SCRUB: SCRUB_LEDGERS,
    _PULSAR: PLAN_PULSAR,
    TRANSACTIONS_SCHEDULE: SWEEP_TRANSACTIONS,
    _DELAYED: SEAL_BUCKETS,
    RECORDS_SCHEDULE: SWEEP_RECORDS,
    _DEFRAGMENT: DEFRAGMENT_RECORDS,
    _RAID: RAID_TOMBSTONES,
    _REPLICATE: REPLICATE_RECORDS,
}
_OFF_NOTE: Final = "its interval is 0s"
"""Note of a schedule that the settings turned off. A schedule that a person paused has another note."""
_MIN_CATCHUP_WINDOW: Final = timedelta(seconds=10)  # the server's minimum


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringJob:
    schedule_id: str
    job: JobDefinition[Any, Any]
    request: DescribedJobInput
    interval_s: int  # 0: the job is not scheduled
    summary: str
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


def list_recurring_jobs(settings: Settings, policy: DeletionPolicy) -> Sequence[RecurringJob]:
    """Return every recurring job of this build. The job `sexton-records` only restarts the endless `flush-records`."""

    def recurring_job(schedule_id: str, interval_s: int, summary: str, **fields: object) -> RecurringJob:
        job = JOB_BY_SCHEDULE[schedule_id]
        request = job.request(actor=schedule_id, reason="schedule", **fields)
        return RecurringJob(schedule_id=schedule_id, job=job, request=request, interval_s=interval_s, summary=summary)

    bulk, transactions = bulk_queue(settings.task_queue), transactions_queue(settings.task_queue)
    records = records_queue(settings.task_queue)
    record_fields = {"scheduled": True, "queue": records}
    scrub_fields = {"bytes_per_s": settings.scrub_rate, "queue": bulk}
    sweep_s, defragment_s = settings.sweep_interval, settings.defragment_interval
    replicate_s = settings.replicate_interval if settings.replicas else 0
    pulsar_s = settings.pulsar_plan_interval if settings.pulsar_zookeeper else 0
    wake, flush = "wake coordinators with work that nobody does", "see that changed records are flushed"
    return (
        recurring_job(_SWEEP, sweep_s, "sweep deletions that nobody works on", policy=policy),
        recurring_job(_TRIM, settings.trim_interval, "trim all topics", policy=policy),
        recurring_job(_PLAN, settings.plan_interval, "compare storage with the catalog", queue=bulk),
        recurring_job(_SCRUB, settings.scrub_interval, "compare digests", **scrub_fields),
        recurring_job(_PULSAR, pulsar_s, "compare two scans of the Pulsar cluster", queue=bulk),
        recurring_job(TRANSACTIONS_SCHEDULE, sweep_s, wake, queue=transactions),
        recurring_job(_DELAYED, settings.delayed_interval, "seal delayed messages of all topics"),
        replace(recurring_job(RECORDS_SCHEDULE, sweep_s, flush, queue=records), triggers_immediately=True),
        recurring_job(_DEFRAGMENT, defragment_s, "defragment the record log", **record_fields),
        recurring_job(_RAID, settings.raid_interval, "raid tombstones that cover nothing", **record_fields),
        recurring_job(_REPLICATE, replicate_s, "replicate the record log", **record_fields),
    )


async def apply_schedules(client: Client, settings: Settings, policy: DeletionPolicy) -> list[AppliedSchedule]:
    """Create missing schedules and update changed schedules. Other schedules stay as they are. Idempotent.

    A job with interval 0 gets no schedule, and an existing schedule is paused. A pause by a person stays.
    """
    jobs = list_recurring_jobs(settings, policy)
    changes = await asyncio.gather(
        *(_create_update_or_pause_schedule(client, job, settings.task_queue) for job in jobs)
    )
    return [change for change in changes if change]


async def list_schedules(client: Client) -> list[ScheduleSummary]:
    return [_summary_from_description(description) for description in await describe_schedules(client)]


async def describe_schedules(client: Client) -> list[ScheduleDescription]:
    """Return the descriptions of Sexton's schedules in the namespace. Arguments of the jobs may be encrypted."""
    handles = [client.get_schedule_handle(schedule_id) for schedule_id in JOB_BY_SCHEDULE]
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
            static_summary=job.summary,
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
