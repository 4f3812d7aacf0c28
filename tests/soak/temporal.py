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
from tests.soak.client import BORNE
from tests.soak.ground import Ground
from workers.client import Sexton
from workers.client.temporal_connection import connect_client
from workers.hosting.temporal_workers import WORKFLOWS

_LASTING: Final = {"transaction-coordinator", "flush-records", "follow-records"}
"""Workflows that run while there is a store."""

_RESUMED_WITHIN_S: Final = 300.0  # a worker must answer, and workers are busy
_REFUSALS: Final = {"STILL_IN_USE", "INVALID", "METADATA_MISMATCH", "STALE_CATALOG"}
"""Of deletions, which stay listed as dead letters: among what others have planted is an object in a ledger's place."""


async def _patiently(work: Callable[[], Coroutine[Any, Any, Any]], within_s: float = 60.0) -> Any:
    """Servers have just come back."""
    give_up = time.monotonic() + within_s
    while True:
        try:
            return await work()
        except BORNE:
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(1)


async def schedules(ground: Ground, *, paused: bool) -> None:
    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await sexton.apply_schedules()
            for row in await sexton.list_schedules():
                if paused:
                    await sexton.client.get_schedule_handle(row.schedule_id).pause(note="the soak is over")

    await _patiently(work)


async def redrive(ground: Ground) -> None:
    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await sexton.redrive_dead_letters(None, reason="soak", actor="soak")

    await _patiently(work)


async def resume(ground: Ground, batches: set[str]) -> None:
    """Let batches go on whose client was killed while they were paused."""

    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            while left:
                with suppress(InvalidInput, PreconditionFailed, UnknownObject):  # it has ended, and is not paused
                    await sexton.batches.resume(left[-1])
                left.pop()

    left = sorted(batches)
    await _patiently(work, within_s=_RESUMED_WITHIN_S)


async def last_jobs(ground: Ground) -> None:
    """Nobody writes any more: so every object that is younger than the floor is judged, too."""
    why: dict[str, str] = {"reason": "soak", "actor": "soak"}

    async def work() -> None:
        async with await Sexton.connect(ground.direct) as sexton:
            await (await sexton.trim_topics(**why)).result()
            found = await (await sexton.plan_orphans(older_than_s=0, unsafe_age=True, **why)).result()
            await (await sexton.apply_orphans(found.run_id, max_orphan_share=1.0, **why)).result()
            await (await sexton.sweep_deletions(**why)).result()
            await (await sexton.flush_records(**why)).result()
            await (await sexton.replicate_records(**why)).result()

    await _patiently(work)


async def unended(ground: Ground) -> list[str]:
    """Jobs that run, but those that always do and those that a schedule has just begun."""

    async def work() -> list[str]:
        client = await connect_client(ground.direct)
        found = []
        async for one in client.list_workflows("ExecutionStatus = 'Running'"):
            scheduled = one.search_attributes.get("TemporalScheduledById")
            if one.workflow_type not in _LASTING and not scheduled and not one.id.startswith("temporal-sys"):
                found.append(f"{one.id} runs")
        return found

    result: list[str] = await _patiently(work)
    return result


async def failed(ground: Ground) -> list[tuple[str, str]]:
    """Workflows that ended otherwise than well, by an error that is none of ours."""
    known = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, SextonError)}
    known |= _REFUSALS | {"TimeoutError"}  # the latter where attempts are bounded, because the next run is soon due
    client = await connect_client(ground.direct)
    found = []
    async for one in client.list_workflows("ExecutionStatus IN ('Failed', 'TimedOut', 'Terminated', 'Canceled')"):
        error = await _error_of(client, one.id, one.run_id, one.status)
        if error not in known:
            found.append((one.id, error))
    return found


async def _error_of(
    client: Client, workflow_id: str, run_id: str | None, status: WorkflowExecutionStatus | None
) -> str:
    try:
        await client.get_workflow_handle(workflow_id, run_id=run_id).result(follow_runs=False)
    except WorkflowFailureError as failure:
        return kind_of(failure)
    except RPCError as error:
        return str(error)
    return str(status)


def kind_of(failure: BaseException) -> str:
    """The type that the job's error has; what that came from, as a driver's error, does not count."""
    cause = failure
    while not isinstance(cause, ApplicationError):
        if cause.__cause__ is None:
            return type(cause).__name__
        cause = cause.__cause__
    return cause.type or "ApplicationError"


async def runs_by_type(ground: Ground) -> dict[str, int]:
    """How often each registered workflow was run; 0 of those that were not."""
    client = await connect_client(ground.direct)
    found = Counter([one.workflow_type async for one in client.list_workflows()])
    known = [workflow._Definition.must_from_class(one).name for one in WORKFLOWS]
    return {str(name): found[str(name)] for name in known}
