"""What a soak asks Temporal for at its end: last jobs, what still runs, what failed, and what never ran."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from logstore import errors
from logstore.errors import InvalidInput, PreconditionFailed, SextonError, UnknownObject
from tests.soak.soak_client import EXPECTED_ERRORS
from tests.soak.soak_processes import Ground
from workers.client import Sexton
from workers.client.temporal_connection import connect_client
from workers.hosting.temporal_workers import WORKFLOWS

_PERMANENT_WORKFLOWS: Final = {"transaction-coordinator", "flush-records", "follow-records"}
"""Workflows that run while there is a store."""

_RESUMED_WITHIN_S: Final = 300.0  # a worker must answer, and workers are busy
_DELETION_REFUSALS: Final = {"STILL_IN_USE", "INVALID", "METADATA_MISMATCH", "STALE_CATALOG"}
"""Of deletions, which stay listed as dead letters: among what others have planted is an object in a ledger's place."""


async def _retry_patiently(work: Callable[[], Coroutine[Any, Any, Any]], within_s: float = 60.0) -> Any:
    """Servers have just come back."""
    give_up = time.monotonic() + within_s
    while True:
        try:
            return await work()
        except EXPECTED_ERRORS:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(1)


async def set_up_schedules(ground: Ground, *, pauses: bool) -> None:
    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await sexton.apply_schedules()
            for row in await sexton.list_schedules():
                if pauses:
                    await sexton.client.get_schedule_handle(row.schedule_id).pause(note="the soak is over")

    await _retry_patiently(work)


async def redrive_all_dead_letters(ground: Ground) -> None:
    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await sexton.redrive_dead_letters(None, reason="soak", actor="soak")

    await _retry_patiently(work)


async def resume_batches(ground: Ground, batches: set[str]) -> None:
    """Let batches go on whose client was killed while they were paused."""

    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            while remaining_batches:
                with suppress(InvalidInput, PreconditionFailed, UnknownObject):  # it has ended, and is not paused
                    await sexton.batches.resume(remaining_batches[-1])
                remaining_batches.pop()

    remaining_batches = sorted(batches)
    await _retry_patiently(work, within_s=_RESUMED_WITHIN_S)


async def run_last_jobs(ground: Ground) -> None:
    """Nobody writes any more: so every object that is younger than the floor is judged, too."""
    why: dict[str, Any] = {"reason": "soak", "actor": "soak"}

    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await (await sexton.trim_topics(**why)).result()
            plan = await (await sexton.plan_orphans(older_than_s=0, unsafe_age=True, **why)).result()
            await (await sexton.apply_orphans(plan.run_id, max_orphan_share=1.0, **why)).result()
            await (await sexton.sweep_deletions(**why)).result()
            await (await sexton.flush_records(**why)).result()
            await (await sexton.replicate_records(**why)).result()

    await _retry_patiently(work)


async def list_running_jobs(ground: Ground) -> list[str]:
    """Jobs that run, but those that always do and those that a schedule has just begun."""

    async def work() -> list[str]:
        client = await connect_client(ground.direct)
        sentences = []
        async for execution in client.list_workflows("ExecutionStatus = 'Running'"):
            scheduled = execution.search_attributes.get("TemporalScheduledById")
            if (
                execution.workflow_type not in _PERMANENT_WORKFLOWS
                and not scheduled
                and not execution.id.startswith("temporal-sys")
            ):
                sentences.append(f"{execution.id} runs")
        return sentences

    result: list[str] = await _retry_patiently(work)
    return result


async def list_failed_workflows(ground: Ground) -> list[tuple[str, str]]:
    """Workflows that ended otherwise than well, by an error that is none of ours."""
    known_errors = {
        name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, SextonError)
    }
    known_errors |= _DELETION_REFUSALS | {
        "TimeoutError"
    }  # the latter where attempts are bounded, because the next run is soon due
    client = await connect_client(ground.direct)
    failures = []
    async for one in client.list_workflows("ExecutionStatus IN ('Failed', 'TimedOut', 'Terminated', 'Canceled')"):
        error = await _workflow_error_type(client, one.id, one.run_id, one.status)
        if error not in known_errors:
            failures.append((one.id, error))
    return failures


async def _workflow_error_type(
    client: Client, workflow_id: str, run_id: str | None, status: WorkflowExecutionStatus | None
) -> str:
    try:
        await client.get_workflow_handle(workflow_id, run_id=run_id).result(follow_runs=False)
    except WorkflowFailureError as failure:
        return application_error_type(failure)
    except RPCError as error:
        return str(error)
    return str(status)


def application_error_type(failure: BaseException) -> str:
    """The type that the job's error has; what that came from, as a driver's error, does not count."""
    cause = failure
    while not isinstance(cause, ApplicationError):
        if cause.__cause__ is None:
            return type(cause).__name__
        cause = cause.__cause__
    return cause.type or "ApplicationError"


async def count_runs_by_type(ground: Ground) -> dict[str, int]:
    """How often each registered workflow was run; 0 of those that were not."""
    client = await connect_client(ground.direct)
    run_count_by_type = Counter([item.workflow_type async for item in client.list_workflows()])
    known_types = [workflow._Definition.must_from_class(item).name for item in WORKFLOWS]
    return {str(name): run_count_by_type[str(name)] for name in known_types}
