"""Commands that fill a database from the record log. Each command also runs the worker of its job.

If a command is killed, its workflow waits for a worker. The workflow continues when the command is run again.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, Final

from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.records.follow_records import FollowRecordsActivities
from activities.records.rebuild_catalog import LoadedCatalogServices, RebuildCatalogActivities
from infra.stack.stack_home import StackHome, find_crashed_worker_ids, read_live_workers
from logstore import failpoints
from logstore.catalog import open_catalog
from logstore.catalog.engine.database_connections import mask_passwords
from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.catalog.records.replica_database import open_replica_database
from logstore.errors import PreconditionFailed, ServiceRefused, UnknownObject
from logstore.identity.bucket_markers import BucketRole
from logstore.offload.tiered_copy import CopyLocation
from logstore.records.adoption_rule import MAX_ABSENT_SHARE
from logstore.records.job_results import FollowedRecords
from logstore.records.rebuild_job import RebuildId
from logstore.records.services.flusher import Flusher
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.record_log import RecordLog
from logstore.records.services.replicas import ReplicaFollower, ReplicaFollowSettings
from logstore.records.services.upload_adoption import UploadAdopter
from workers.assembly.checked_buckets import identify_catalog_by_records_marker, make_checked_bucket_opener
from workers.assembly.log_store_from_settings import make_store_clock, open_spark_bulk_jobs
from workers.catalog_match import list_configured_buckets, mark_namespace_as_own
from workers.client.job_client import start_job
from workers.client.task_queue_pollers import list_live_pollers
from workers.client.temporal_connection import connect_client
from workers.client.wait_for_job import JobStopped, wait_for_result
from workers.client.workflow_search import describe_workflow_if_known
from workers.hosting.error_and_subject_interceptors import ActivityErrorAndSubjectInterceptor
from workers.hosting.workflow_input_checks import InputCheckingRunner
from workers.settings import Settings
from workflows.records.follow_records import FollowRecords
from workflows.records.job_definitions import (
    FLUSH_RECORDS,
    FOLLOW_RECORDS,
    REBUILD_CATALOG,
    FollowRecordsInput,
    FollowRecordsResult,
    RebuildCatalogInput,
    RebuildCatalogProgress,
    RebuildCatalogResult,
)
from workflows.records.rebuild_catalog import RebuildCatalog
from workflows.task_queues import bulk_queue, records_queue, transactions_queue, uploads_queue


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildCommandParts:
    catalog_id: str
    manifests: RebuildManifests
    database: RebuildDatabase
    activities: RebuildCatalogActivities


@contextmanager
def open_rebuild_parts(
    settings: Settings, *, require_no_workers: Callable[[], None] | None
) -> Iterator[RebuildCommandParts]:
    """Open the services for a rebuild into the database in `database_url`.

    `require_no_workers` must raise an error while a worker of the old catalog lives. `None` skips this check.
    """
    lost_catalog, get_bucket = identify_catalog_by_records_marker(settings)
    log = RecordLog(lost_catalog.get_checked_bucket(*get_bucket(BucketRole.RECORDS, settings.records_bucket)))
    start = RebuildManifests(log)
    database = RebuildDatabase(settings.database_url)

    def list_buckets_with_marker() -> Sequence[tuple[BucketRole, str]]:
        marked = []
        for bucket, store in [get_bucket(role, name) for role, name in list_configured_buckets(settings)]:
            try:
                if lost_catalog.has_marker(bucket, store):
                    marked.append((bucket.role, bucket.bucket))
            except ServiceRefused:
                # Markers of other buckets are checked at the first use.
                if bucket.role in {BucketRole.PRIMARY, BucketRole.RECORDS}:
                    raise
        return marked

    with open_spark_bulk_jobs(settings) as bulk, ExitStack() as stack:
        activities = RebuildCatalogActivities(
            bulk=bulk,
            database=database,
            manifests=start,
            markers=list_buckets_with_marker,
            open_loaded=_remember_first_result(partial(_open_loaded_catalog, settings, log, stack)),
            require_no_workers=require_no_workers,
        )
        yield RebuildCommandParts(
            catalog_id=lost_catalog.catalog_id(), manifests=start, database=database, activities=activities
        )


def _open_loaded_catalog(settings: Settings, log: RecordLog, stack: ExitStack) -> LoadedCatalogServices:
    catalog = stack.enter_context(
        open_catalog(settings.database_url, registration_timeout_s=settings.registration_timeout)
    )
    get_bucket = make_checked_bucket_opener(settings, catalog.identities)
    adopter = UploadAdopter(
        adoption=catalog.adoption,
        objects=get_bucket(BucketRole.PRIMARY, CopyLocation(settings.primary_bucket)),
        buckets=partial(get_bucket, BucketRole.TIERED),
        application=settings.application,
    )
    flusher = Flusher(
        catalog.records,
        log,
        clock_bound_s=settings.clock_bound,
        cursor_interval_s=settings.records_cursor_interval,
    )
    return LoadedCatalogServices(catalog.records, adopter, flusher)


def _remember_first_result(open_loaded: Callable[[], LoadedCatalogServices]) -> Callable[[], LoadedCatalogServices]:
    """Return a thread-safe function that calls `open_loaded` until a call succeeds, and then returns that result."""
    lock, results = Lock(), list[LoadedCatalogServices]()

    def get() -> LoadedCatalogServices:
        with lock:
            if not results:
                results.append(open_loaded())
            return results[0]

    return get


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowCommandParts:
    catalog_id: str
    replica: str  # first part of the replica's names: followed bucket and a digest of the database's URL
    activities: FollowRecordsActivities
    require_bucket_and_database: Callable[[], None]  # checks the bucket and the database


@contextmanager
def open_follow_parts(settings: Settings, bucket: str) -> Iterator[FollowCommandParts]:
    """Open the replica database in `database_url`, which follows `bucket`: the records bucket or a replica bucket."""
    catalog_identity, get_bucket = identify_catalog_by_records_marker(settings)
    source = RecordLog(catalog_identity.get_checked_bucket(*get_bucket(BucketRole.RECORDS, settings.records_bucket)))
    copied = bucket != settings.records_bucket
    followed = (
        RecordLog(catalog_identity.get_checked_bucket(*get_bucket(BucketRole.REPLICA, bucket))) if copied else source
    )
    url = mask_passwords(settings.database_url)  # so that the replica keeps its name when the password changes
    follow = ReplicaFollowSettings(
        replica=f"{bucket}/{hashlib.sha256(url.encode()).hexdigest()[:8]}",
        bucket=bucket,
        follows_replica_bucket=copied,
        eligible_age_s=settings.eligible_age,
    )
    with open_replica_database(settings.database_url) as database:
        follower = ReplicaFollower(
            follow, source=source, followed=followed, database=database, store_now_us=make_store_clock(settings)
        )
        activities = FollowRecordsActivities(follower, interval_s=settings.records_interval)

        def require() -> None:
            followed.require_ownership_once()
            database.read_applied_manifest()

        yield FollowCommandParts(
            catalog_id=catalog_identity.catalog_id(),
            replica=follow.replica,
            activities=activities,
            require_bucket_and_database=require,
        )


_MAX_HEARTBEAT_AGE_S: Final = 15.0  # activities heartbeat every two seconds, but on a busy machine later
_MAX_NAMES_IN_MESSAGE: Final = 5


async def require_no_workers(client: Client, settings: Settings) -> None:
    """Raise `PreconditionFailed` if a worker of the catalog runs in this home, polls a queue, or flushes records."""
    names = sorted(await _find_live_workers_of_catalog(client, settings))
    if names:
        listed_names = ", ".join(names[:_MAX_NAMES_IN_MESSAGE])
        if len(names) > _MAX_NAMES_IN_MESSAGE:
            listed_names += f" and {len(names) - _MAX_NAMES_IN_MESSAGE} more"
        raise PreconditionFailed(
            f"workers: expected none of the catalog that is to be rebuilt, found {listed_names}:"
            " its database is not lost. Stop them (Temporal tells of one that was killed for 90 s), or give"
            " --take-over: appends are adopted until they know that their catalog has ended, other changes are lost"
        )


async def _find_live_workers_of_catalog(client: Client, settings: Settings) -> set[str]:
    home = StackHome.at(settings.home)
    dead, names = find_crashed_worker_ids(home), {worker.worker_id for worker in read_live_workers(home)}
    queue = settings.task_queue
    for name in (
        queue,
        *(name_queue(queue) for name_queue in (uploads_queue, transactions_queue, records_queue, bulk_queue)),
    ):
        pollers = await list_live_pollers(client, name, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, dead_identities=dead)
        names |= {poller.identity for poller in pollers}
    return names | (await _find_flushing_workers(client) - dead)


async def _find_flushing_workers(client: Client) -> set[str]:
    description = await describe_workflow_if_known(client, FLUSH_RECORDS.id())
    if description is None:
        return set()
    started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    oldest = time.time() - _MAX_HEARTBEAT_AGE_S
    return {
        pending.last_worker_identity
        for pending in description.raw_description.pending_activities
        if pending.state == started and pending.last_heartbeat_time.ToNanoseconds() / 1e9 >= oldest
    }


_STICKY_TIMEOUT: Final = timedelta(seconds=5)  # how long a workflow task waits for a killed process


@asynccontextmanager
async def run_job_worker(
    client: Client,
    queue: str,
    workflow: type,
    activities: Sequence[Callable[..., Any]],
    *,
    threads: int,
    settings: Settings,
) -> AsyncIterator[None]:
    """Serve one workflow and its activities while the block runs. At most `threads` activities run at a time."""
    with _silence_activity_log(), ThreadPoolExecutor(threads, workflow.__name__) as pool:
        worker = Worker(
            client,
            task_queue=queue,
            workflows=[workflow],
            activities=activities,
            activity_executor=pool,
            max_concurrent_activities=threads,
            workflow_runner=InputCheckingRunner(),
            interceptors=[ActivityErrorAndSubjectInterceptor()],
            sticky_queue_schedule_to_start_timeout=_STICKY_TIMEOUT,
            graceful_shutdown_timeout=timedelta(seconds=settings.drain_timeout),
        )
        async with worker:
            yield


@contextmanager
def _silence_activity_log() -> Iterator[None]:
    """Suppress the SDK's traceback of each failed attempt. The command itself reports that the job waits."""
    log = logging.getLogger("temporalio.activity")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


OnProgress = Callable[[RebuildCatalogProgress], None]

_READY: Final = "READY"
_PROGRESS_INTERVAL_S: Final = 1.0
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
    """Rebuild a lost catalog into `database_url`, or continue a rebuild. Return at the end of the rebuild.

    Args:
        settings: Settings of the buckets, of Temporal, and of the new catalog's database.
        skip_unreadable: Skip blocks that are corrupt or missing, and name them in the result.
        max_absent_share: Largest accepted share of ledgers without objects, 0 to 1.
        master: URL of a Spark cluster. Empty means the setting `spark_master`.
        take_over: Start although workers of the old catalog live, and wait until they know of the rebuild.
        say: Receives messages about waiting.
        on_progress: Receives the progress about once a second.

    Raises:
        PreconditionFailed: The database is not empty, there is no manifest, or workers of the catalog live.
        CatalogMismatch: Buckets and namespace belong to different catalogs.
        WorkflowFailureError: The job failed, or a guard refused the request.
        ServiceFailed: Temporal does not answer.
        StoreUnavailable: The object store or the database does not answer.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.ENVIRONMENT_VARIABLE))
    require_stopped = None if take_over else partial(_require_no_workers_in_thread, settings)
    with open_rebuild_parts(settings, require_no_workers=require_stopped) as parts:
        request = RebuildCatalogInput(
            rebuild="",
            skip_unreadable=skip_unreadable,
            max_absent_share=max_absent_share,
            master=master,
            take_over=take_over,
        )
        return asyncio.run(
            _run_rebuild_with_pinned_manifest(settings, parts, request, say=say, on_progress=on_progress)
        )


def _require_no_workers_in_thread(settings: Settings) -> None:
    """Call `require_no_workers` with a connection of its own, because activities call this function in threads."""

    async def check() -> None:
        await require_no_workers(await connect_client(settings), settings)

    asyncio.run(check())


async def _run_rebuild_with_pinned_manifest(
    settings: Settings,
    parts: RebuildCommandParts,
    request: RebuildCatalogInput,
    *,
    say: Callable[[str], None],
    on_progress: OnProgress,
) -> RebuildCatalogResult:
    client = await connect_client(settings)
    await mark_namespace_as_own(client, parts.catalog_id)
    rebuild, is_new = await _choose_rebuild_id(client, settings, parts, skip_unreadable=request.skip_unreadable)
    has_newer_manifest = await asyncio.to_thread(parts.manifests.has_next_manifest, RebuildId.parse(rebuild).manifest)
    if not has_newer_manifest and not request.take_over:  # a newer manifest has decided which catalog continues
        await require_no_workers(client, settings)
    await _terminate_and_unpin_superseded_rebuilds(client, settings, parts, rebuild, say)
    if is_new:  # pinned before the workflow starts, so that `--abandon` finds the rebuild if the command dies now
        await asyncio.to_thread(
            parts.manifests.pin_manifest, rebuild, RebuildId.parse(rebuild).manifest, now_us=time.time_ns() // 1_000
        )
    request = replace(request, rebuild=rebuild)
    queue = _name_queue(settings, rebuild)
    activities = parts.activities
    steps: list[Callable[..., Any]] = [
        activities.check_and_pin_manifest,
        activities.write_row_files,
        activities.load_rows,
        activities.publish_first_manifest,
        activities.compare_and_stage_shards,
        activities.finish_adoption,
        activities.unpin_and_remove_output,
    ]
    async with run_job_worker(client, queue, RebuildCatalog, steps, threads=_REBUILD_THREADS, settings=settings):
        handle = await start_job(client, REBUILD_CATALOG, request, queue=queue)
        watch = asyncio.create_task(_report_rebuild_progress(handle, on_progress))
        try:
            result: RebuildCatalogResult = await wait_for_result(client, handle, say)
        except (JobStopped, WorkflowFailureError):  # nothing else would release the manifest
            await asyncio.to_thread(parts.manifests.unpin, rebuild)
            raise
        finally:
            watch.cancel()
    # The workflow may have ended before this command pinned the manifest.
    await asyncio.to_thread(parts.manifests.unpin, rebuild)
    return result


async def _choose_rebuild_id(
    client: Client, settings: Settings, parts: RebuildCommandParts, *, skip_unreadable: bool
) -> tuple[str, bool]:
    target = await asyncio.to_thread(parts.database.read_target)
    if target.rebuild:
        if target.state == _READY and not await _is_workflow_running(client, REBUILD_CATALOG.id(target.rebuild)):
            raise PreconditionFailed(
                f"database {mask_passwords(settings.database_url)}: expected an empty one to rebuild into,"
                f" found the catalog that rebuild {target.rebuild} has completed"
            )
        return target.rebuild, False
    newest = await asyncio.to_thread(parts.manifests.require_newest_manifest)
    url = settings.database_url
    new = RebuildId.for_command(parts.catalog_id, newest.number, database_url=url, skip_unreadable=skip_unreadable)
    return str(new), True


async def _terminate_and_unpin_superseded_rebuilds(
    client: Client, settings: Settings, parts: RebuildCommandParts, rebuild: str, say: Callable[[str], None]
) -> None:
    """End rebuilds of older manifests into the same database, because raids would wait for their pins."""
    new = RebuildId.parse(rebuild)
    make_id = partial(RebuildId.for_command, new.catalog_id, new.manifest, database_url=settings.database_url)
    targets = {make_id(skip_unreadable=skip).target for skip in (False, True)}
    for pinned in await asyncio.to_thread(parts.manifests.list_pinned_rebuilds):
        if pinned == new or pinned.catalog_id != new.catalog_id or pinned.target not in targets:
            continue
        handle = client.get_workflow_handle(REBUILD_CATALOG.id(pinned))
        with suppress(RPCError):  # the rebuild has ended, or Temporal has forgotten it
            await handle.terminate(reason=f"rebuild {rebuild} has taken its place")
        await asyncio.to_thread(parts.manifests.unpin, str(pinned))
        say(f"rebuild {pinned} was abandoned, and has ended: {rebuild} has taken its place")


@dataclass(frozen=True, slots=True)
class AbandonRebuildResult:
    """Result of `abandon_rebuild`. The database of the rebuild is unchanged."""

    rebuild: str
    manifest: int  # number of the manifest that the rebuild pinned
    terminated: bool  # whether the workflow was running


def abandon_rebuild(settings: Settings, rebuild: str) -> AbandonRebuildResult:
    """End a rebuild that no command continues, and unpin its manifest. Idempotent.

    A later command with the same database continues where this rebuild stopped.

    Raises:
        InvalidInput: `rebuild` is not an id of a rebuild.
        UnknownObject: The rebuild neither pins a manifest nor runs.
        PreconditionFailed: A command is working on the rebuild.
        CatalogMismatch: Buckets and namespace belong to different catalogs.
        ServiceFailed: Temporal does not answer.
        StoreUnavailable: The object store does not answer.
    """
    rebuild_id = RebuildId.parse(rebuild)
    catalog_identity, get_bucket = identify_catalog_by_records_marker(settings)
    manifests = RebuildManifests(
        RecordLog(catalog_identity.get_checked_bucket(*get_bucket(BucketRole.RECORDS, settings.records_bucket)))
    )
    return asyncio.run(_terminate_and_unpin_rebuild(settings, catalog_identity.catalog_id(), manifests, rebuild_id))


async def _terminate_and_unpin_rebuild(
    settings: Settings, catalog_id: str, manifests: RebuildManifests, rebuild_id: RebuildId
) -> AbandonRebuildResult:
    client = await connect_client(settings)
    await mark_namespace_as_own(client, catalog_id)
    pinned = await asyncio.to_thread(manifests.list_pinned_rebuilds)
    workflow_id = REBUILD_CATALOG.id(str(rebuild_id))
    is_running = await _is_workflow_running(client, workflow_id)
    if rebuild_id not in pinned and not is_running:
        names = ", ".join(map(str, pinned))
        expected = f"one that holds a manifest, as {names}" if pinned else "nothing: there is none"
        raise UnknownObject("rebuild", expected=expected, found=str(rebuild_id))
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    if commands := await list_live_pollers(client, _name_queue(settings, str(rebuild_id)), kind):
        raise PreconditionFailed(
            f"rebuild {rebuild_id}: expected no command at work on it, found {commands[0].identity}: end that one first"
            " (Temporal tells of one that was killed for 90 s)"
        )
    if is_running:
        with suppress(RPCError):  # the workflow has ended in the meantime
            await client.get_workflow_handle(workflow_id).terminate(reason="abandoned by `records rebuild --abandon`")
    await asyncio.to_thread(manifests.unpin, str(rebuild_id))
    return AbandonRebuildResult(rebuild=str(rebuild_id), manifest=rebuild_id.manifest, terminated=is_running)


def _name_queue(settings: Settings, rebuild: str) -> str:
    return f"{settings.task_queue}-{rebuild}"


async def _is_workflow_running(client: Client, workflow_id: str) -> bool:
    description = await describe_workflow_if_known(client, workflow_id)
    return description is not None and description.status is WorkflowExecutionStatus.RUNNING


async def _report_rebuild_progress(handle: WorkflowHandle[Any, Any], on_progress: OnProgress) -> None:
    while True:
        with suppress(RPCError, TimeoutError):
            async with asyncio.timeout(5):
                on_progress(await handle.query(RebuildCatalog.progress))
        await asyncio.sleep(_PROGRESS_INTERVAL_S)


_FOLLOW_THREADS: Final = 2
_WATCH_S: Final = 600.0  # duration of one run of the job
_EXECUTION_TIMEOUT: Final = timedelta(days=2)  # maximum duration of a run, during which it may wait for a command


def follow_records(
    settings: Settings,
    *,
    bucket: str,
    seed: bool = False,
    watch: bool = False,
    say: Callable[[str], None],
    on_progress: Callable[[FollowedRecords], None],
) -> FollowedRecords:
    """Apply the record log to the replica database in `database_url`. Return the totals of all runs.

    Args:
        settings: Settings of the buckets, of Temporal, and of the replica database.
        bucket: Bucket with the manifests: `records_bucket`, or a replica bucket.
        seed: Empty the database first. An empty database is always seeded.
        watch: Continue until the process ends.
        say: Receives messages about waiting.
        on_progress: Receives the totals after each run of the job.

    Raises:
        PreconditionFailed: The database has other content, or the replica must be seeded again.
        CatalogVersionMismatch: The database has the tables of another build.
        CatalogMismatch: The database belongs to another catalog.
        WorkflowFailureError: The job failed, or a guard refused the request.
        ServiceFailed: Temporal does not answer, or a service refuses the request.
        StoreUnavailable: The object store or the database does not answer.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.ENVIRONMENT_VARIABLE))
    with open_follow_parts(settings, bucket) as parts:
        return asyncio.run(_run_follow_jobs(settings, parts, seed=seed, watch=watch, say=say, on_progress=on_progress))


async def _run_follow_jobs(
    settings: Settings,
    parts: FollowCommandParts,
    *,
    seed: bool,
    watch: bool,
    say: Callable[[str], None],
    on_progress: Callable[[FollowedRecords], None],
) -> FollowedRecords:
    await asyncio.to_thread(parts.require_bucket_and_database)
    client = await connect_client(settings)
    await mark_namespace_as_own(client, parts.catalog_id)
    queue = f"{settings.task_queue}-follow-{parts.replica.replace('/', '-')}"
    total = FollowedRecords(replica=parts.replica)
    async with run_job_worker(
        client, queue, FollowRecords, [parts.activities.follow_record_log], threads=_FOLLOW_THREADS, settings=settings
    ):
        while True:
            watch_s = _WATCH_S if watch and not seed else 0.0
            request = FollowRecordsInput(replica=parts.replica, seed=seed, watch_s=watch_s)
            handle = await start_job(client, FOLLOW_RECORDS, request, queue=queue, execution_timeout=_EXECUTION_TIMEOUT)
            result: FollowRecordsResult = await wait_for_result(client, handle, say)
            total, seed = total.plus(result.done), False
            on_progress(total)
            if not watch:
                return total
