"""Recurring jobs as Temporal schedules: a table of them, and how a namespace is brought to it.

A run is skipped while an earlier one is at work, and of those missed while Temporal was away at most one is made up
for: what is left to do is read from SQL, not counted in runs.
"""

import asyncio
from collections.abc import Sequence
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

from workers.client.payload_codec import codec_of, key_of
from workers.settings import Settings
from workflows.delayed.values import SEAL_BUCKETS, SealBucketsInput
from workflows.deletion.values import SWEEP_DELETIONS, TRIM_TOPICS, DeletionPolicy, SweepDeletionsInput, TrimTopicsInput
from workflows.jobs import Job, Request
from workflows.limits import bulk_queue, records_queue, transactions_queue
from workflows.reconciliation.values import RECONCILE_ORPHANS, ReconcileOrphansInput
from workflows.records.values import (
    DEFRAGMENT_RECORDS,
    RAID_TOMBSTONES,
    REPLICATE_RECORDS,
    SWEEP_RECORDS,
    DefragmentRecordsInput,
    RaidTombstonesInput,
    ReplicateRecordsInput,
    SweepRecordsInput,
)
from workflows.transactions.values import SWEEP_TRANSACTIONS, SweepTransactionsInput

_SWEEP: Final = "sexton-sweep"
_TRIM: Final = "sexton-trim"
_PLAN: Final = "sexton-plan"
_TRANSACTIONS: Final = "sexton-transactions"
_DELAYED: Final = "sexton-delayed"
_RECORDS: Final = "sexton-records"
_DEFRAGMENT: Final = "sexton-defragment"
_RAID: Final = "sexton-raid"
_REPLICATE: Final = "sexton-replicate"
_OF_RECORDS: Final = (_RECORDS, _DEFRAGMENT, _RAID, _REPLICATE)
_NAMES: Final = (_SWEEP, _TRIM, _PLAN, _TRANSACTIONS, _DELAYED, *_OF_RECORDS)
_OFF: Final = "its interval is 0s"
"""Note of a schedule that was paused because the settings turn it off; a pause by hand leaves another one."""
_LEAST_CATCHUP: Final = timedelta(seconds=10)  # the server takes no less


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurring:
    """A job that is to run again and again."""

    schedule_id: str
    job: Job[Any, Any]
    arg: Request
    interval_s: int  # 0: not at all
    summary: str
    at_once: bool = False  # for the first time when its schedule is made, and not an interval later


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedSchedule:
    """The change of one schedule."""

    schedule_id: str
    change: str  # created, updated, unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A schedule as the namespace has it."""

    schedule_id: str
    workflow: str
    interval_s: int
    next_run: datetime | None  # None: paused, or never
    last_run: datetime | None
    paused: bool


def recurring(settings: Settings, policy: DeletionPolicy) -> Sequence[Recurring]:
    """Every job of this build that recurs."""
    return (
        Recurring(
            schedule_id=_SWEEP,
            job=SWEEP_DELETIONS,
            arg=SweepDeletionsInput(actor=_SWEEP, reason="schedule", policy=policy),
            interval_s=settings.sweep_interval,
            summary="sweep deletions that nobody works on",
        ),
        Recurring(
            schedule_id=_TRIM,
            job=TRIM_TOPICS,
            arg=TrimTopicsInput(actor=_TRIM, reason="schedule", policy=policy),
            interval_s=settings.trim_interval,
            summary="trim all topics",
        ),
        Recurring(
            schedule_id=_PLAN,
            job=RECONCILE_ORPHANS,
            arg=ReconcileOrphansInput(actor=_PLAN, reason="schedule", queue=bulk_queue(settings.task_queue)),
            interval_s=settings.plan_interval,
            summary="compare storage with the catalog",
        ),
        Recurring(
            schedule_id=_TRANSACTIONS,
            job=SWEEP_TRANSACTIONS,
            arg=SweepTransactionsInput(
                actor=_TRANSACTIONS, reason="schedule", queue=transactions_queue(settings.task_queue)
            ),
            interval_s=settings.sweep_interval,
            summary="wake coordinators with work that nobody does",
        ),
        Recurring(
            schedule_id=_DELAYED,
            job=SEAL_BUCKETS,
            arg=SealBucketsInput(actor=_DELAYED, reason="schedule"),
            interval_s=settings.delayed_interval,
            summary="seal delayed messages of all topics",
        ),
        *_of_records(settings),
    )


def _of_records(settings: Settings) -> Sequence[Recurring]:
    """Those of the record log. What flushes it is to run for ever, so that this looks whether it does."""
    queue, why = records_queue(settings.task_queue), "schedule"
    return (
        Recurring(
            schedule_id=_RECORDS,
            job=SWEEP_RECORDS,
            arg=SweepRecordsInput(actor=_RECORDS, reason=why, queue=queue),
            interval_s=settings.sweep_interval,
            summary="see that changed records are flushed",
            at_once=True,
        ),
        Recurring(
            schedule_id=_DEFRAGMENT,
            job=DEFRAGMENT_RECORDS,
            arg=DefragmentRecordsInput(scheduled=True, actor=_DEFRAGMENT, reason=why, queue=queue),
            interval_s=settings.defragment_interval,
            summary="defragment the record log",
        ),
        Recurring(
            schedule_id=_RAID,
            job=RAID_TOMBSTONES,
            arg=RaidTombstonesInput(scheduled=True, actor=_RAID, reason=why, queue=queue),
            interval_s=settings.raid_interval,
            summary="raid tombstones that cover nothing",
        ),
        Recurring(
            schedule_id=_REPLICATE,
            job=REPLICATE_RECORDS,
            arg=ReplicateRecordsInput(scheduled=True, actor=_REPLICATE, reason=why, queue=queue),
            interval_s=settings.replicate_interval if settings.replicas else 0,
            summary="replicate the record log",
        ),
    )


async def apply_schedules(client: Client, settings: Settings, policy: DeletionPolicy) -> list[AppliedSchedule]:
    """Create what is missing and update what differs; all else that the namespace schedules is left alone.

    A job with interval 0 is left out, or paused where its schedule exists. Repeating it is harmless. A schedule that
    somebody paused by hand stays paused.
    """
    jobs = recurring(settings, policy)
    found = await asyncio.gather(*(_apply(client, job, settings.task_queue) for job in jobs))
    return [one for one in found if one]


async def list_schedules(client: Client) -> list[ScheduleRow]:
    """Those of our jobs that are scheduled."""
    return [_row(one) for one in await described_schedules(client)]


async def described_schedules(client: Client) -> list[ScheduleDescription]:
    """Those of our schedules that the namespace has; their arguments may be encrypted."""
    found = await asyncio.gather(*(_described(client.get_schedule_handle(name)) for name in _NAMES))
    return list(filter(None, found))


async def _apply(client: Client, job: Recurring, task_queue: str) -> AppliedSchedule | None:
    handle = client.get_schedule_handle(job.schedule_id)
    found = await _described(handle)
    if found is None and not job.interval_s:
        return None
    if found is None:
        try:
            wanted = _schedule(job, task_queue, ScheduleState())
            await client.create_schedule(job.schedule_id, wanted, trigger_immediately=job.at_once)
            return AppliedSchedule(schedule_id=job.schedule_id, change="created")
        except ScheduleAlreadyRunningError:  # another process came first
            found = await handle.describe()
    if await _same(client, found, job, task_queue):
        return AppliedSchedule(schedule_id=job.schedule_id, change="unchanged")
    await handle.update(lambda now: _updated(now, job, task_queue))
    return AppliedSchedule(schedule_id=job.schedule_id, change="updated")


async def _described(handle: ScheduleHandle) -> ScheduleDescription | None:
    try:
        return await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


def _schedule(job: Recurring, task_queue: str, state: ScheduleState) -> Schedule:
    every = timedelta(seconds=job.interval_s)
    return Schedule(
        action=ScheduleActionStartWorkflow(
            job.job.name,
            job.arg,
            id=job.job.id(),  # the server appends the time
            task_queue=task_queue,
            static_summary=job.summary,
            static_details=job.arg.details(),
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=max(every, _LEAST_CATCHUP)),
        state=state,
    )


def _updated(now: ScheduleUpdateInput, job: Recurring, task_queue: str) -> ScheduleUpdate:
    found = now.description.schedule
    state = _wanted_state(found.state, job)
    if not job.interval_s:
        return ScheduleUpdate(schedule=replace(found, state=state))
    return ScheduleUpdate(schedule=_schedule(job, task_queue, state))


def _wanted_state(found: ScheduleState, job: Recurring) -> ScheduleState:
    """Paused where the settings turn it off, running again where they had, otherwise as somebody left it."""
    if not job.interval_s and not found.paused:
        return replace(found, paused=True, note=_OFF)
    if job.interval_s and found.paused and found.note == _OFF:
        return replace(found, paused=False, note=None)
    return found


async def _same(client: Client, found: ScheduleDescription, job: Recurring, task_queue: str) -> bool:
    """Whether an update would change anything."""
    now, state = found.schedule.state, _wanted_state(found.schedule.state, job)
    if (state.paused, state.note) != (now.paused, now.note):
        return False
    if not job.interval_s:
        return True
    wanted = _schedule(job, task_queue, state)
    return await _facts(client, found.schedule) == await _facts(client, wanted)


async def _facts(client: Client, schedule: Schedule) -> tuple[object, ...]:
    """The facts that an operator would see differ; arguments as they are decrypted, and by which key they travel."""
    action = schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow):
        return (action,)
    told = [*action.args, action.static_summary, action.static_details]
    encode, codec = client.data_converter.encode, codec_of(client)
    sent = [one if isinstance(one, Payload) else (await encode([one]))[0] for one in told]
    data = [*map(key_of, sent), *(one.data for one in await codec.decode(sent))]
    every = [(one.every, one.offset or timedelta()) for one in schedule.spec.intervals]
    plan = (every, schedule.policy.overlap, schedule.policy.catchup_window)
    return (action.workflow, action.id, action.task_queue, data, *plan)


def _row(found: ScheduleDescription) -> ScheduleRow:
    schedule = found.schedule
    action: Any = schedule.action
    intervals = schedule.spec.intervals
    runs = [one for one in found.info.recent_actions if isinstance(one.action, ScheduleActionExecutionStartWorkflow)]
    upcoming = [] if schedule.state.paused else list(found.info.next_action_times)
    return ScheduleRow(
        schedule_id=found.id,
        workflow=str(action.workflow),
        interval_s=int(intervals[0].every.total_seconds()) if intervals else 0,
        next_run=min(upcoming, default=None),
        last_run=max((one.started_at for one in runs), default=None),
        paused=schedule.state.paused,
    )
