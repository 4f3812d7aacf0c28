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
from workflows.delayed.values import SEAL_BUCKETS
from workflows.deletion.values import SWEEP_DELETIONS, TRIM_TOPICS, DeletionPolicy
from workflows.jobs import Job, Request
from workflows.limits import bulk_queue, records_queue, transactions_queue
from workflows.reconciliation.values import RECONCILE_ORPHANS, SCRUB_LEDGERS
from workflows.records.values import DEFRAGMENT_RECORDS, RAID_TOMBSTONES, REPLICATE_RECORDS, SWEEP_RECORDS
from workflows.transactions.values import SWEEP_TRANSACTIONS

_SWEEP: Final = "sexton-sweep"
_TRIM: Final = "sexton-trim"
_PLAN: Final = "sexton-plan"
TRANSACTIONS: Final = "sexton-transactions"
_SCRUB: Final = "sexton-scrub"
_DELAYED: Final = "sexton-delayed"
RECORDS: Final = "sexton-records"
_DEFRAGMENT: Final = "sexton-defragment"
_RAID: Final = "sexton-raid"
_REPLICATE: Final = "sexton-replicate"
_NAMES: Final = (_SWEEP, _TRIM, _PLAN, _SCRUB, TRANSACTIONS, _DELAYED, RECORDS, _DEFRAGMENT, _RAID, _REPLICATE)
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
    """Every job of this build that recurs. A flush runs for ever, so `sexton-records` looks whether it does."""

    def recurs(name: str, job: Job[Any, Any], interval_s: int, summary: str, **more: object) -> Recurring:
        arg = job.request(actor=name, reason="schedule", **more)
        return Recurring(schedule_id=name, job=job, arg=arg, interval_s=interval_s, summary=summary)

    given, records = settings, records_queue(settings.task_queue)
    of_records = {"scheduled": True, "queue": records}
    bulk, transactions = bulk_queue(given.task_queue), transactions_queue(given.task_queue)
    replicate_s = given.replicate_interval if given.replicas else 0
    wake, flush = "wake coordinators with work that nobody does", "see that changed records are flushed"
    return (
        recurs(_SWEEP, SWEEP_DELETIONS, given.sweep_interval, "sweep deletions that nobody works on", policy=policy),
        recurs(_TRIM, TRIM_TOPICS, given.trim_interval, "trim all topics", policy=policy),
        recurs(_PLAN, RECONCILE_ORPHANS, given.plan_interval, "compare storage with the catalog", queue=bulk),
        recurs(
            _SCRUB, SCRUB_LEDGERS, given.scrub_interval, "compare digests", bytes_per_s=given.scrub_rate, queue=bulk
        ),
        recurs(TRANSACTIONS, SWEEP_TRANSACTIONS, given.sweep_interval, wake, queue=transactions),
        recurs(_DELAYED, SEAL_BUCKETS, given.delayed_interval, "seal delayed messages of all topics"),
        replace(recurs(RECORDS, SWEEP_RECORDS, given.sweep_interval, flush, queue=records), at_once=True),
        recurs(_DEFRAGMENT, DEFRAGMENT_RECORDS, given.defragment_interval, "defragment the record log", **of_records),
        recurs(_RAID, RAID_TOMBSTONES, given.raid_interval, "raid tombstones that cover nothing", **of_records),
        recurs(_REPLICATE, REPLICATE_RECORDS, replicate_s, "replicate the record log", **of_records),
    )


async def apply_schedules(client: Client, settings: Settings, policy: DeletionPolicy) -> list[AppliedSchedule]:
    """Create what is missing and update what differs; all else that the namespace schedules is left alone.

    A job with interval 0 is left out, or paused where its schedule exists. Repeating it is harmless. A schedule that
    was paused by hand stays paused.
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


async def require_readable(client: Client) -> None:
    """See that the client has the keys of scheduled jobs: a worker without them would fail each step of such a job.

    Raises:
        InvalidInput: It has not.
    """
    for found in await described_schedules(client):
        if isinstance(found.schedule.action, ScheduleActionStartWorkflow):
            await codec_of(client).decode([one for one in found.schedule.action.args if isinstance(one, Payload)])


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
    """Paused where the settings turn it off, running again where they had, otherwise as it was left by hand."""
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
