"""The commands that make a database of the record log: each hosts the worker of its own job.

No other worker could do it: none runs without a catalog, and none knows a replica's database. Killed at any moment and
run again a command goes on: the workflow waits in Temporal for a worker of its queue, which is its job's alone.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from infra.catalog.engine.connections import mask_passwords
from logstore import failpoints
from logstore.errors import PreconditionFailed, UnknownObject
from logstore.identity.markers import Role
from logstore.records.absent_share import MAX_ABSENT_SHARE
from logstore.records.jobs import FollowedRecords
from logstore.records.rebuilding import RebuildId
from logstore.records.services.cold_start import ColdStart
from logstore.records.services.record_log import RecordLog
from workers.assembly.buckets import marked_buckets
from workers.assembly.databases import FollowParts, RebuildParts, open_following, open_rebuild
from workers.client.connections import connect_client
from workers.client.jobs import start_job
from workers.client.pollers import live_pollers
from workers.client.waiting import JobStopped, result_of
from workers.hosting.inputs import CheckedRunner
from workers.hosting.interceptors import ActivityEdge
from workers.hosting.old_workers import require_no_workers
from workers.identity import buckets_of, require_namespace
from workers.settings import Settings
from workflows.records.follow_records import FollowRecords
from workflows.records.rebuild_catalog import RebuildCatalog
from workflows.records.values import (
    FOLLOW_RECORDS,
    REBUILD_CATALOG,
    FollowRecordsInput,
    FollowRecordsResult,
    RebuildCatalogInput,
    RebuildCatalogProgress,
    RebuildCatalogResult,
)

_REMEMBERED: Final = timedelta(seconds=5)  # so long its task waits for the process that was killed


@asynccontextmanager
async def hosting(
    client: Client,
    queue: str,
    workflow: type,
    activities: Sequence[Callable[..., Any]],
    *,
    threads: int,
    settings: Settings,
) -> AsyncIterator[None]:
    """Serve one workflow and its activities, at most `threads` at a time, while the block runs."""
    with _telling_nothing(), ThreadPoolExecutor(threads, workflow.__name__) as pool:
        worker = Worker(
            client,
            task_queue=queue,
            workflows=[workflow],
            activities=activities,
            activity_executor=pool,
            max_concurrent_activities=threads,
            workflow_runner=CheckedRunner(),
            interceptors=[ActivityEdge()],
            sticky_queue_schedule_to_start_timeout=_REMEMBERED,
            graceful_shutdown_timeout=timedelta(seconds=settings.drain_timeout),
        )
        async with worker:
            yield


@contextmanager
def _telling_nothing() -> Iterator[None]:
    """Without the SDK's traceback of each attempt that fails: the command says what it waits for, and how it ended."""
    log = logging.getLogger("temporalio.activity")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


OnProgress = Callable[[RebuildCatalogProgress], None]

_READY: Final = "READY"
_LOOK_EVERY_S: Final = 1.0
_REBUILD_THREADS: Final = 4


def rebuild_catalog(
    settings: Settings,
    *,
    skip_unreadable: bool = False,
    max_absent_share: float = MAX_ABSENT_SHARE,
    master: str = "",
    take_over: bool = False,
    say: Callable[[str], None],
    on_progress: OnProgress,
) -> RebuildCatalogResult:
    """Rebuild the catalog of the settings' buckets into their `database_url`, or go on with it, until its end.

    Args:
        settings: Buckets, Temporal, and the database that is to become the catalog.
        skip_unreadable: Go on without blocks that are corrupt or gone, and name them.
        max_absent_share: Of all ledgers, how many may be without objects; 0 to 1.
        master: A Spark cluster; empty: that of the settings.
        take_over: Begin even while workers of the catalog live, and wait until they know that it has ended.
        say: Told what is waited for.
        on_progress: Told about once a second where the rebuild is.

    Raises:
        PreconditionFailed: The database is not empty, there is no manifest, or workers of the catalog live.
        CatalogMismatch: Buckets or namespace are not of one catalog.
        WorkflowFailureError: The job failed, or a guard refused.
        ServiceFailed, StoreUnavailable: Temporal, storage or database do not answer.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.VARIABLE))
    alone = None if take_over else partial(_require_no_workers_now, settings)
    with open_rebuild(settings, buckets_of(settings), require_no_workers=alone) as parts:
        asked = RebuildCatalogInput(
            rebuild="",
            skip_unreadable=skip_unreadable,
            max_absent_share=max_absent_share,
            master=master,
            take_over=take_over,
        )
        return asyncio.run(_rebuilt(settings, parts, asked, say=say, tell=on_progress))


def _require_no_workers_now(settings: Settings) -> None:
    """In a thread of an activity, by a connection of its own."""

    async def ask() -> None:
        await require_no_workers(await connect_client(settings), settings)

    asyncio.run(ask())


async def _rebuilt(
    settings: Settings,
    parts: RebuildParts,
    asked: RebuildCatalogInput,
    *,
    say: Callable[[str], None],
    tell: OnProgress,
) -> RebuildCatalogResult:
    client = await connect_client(settings)
    await require_namespace(client, parts.catalog_id)
    rebuild, is_new = await _which(client, settings, parts, skip_unreadable=asked.skip_unreadable)
    followed = await asyncio.to_thread(parts.start.is_followed, RebuildId.parse(rebuild).manifest)
    if not followed and not asked.take_over:  # behind the manifest of its epoch the old catalog has ended, or wins
        await require_no_workers(client, settings)
    await _end_abandoned(client, settings, parts, rebuild, say)
    if is_new:  # before there is a workflow: one that dies at once must be found by the command that abandons it
        await asyncio.to_thread(
            parts.start.pin, rebuild, RebuildId.parse(rebuild).manifest, now_us=time.time_ns() // 1_000
        )
    request = replace(asked, rebuild=rebuild)
    queue = _queue_of(settings, rebuild)
    does = parts.activities
    steps: list[Callable[..., Any]] = [
        does.begin,
        does.find_rows,
        does.load_rows,
        does.publish,
        does.adopt_shards,
        does.finish_adoption,
        does.let_go,
    ]
    async with hosting(client, queue, RebuildCatalog, steps, threads=_REBUILD_THREADS, settings=settings):
        summary = f"rebuild the catalog from manifest {RebuildId.parse(rebuild).manifest}"
        handle = await start_job(client, REBUILD_CATALOG, request, rebuild, queue=queue, summary=summary)
        watch = asyncio.create_task(_watch(handle, tell))
        try:
            result: RebuildCatalogResult = await result_of(client, handle, say)
        except (JobStopped, WorkflowFailureError):  # it was terminated, or failed: nobody else lets its manifest go
            await asyncio.to_thread(parts.start.unpin, rebuild)
            raise
        finally:
            watch.cancel()
    await asyncio.to_thread(parts.start.unpin, rebuild)  # where it had ended already, and the pin came late
    return result


async def _which(client: Client, settings: Settings, parts: RebuildParts, *, skip_unreadable: bool) -> tuple[str, bool]:
    """The rebuild that the database belongs to, or one from the newest manifest; and whether nothing is loaded yet."""
    target = await asyncio.to_thread(parts.database.target)
    if target.rebuild:
        if target.state == _READY and not await _runs(client, REBUILD_CATALOG.id(target.rebuild)):
            shown = mask_passwords(settings.database_url)
            raise PreconditionFailed(
                f"database {shown}: expected an empty one to rebuild into, found the catalog that rebuild"
                f" {target.rebuild} has completed"
            )
        return target.rebuild, False
    newest = await asyncio.to_thread(parts.start.newest)
    url = settings.database_url
    new = RebuildId.of(parts.catalog_id, newest.number, database_url=url, skip_unreadable=skip_unreadable)
    return str(new), True


async def _end_abandoned(
    client: Client, settings: Settings, parts: RebuildParts, rebuild: str, say: Callable[[str], None]
) -> None:
    """End rebuilds into the same database from older manifests: no command goes on with them any more.

    They were killed before their load, and a newer manifest has appeared since. Each still holds its manifest, for
    which raids wait, and its workflow, if it was started, waits for a worker that is never started. One that got as far
    as its load is never among them: the database says that it is to go on.
    """
    mine = RebuildId.parse(rebuild)
    into = partial(RebuildId.of, mine.catalog_id, mine.manifest, database_url=settings.database_url)
    targets = {into(skip_unreadable=skip).target for skip in (False, True)}
    for held in await asyncio.to_thread(parts.start.held):
        if held == mine or held.catalog_id != mine.catalog_id or held.target not in targets:
            continue
        handle = client.get_workflow_handle(REBUILD_CATALOG.id(held))
        with suppress(RPCError):  # it has ended, or Temporal has forgotten it
            await handle.terminate(reason=f"rebuild {rebuild} has taken its place")
        await asyncio.to_thread(parts.start.unpin, str(held))
        say(f"rebuild {held} was abandoned, and has ended: {rebuild} has taken its place")


@dataclass(frozen=True, slots=True)
class AbandonedRebuild:
    """A rebuild that was ended. Its database, if it was loaded, is as it was."""

    rebuild: str
    manifest: int  # that it held
    terminated: bool  # whether its workflow was running


def abandon_rebuild(settings: Settings, rebuild: str) -> AbandonedRebuild:
    """End a rebuild that no command goes on with, and let go of the manifest that it holds. Repeating is harmless.

    A command that is run again with the same database goes on where this rebuild was.

    Raises:
        InvalidInput: It is no id of a rebuild.
        UnknownObject: No such rebuild holds a manifest or runs.
        PreconditionFailed: A command is at work on it.
        CatalogMismatch: Buckets or namespace are not of one catalog.
        ServiceFailed, StoreUnavailable: Temporal or storage do not answer.
    """
    known = RebuildId.parse(rebuild)
    catalog, at = marked_buckets(settings)
    start = ColdStart(RecordLog(catalog.own(*at(Role.RECORDS, settings.records_bucket))))
    return asyncio.run(_abandoned(settings, catalog.catalog_id(), start, known))


async def _abandoned(settings: Settings, catalog_id: str, start: ColdStart, known: RebuildId) -> AbandonedRebuild:
    client = await connect_client(settings)
    await require_namespace(client, catalog_id)
    held = await asyncio.to_thread(start.held)
    workflow_id = REBUILD_CATALOG.id(str(known))
    runs = await _runs(client, workflow_id)
    if known not in held and not runs:
        expected = f"one that holds a manifest, as {', '.join(map(str, held))}" if held else "nothing: there is none"
        raise UnknownObject("rebuild", expected=expected, found=str(known))
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    if commands := await live_pollers(client, _queue_of(settings, str(known)), kind):
        raise PreconditionFailed(
            f"rebuild {known}: expected no command at work on it, found {commands[0].identity}: end that one first"
            " (Temporal tells of one that was killed for 90 s)"
        )
    if runs:
        with suppress(RPCError):  # it has ended meanwhile
            await client.get_workflow_handle(workflow_id).terminate(reason="abandoned by `records rebuild --abandon`")
    await asyncio.to_thread(start.unpin, str(known))
    return AbandonedRebuild(rebuild=str(known), manifest=known.manifest, terminated=runs)


def _queue_of(settings: Settings, rebuild: str) -> str:
    """Task queue that the command of a rebuild serves."""
    return f"{settings.task_queue}-{rebuild}"


async def _runs(client: Client, workflow_id: str) -> bool:
    try:
        found = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return found.status is WorkflowExecutionStatus.RUNNING


async def _watch(handle: WorkflowHandle[Any, Any], tell: OnProgress) -> None:
    while True:
        with suppress(RPCError, TimeoutError):
            async with asyncio.timeout(5):
                tell(await handle.query(RebuildCatalog.progress))
        await asyncio.sleep(_LOOK_EVERY_S)


_FOLLOW_THREADS: Final = 2
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
        return asyncio.run(_followed(settings, parts, seed=seed, watch=watch, say=say, tell=on_progress))


async def _followed(
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
    await require_namespace(client, parts.catalog_id)
    queue = f"{settings.task_queue}-follow-{parts.replica.replace('/', '-')}"
    total = FollowedRecords(replica=parts.replica)
    async with hosting(
        client, queue, FollowRecords, [parts.activities.follow], threads=_FOLLOW_THREADS, settings=settings
    ):
        while True:
            watch_s = _WATCH_S if watch and not seed else 0.0
            request = FollowRecordsInput(replica=parts.replica, seed=seed, watch_s=watch_s)
            # joins the run that does the same, and none that takes longer
            key = (parts.replica, *(["seed"] if seed else ["watch"] if watch_s else []))
            about = f"apply the record log to replica {parts.replica}"
            handle = await start_job(
                client, FOLLOW_RECORDS, request, *key, queue=queue, summary=about, execution_timeout=_FORGOTTEN
            )
            result: FollowRecordsResult = await result_of(client, handle, say)
            total, seed = total.plus(result.done), False
            tell(total)
            if not watch:
                return total
