"""The command of a replica's database: it hosts the worker of its own job, because no other worker knows that database.

Killed at any moment and run again it goes on: the workflow waits in Temporal for a worker of its queue, which is the
replica's alone, or has ended, and another one is started. One that nobody goes on with ends by itself.
"""

import asyncio
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy

from logstore import failpoints
from logstore.records.jobs import FollowedRecords
from workers.assembly.databases import FollowParts, open_following
from workers.client.connections import connect_client
from workers.client.waiting import result_of
from workers.hosting.commanded import hosting
from workers.identity import namespace
from workers.settings import Settings
from workflows.records.follow_records import FollowRecords
from workflows.records.values import FOLLOW_RECORDS, FollowRecordsInput, FollowRecordsResult

_THREADS: Final = 2
_WATCH_S: Final = 600.0  # of one run of the job
_FORGOTTEN: Final = timedelta(days=2)  # so long a run waits for its command


def follow_records(
    settings: Settings,
    *,
    bucket: str,
    seed: bool = False,
    watch: bool = False,
    say: Callable[[str], None],
    on_progress: Callable[[FollowedRecords], None],
) -> FollowedRecords:
    """Apply the record log to the replica in `database_url` of the settings; the totals.

    Args:
        settings: Buckets, Temporal, and the replica's database.
        bucket: Whose manifests it follows: the settings' own `records_bucket`, or one that is shipped to.
        seed: Empty the database first, and apply all; an empty one is seeded by itself.
        watch: Go on until the process is ended.
        say: Told what is waited for.
        on_progress: Told the totals, now and then while it watches.

    Raises:
        PreconditionFailed: The database holds something else, or the replica must be seeded again.
        CatalogVersionMismatch: It is of another build's version.
        CatalogMismatch: Buckets, namespace or database are not of one catalog.
        WorkflowFailureError: The job failed, or a guard refused.
        ServiceFailed, ServiceRefused, StoreUnavailable: Temporal, storage or database do not answer, or are no such.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.VARIABLE))
    with open_following(settings, bucket) as parts:
        return asyncio.run(_hosted(settings, parts, seed=seed, watch=watch, say=say, tell=on_progress))


async def _hosted(
    settings: Settings,
    parts: FollowParts,
    *,
    seed: bool,
    watch: bool,
    say: Callable[[str], None],
    tell: Callable[[FollowedRecords], None],
) -> FollowedRecords:
    await asyncio.to_thread(parts.require)
    client = await connect_client(settings)
    await namespace.require(client, parts.catalog_id)
    queue = f"{settings.task_queue}-follow-{parts.replica.replace('/', '-')}"
    total = FollowedRecords(replica=parts.replica)
    async with hosting(client, queue, FollowRecords, [parts.activities.follow], threads=_THREADS, settings=settings):
        while True:
            watch_s = _WATCH_S if watch and not seed else 0.0
            request = FollowRecordsInput(replica=parts.replica, seed=seed, watch_s=watch_s)
            result = await result_of(client, await _started(client, queue, request), say)
            total, seed = total.plus(result.done), False
            tell(total)
            if not watch:
                return total


async def _started(client: Client, queue: str, request: FollowRecordsInput) -> WorkflowHandle[Any, FollowRecordsResult]:
    """The job of these steps, or the one at work that does the same: a command joins none that takes longer."""
    key = (request.replica, *(["seed"] if request.seed else ["watch"] if request.watch_s else []))
    handle: WorkflowHandle[Any, FollowRecordsResult] = await client.start_workflow(
        FOLLOW_RECORDS.name,
        request,
        id=FOLLOW_RECORDS.id(*key),
        task_queue=queue,
        result_type=FollowRecordsResult,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        execution_timeout=_FORGOTTEN,
        static_summary=f"apply the record log to replica {request.replica}",
        static_details=request.details(),
    )
    return handle
