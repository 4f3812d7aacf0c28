"""Rows of `status` and `doctor` about the services and this machine."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from infra.coordination.ownership_nodes import OwnershipNodes, check_path_belongs_to_catalog
from infra.objects.s3_store import S3ObjectStore, read_store_clock_s
from infra.stack.java_search import find_java
from infra.stack.stack_home import StackHome, find_crashed_worker_ids, read_live_workers
from logstore.catalog import Catalog, Database, open_catalog, require_current_version
from logstore.catalog.engine.catalog_version import find_lost_write_ahead_file, require_writable_catalog
from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogMismatch, CatalogOutdated, ServiceFailed, SextonError
from logstore.identity.bucket_markers import MARKER_KEY, PROBE_PREFIX, BucketRole, MarkerState
from logstore.ownership import MAX_BUNDLES
from logstore.ports.catalog.identity import CatalogIdentity
from workers.assembly.checked_buckets import make_checked_bucket_opener_by_name, open_primary_bucket
from workers.catalog_match import compare_namespace_mark, list_configured_buckets, refuse_outdated_catalog
from workers.client import workflow_search
from workers.client.schedules import StuckRun, find_stuck_runs, list_schedules
from workers.client.task_queue_pollers import list_live_pollers
from workers.client.temporal_connection import explain_server_fault, run_with_client
from workers.client.wait_for_job import format_innermost_failure
from workers.hosting.gauges import check_client_certificate_expiry, find_client_certificate_files
from workers.hosting.readiness import SCHEDULES
from workers.operations.bundle_owners import open_directory, open_zookeeper_session, read_ownership_overview
from workers.operations.worker_builds import WorkerDeployment, find_unserved_queues, read_worker_deployment
from workers.settings import Settings
from workflows.records.job_definitions import FLUSH_RECORDS, FlushRecordsResult

CheckRow = Mapping[str, object]
Check = Callable[[Settings], str]

WORKER: Final = "worker"
_IDENTITY_ROW: Final = "identity"
_RPC_TIMEOUT = timedelta(seconds=5)
_MAX_PARALLEL_CHECKS: Final = 8


def check_services(settings: Settings) -> list[CheckRow]:
    """Return a row per service. The services are asked in parallel, and each must answer within seconds."""
    checks: dict[str, Check] = {
        "temporal": _check_temporal,
        "object store": _check_object_store,
        "zookeeper": _check_zookeeper,
    }
    if settings.ownership == "single":
        del checks["zookeeper"]
    address_by_service = {
        "temporal": settings.temporal_address,
        "object store": settings.s3_endpoint or ("AWS" if settings.has_object_store else ""),
        "zookeeper": settings.zookeeper,
    }
    # This check comes first, because SQLite replaces a lost write-ahead log by an empty file at its first connection.
    lost_log = _check_lost_write_ahead_log(settings)
    unknown = {"ok": False, "detail": "cannot be told"}
    rows: list[Callable[[], CheckRow]] = [
        *(
            partial(_check_service_at_address, name, check, settings, address_by_service[name])
            for name, check in checks.items()
        ),
        lambda: lost_log or run_check_as_row("database", _check_catalog_database, settings),
        lambda: {"name": _IDENTITY_ROW, **unknown} if lost_log else _check_catalog_identity(settings),
        lambda: {"name": RECORD_LOG, **unknown} if lost_log else check_flushes_as_row(settings),
        lambda: _check_polling_workers(settings),
        *(
            [lambda: run_check_as_row("deployment", _check_worker_deployment, settings)]
            if settings.deployment_name
            else []
        ),
    ]
    with ThreadPoolExecutor(_MAX_PARALLEL_CHECKS) as pool:
        return list(pool.map(lambda row: row(), rows))


def _check_service_at_address(name: str, check: Check, settings: Settings, address: str) -> CheckRow:
    row = run_check_as_row(name, check, settings)
    return {**row, "detail": f"{address}: {row['detail']}"} if address else row


def run_check_as_row(name: str, check: Check, settings: Settings) -> CheckRow:
    try:
        return {"name": name, "ok": True, "detail": check(settings)}
    except RPCError as error:
        return {"name": name, "ok": False, "detail": _describe_rpc_error(error)}
    except (SextonError, OSError) as error:
        return {"name": name, "ok": False, "detail": str(error)}


def _describe_rpc_error(error: RPCError) -> str:
    return str(explain_server_fault(error) or f"temporal: {error.message}")


def _check_temporal(settings: Settings) -> str:
    async def ask(client: Client) -> str:
        request = DescribeNamespaceRequest(namespace=client.namespace)
        await client.workflow_service.describe_namespace(request, timeout=_RPC_TIMEOUT)
        response = await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=_RPC_TIMEOUT)
        return f"server {response.server_version}"

    return run_with_client(settings, ask)


def _check_object_store(settings: Settings) -> str:
    """Send a signed LIST to each bucket. The answer must have the header fields of an object store."""
    names = [bucket for _, bucket in list_configured_buckets(settings)]
    store = _open_store_that_fails_fast(settings)
    for name in names:
        next(iter(store.for_bucket(name).list(MARKER_KEY)), None)
    return ", ".join(names)


def _check_zookeeper(settings: Settings) -> str:
    with open_zookeeper_session(settings) as session:
        count = len(OwnershipNodes(session, MAX_BUNDLES).read_live_workers())
        return f"{count} {'worker has' if count == 1 else 'workers have'} a session"


def _check_lost_write_ahead_log(settings: Settings) -> CheckRow | None:
    pids = [worker.pid for worker in read_live_workers(StackHome.at(settings.home))]
    try:
        database = Database(settings.database_url)
    except SextonError:
        return None  # the row `database` reports this error
    problem = find_lost_write_ahead_file(database, pids)
    database.close()
    return {"name": "database", "ok": False, "detail": str(problem)} if problem else None


def _check_catalog_database(settings: Settings) -> str:
    database = Database(settings.database_url)
    try:
        require_current_version(database)
        require_writable_catalog(database)
    finally:
        database.close()
    return "this build's version, and takes writes"


def _check_worker_deployment(settings: Settings) -> str:
    async def ask(client: Client) -> tuple[WorkerDeployment, Mapping[str, Sequence[str]]]:
        deployment = await read_worker_deployment(client, settings.deployment_name)
        dead = find_crashed_worker_ids(StackHome.at(settings.home))
        ramping = deployment.ramping if deployment.ramp_percent else None
        routed_builds = [build for build in (deployment.current, ramping) if build]
        queues_by_build = {
            build: await find_unserved_queues(client, deployment.name, build, dead_identities=dead)
            for build in routed_builds
        }
        return deployment, queues_by_build

    deployment, unserved_queues = run_with_client(settings, ask)
    if deployment.current is None:
        advice = "make one current: `sexton worker builds`, `sexton worker deploy --build-id ID`"
        raise ServiceFailed("deployment", str(deployment), advice=advice)
    for build, queues in unserved_queues.items():
        if queues:
            advice = "start one of that build, or make a build current that has workers: "
            advice += "`sexton worker deploy --build-id ID`"
            problem = f"{deployment}, and no worker of {build} polls {', '.join(queues)}"
            raise ServiceFailed("deployment", problem, advice=advice)
    return str(deployment)


async def list_polling_workers(
    client: Client, settings: Settings, *, dead_identities: Collection[str] = ()
) -> set[str]:
    kind = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    pollers = await list_live_pollers(client, settings.task_queue, kind, dead_identities=dead_identities)
    return {poller.identity for poller in pollers}


def _check_polling_workers(settings: Settings) -> CheckRow:
    """Return the row of polling workers, without this home's dead workers, which Temporal still lists for minutes."""
    home = StackHome.at(settings.home)

    async def ask(client: Client) -> set[str]:
        return await list_polling_workers(client, settings, dead_identities=find_crashed_worker_ids(home))

    try:
        names = sorted(run_with_client(settings, ask))
    except SextonError:
        return {"name": WORKER, "ok": False, "detail": "cannot be told while temporal does not answer"}
    except RPCError as error:  # Temporal refuses: the namespace does not exist, or permission is missing
        return {"name": WORKER, "ok": False, "detail": f"cannot be told: {_describe_rpc_error(error)}"}
    urls = {
        worker.worker_id: ", ".join(filter(None, (worker.http_url, worker.metrics_url)))
        for worker in read_live_workers(home)
    }
    workers = [f"{name} ({urls[name]})" if urls.get(name) else name for name in names]
    advice = f"none polls the task queue {settings.task_queue}: `sexton up` starts one"
    return {"name": WORKER, "ok": bool(names), "detail": ", ".join(workers) or advice}


def _check_catalog_identity(settings: Settings) -> CheckRow:
    own: list[str] = []
    foreign: list[str] = []
    unknown: list[str] = []  # the rows of these services have the reason
    try:
        with open_catalog(settings.database_url) as catalog:
            catalog_id = catalog.identities.catalog_id()
            for name, is_own in _iterate_identity_checks(settings, catalog.identities):
                try:
                    own.append(name if is_own() else f"{name} (nobody's yet)")
                except CatalogMismatch as error:
                    foreign.append(str(error))
                except (RPCError, SextonError):
                    unknown.append(name)
    except SextonError as error:
        return {"name": _IDENTITY_ROW, "ok": False, "detail": f"cannot be told: {error}"}
    unanswered = [f"cannot be told of {', '.join(unknown)}: no answer, or a refusal"] if unknown else []
    problems = [*foreign, *unanswered]
    detail = "; ".join(problems) or ", ".join(own) or "no service is known"
    return {"name": _IDENTITY_ROW, "ok": not problems, "detail": f"catalog {catalog_id}: {detail}"}


def _iterate_identity_checks(
    settings: Settings, identities: CatalogIdentity
) -> Iterator[tuple[str, Callable[[], bool]]]:
    if settings.has_object_store:
        own_bucket = make_checked_bucket_opener_by_name(settings, identities, fails_fast=True)
        for role, bucket in list_configured_buckets(settings):
            store = own_bucket(role, bucket)
            yield (
                f"{role.value} bucket {bucket}",
                partial(lambda store: store.require_ours_or_unmarked() is MarkerState.OURS, store),
            )
    if settings.ownership == "zookeeper" and settings.zookeeper:

        def has_own_path() -> bool:
            with open_zookeeper_session(settings) as session:
                return check_path_belongs_to_catalog(session, identities.catalog_id())

        yield "zookeeper", has_own_path
    if settings.temporal_address:
        yield (
            f"namespace {settings.temporal_namespace}",
            lambda: run_with_client(settings, lambda client: compare_namespace_mark(client, identities.catalog_id())),
        )


_MAX_CLOCK_DIFFERENCE_S = 5.0  # S3 refuses only above 15 minutes, but a clock that is seconds off should be corrected


def check_installation(settings: Settings) -> list[CheckRow]:
    """Return the rows of `status`, then one row for each further check of this machine and of the services."""
    checks: dict[str, Callable[[Settings], str]] = {
        "java": lambda _: f"Java {find_java().version}",
        "search attributes": _check_search_attributes,
        SCHEDULES: _check_stuck_schedules,
        "ownership": _check_ownership,
        "clock": _check_clock_against_object_store,
        DELETES: check_bucket_deletes,
        **({"certificates": check_client_certificate_expiry} if find_client_certificate_files(settings) else {}),
    }
    return [*check_services(settings), *(run_check_as_row(name, check, settings) for name, check in checks.items())]


def _check_search_attributes(settings: Settings) -> str:
    run_with_client(settings, workflow_search.require_search_attributes)
    return "all registered"


def _check_stuck_schedules(settings: Settings) -> str:
    async def ask(client: Client) -> tuple[int, Sequence[StuckRun]]:
        return len(await list_schedules(client)), await find_stuck_runs(client)

    count, stuck_runs = run_with_client(settings, ask)
    if stuck_runs:
        raise ServiceFailed(SCHEDULES, "; ".join(map(str, stuck_runs)), advice="its runbook is `Schedules`")
    return f"{count} schedule{'' if count == 1 else 's'}, and no job of theirs is stuck"


def _check_ownership(settings: Settings) -> str:
    with open_catalog(settings.database_url) as catalog:
        if settings.ownership == "single":
            return f"{read_ownership_overview(catalog.fences, None)}; ownership=single"
        with open_directory(settings, catalog.fences.count_bundles(), catalog.identities.catalog_id()) as directory:
            ownership = read_ownership_overview(catalog.fences, directory)
    if not ownership.workers:
        raise ServiceFailed(
            "ownership", f"{ownership}, no worker has a session", advice="start one, or read a worker's log"
        )
    return f"{ownership}; workers: {', '.join(worker.worker_id for worker in ownership.workers)}"


def _check_clock_against_object_store(settings: Settings) -> str:
    difference_s = time.time() - read_store_clock_s(_open_store_that_fails_fast(settings))
    if abs(difference_s) > _MAX_CLOCK_DIFFERENCE_S:
        problem = f"this machine and the object store differ by {difference_s:.0f} s"
        raise ServiceFailed("clock", problem, advice="set both by one time service")
    return f"within {_MAX_CLOCK_DIFFERENCE_S:.0f} s of the object store's"


DELETES: Final = "deletes"


def check_bucket_deletes(settings: Settings) -> str:
    """Test deletes in each bucket: put a small object, delete the object, and look for it by HEAD and LIST.

    Each call uses a new key. Buckets of another catalog are not tested.
    """
    store = _open_store_that_fails_fast(settings)
    role_by_bucket = {bucket: role for role, bucket in list_configured_buckets(settings)}
    with open_catalog(settings.database_url) as catalog, ThreadPoolExecutor(len(role_by_bucket)) as pool:
        own_bucket = make_checked_bucket_opener_by_name(settings, catalog.identities, fails_fast=True)

        def find_problem(bucket: str, role: BucketRole) -> str | None:
            try:
                own_bucket(role, bucket).require_ours_or_unmarked()
                return _put_and_delete_probe_object(store.for_bucket(bucket))
            except CatalogMismatch:
                return "deletes are not tested in a bucket that is not this catalog's"
            except SextonError as error:
                return f"deletes cannot be tested: {error}"

        problems = list(pool.map(find_problem, role_by_bucket, role_by_bucket.values()))
    texts = [f"bucket {bucket}: {problem}" for bucket, problem in zip(role_by_bucket, problems, strict=True) if problem]
    if texts:
        raise ServiceFailed(
            "object store", "; ".join(texts), advice="docs/reference/object-store.md says what it needs"
        )
    return f"a probe object is gone after its delete in {', '.join(role_by_bucket)}"


def _open_store_that_fails_fast(settings: Settings) -> S3ObjectStore:
    if not settings.has_object_store:
        settings.require_address("s3_endpoint")
    return open_primary_bucket(settings, fails_fast=True)


def _put_and_delete_probe_object(store: S3ObjectStore) -> str | None:
    key, body = f"{PROBE_PREFIX}{uuid4().hex}", b"A probe of `sexton doctor`. It may be deleted.\n"
    try:
        store.put_if_absent(key, body, metadata={})
        stored = store.get(key)
    except SextonError:
        with suppress(SextonError):  # a put without an answer may have stored the object
            store.delete([key])
        raise
    if reason := store.delete([key]).failed.get(key):
        return f"the store refuses to delete {key}, which stays: {reason}"
    if stored is None or stored.body != body:
        return f"the store confirmed {key} and does not return it"
    methods = [
        *(["HEAD"] if store.head(key) else []),
        *(["LIST"] if any(listed.key == key for listed in store.list(key)) else []),
    ]
    if not methods:
        return None
    finds = f"{' and '.join(methods)} find{'s' if len(methods) == 1 else ''} it"
    return f"the store confirmed a delete that it did not do ({key}: {finds}). Sexton supports no such store"


RECORD_LOG: Final = "record log"
MAX_CHANGE_AGE_S: Final = 300.0
"""Age above which a change that is in no block is reported as a problem."""

_ADVICE: Final = "`sexton records status`; runbook `flush-records`"


def check_flushes_as_row(settings: Settings) -> Mapping[str, object]:
    """Return a row with the age of the oldest unflushed change. `ok` means that flushes succeed and the age is low."""
    try:
        with open_catalog(settings.database_url) as catalog:
            problems, detail = _find_outbox_problems_and_detail(catalog.records)
            if settings.has_object_store:
                detail += _refuse_outdated_or_note_unanswered(settings, catalog)
    except CatalogOutdated as error:
        return {"name": RECORD_LOG, "ok": False, "detail": str(error)}
    except (SextonError, OSError) as error:
        return {"name": RECORD_LOG, "ok": False, "detail": f"cannot be told: {error}"}
    with suppress(RPCError, SextonError):  # Temporal's row in `status` has the reason
        if flush_failure := run_with_client(settings, find_flush_failure):
            problems = [flush_failure, *problems]
    text = "; ".join([*problems, detail])
    return {"name": RECORD_LOG, "ok": not problems, "detail": f"{text}; {_ADVICE}" if problems else text}


def _refuse_outdated_or_note_unanswered(settings: Settings, catalog: Catalog) -> str:
    try:
        refuse_outdated_catalog(settings, catalog)
    except CatalogOutdated:
        raise
    except SextonError:
        return "; not compared with the newest manifest"  # the object store's row in `status` has the reason
    return ""


def _find_outbox_problems_and_detail(records: RecordOutbox) -> tuple[list[str], str]:
    from logstore.records.services.flusher import find_unrecordable  # noqa: PLC0415 - start-up time

    state = records.read_state()
    if not state.outbox_changes and not state.staged_blocks:
        return [], f"manifest {state.manifest} has all changes"
    refused_records = find_unrecordable(records)
    problems = [f"no block can hold {len(refused_records)} records: {refused_records[0]}"] if refused_records else []
    age_s = 0.0 if state.oldest_change_us is None else max(0, state.now_us - state.oldest_change_us) / 1_000_000
    if age_s > MAX_CHANGE_AGE_S:
        waiting = records.count_unflushed_deletions()
        problems.append(f"changes of the last {age_s:.0f} s would be lost with the database, {waiting} deletions wait")
    return problems, f"manifest {state.manifest}, {state.outbox_changes} changes since, the oldest {age_s:.0f} s ago"


async def find_flush_failure(client: Client) -> str | None:
    """Return the last failure of `flush-records` as a sentence, or `None` if the job has not failed."""
    description = await workflow_search.describe_workflow_if_known(client, FLUSH_RECORDS.id())
    if description is None:
        return None
    if description.status is WorkflowExecutionStatus.COMPLETED:  # the workflow completes only if a guard refuses
        handle = client.get_workflow_handle(FLUSH_RECORDS.id(), result_type=FlushRecordsResult)
        refusal = (await handle.result()).refused
        return f"flushes are refused: {refusal.type}: {refusal.message}" if refusal else None
    for activity in description.raw_description.pending_activities:
        if activity.HasField("last_failure"):
            failure = format_innermost_failure(activity.last_failure)
            attempts = f"{activity.attempt - 1} attempts so far"
            for name in ("last_started_time", "last_attempt_complete_time"):
                if activity.HasField(name):
                    attempts += f", the last one at {getattr(activity, name).ToDatetime():%Y-%m-%dT%H:%M:%SZ}"
                    break
            return f"flushes fail, {attempts}: {failure}"
    return None
