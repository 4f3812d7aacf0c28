"""`status` and `doctor`: whether services and this machine are as Sexton needs them."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from infra.catalog import Database, check_version, open_catalog
from infra.catalog.engine.versions import check_takes_writes, lost_write_ahead
from infra.coordination.directory import OwnershipDirectory
from infra.coordination.identity import check_path
from infra.objects import clock_s
from infra.stack.home import StackHome
from infra.stack.java import find_java
from infra.stack.workers import crashed_worker_ids, live_workers
from logstore.errors import CatalogMismatch, ServiceFailed, SextonError
from logstore.identity.markers import MARKER_KEY, MarkerState
from logstore.identity.services.own_stores import OwnStore, OwnStores
from logstore.ownership import MAX_BUNDLES
from logstore.ports.catalog import Identities
from workers.assembly.buckets import own_buckets_by_name, primary_bucket
from workers.client import visibility
from workers.client.connections import run_with_client
from workers.client.pollers import live_pollers
from workers.client.scheduled_runs import StuckRun, find_stuck_runs
from workers.client.schedules import list_schedules
from workers.client.temporal_faults import service_failure
from workers.hosting.certificates import check_certificates, files_of_certificates
from workers.hosting.readiness import SCHEDULES
from workers.identity import buckets_of, compare_namespace
from workers.operations.builds import Deployment, read_deployment, unserved_queues
from workers.operations.owners import open_directory, open_session, overview
from workers.operations.records_row import RECORD_LOG, records_row
from workers.settings import Settings

Row = Mapping[str, object]
Check = Callable[[Settings], str]

WORKER: Final = "worker"
_IDENTITY: Final = "identity"
_ANSWER_WITHIN = timedelta(seconds=5)
_AT_ONCE: Final = 8


def status(settings: Settings) -> list[Row]:
    """Whether each service answers; all are asked at once, and none is waited for longer than a few seconds."""
    checks: dict[str, Check] = {"temporal": _temporal, "object store": _objects, "zookeeper": _zookeeper}
    if settings.ownership == "single":
        del checks["zookeeper"]
    where = {
        "temporal": settings.temporal_address,
        "object store": settings.s3_endpoint or ("AWS" if settings.store_is_known else ""),
        "zookeeper": settings.zookeeper,
    }
    lost = _lost(settings)  # before anything opens the database: SQLite would put an empty file in its place
    rows: list[Callable[[], Row]] = [
        *(partial(_at, where[name], checked, name, check, settings) for name, check in checks.items()),
        lambda: lost or checked("database", _database, settings),
        lambda: {"name": _IDENTITY, "ok": False, "detail": "cannot be told"} if lost else _identity(settings),
        lambda: {"name": RECORD_LOG, "ok": False, "detail": "cannot be told"} if lost else records_row(settings),
        lambda: _workers(settings),
        *([lambda: checked("deployment", _current_build, settings)] if settings.deployment_name else []),
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda row: row(), rows))


def _at(where: str, check: Callable[..., Row], *given: object) -> Row:
    row = check(*given)
    return {**row, "detail": f"{where}: {row['detail']}" if where else row["detail"]}


def checked(name: str, check: Check, settings: Settings) -> Row:
    """Return the row of one check, whose errors are its detail."""
    try:
        return {"name": name, "ok": True, "detail": check(settings)}
    except RPCError as error:
        return {"name": name, "ok": False, "detail": _refused(error)}
    except (SextonError, OSError) as error:
        return {"name": name, "ok": False, "detail": str(error)}


def _refused(error: RPCError) -> str:
    return str(service_failure(error) or f"temporal: {error.message}")


def _temporal(settings: Settings) -> str:
    async def ask(client: Client) -> str:
        wanted = DescribeNamespaceRequest(namespace=client.namespace)
        await client.workflow_service.describe_namespace(wanted, timeout=_ANSWER_WITHIN)
        answer = await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=_ANSWER_WITHIN)
        return f"server {answer.server_version}"

    return run_with_client(settings, ask)


def _objects(settings: Settings) -> str:
    """A signed listing of each bucket, whose answer bears the marks of the store's own."""
    if not settings.store_is_known:
        settings.required("s3_endpoint")
    names = [bucket for _, bucket in buckets_of(settings)]
    store = primary_bucket(settings, hasty=True)
    for name in names:
        next(iter(store.for_bucket(name).list(MARKER_KEY)), None)
    return ", ".join(names)


def _zookeeper(settings: Settings) -> str:
    with open_session(settings) as session:
        alive = len(OwnershipDirectory(session, MAX_BUNDLES).live_workers())
        return f"{alive} {'worker has' if alive == 1 else 'workers have'} a session"


def _lost(settings: Settings) -> Row | None:
    pids = [one.pid for one in live_workers(StackHome.at(settings.home))]
    try:
        database = Database(settings.database_url)
    except SextonError:
        return None  # the check of the database says it
    why = lost_write_ahead(database, pids)
    database.close()
    return {"name": "database", "ok": False, "detail": str(why)} if why else None


def _database(settings: Settings) -> str:
    database = Database(settings.database_url)
    try:
        check_version(database)
        check_takes_writes(database)
    finally:
        database.close()
    return "this build's version, and takes writes"


def _current_build(settings: Settings) -> str:
    async def ask(client: Client) -> tuple[Deployment, Mapping[str, Sequence[str]]]:
        found = await read_deployment(client, settings.deployment_name)
        dead = crashed_worker_ids(StackHome.at(settings.home))
        ramping = found.ramping if found.ramp_percent else None
        fed = [build for build in (found.current, ramping) if build]
        return found, {build: await unserved_queues(client, found.name, build, dead=dead) for build in fed}

    found, unserved = run_with_client(settings, ask)
    if found.current is None:
        advice = "make one current: `sexton worker builds`, `sexton worker deploy --build-id ID`"
        raise ServiceFailed("deployment", str(found), advice=advice)
    for build, queues in unserved.items():
        if queues:
            advice = "start one of that build, or make a build current that has workers: "
            advice += "`sexton worker deploy --build-id ID`"
            problem = f"{found}, and no worker of {build} polls {', '.join(queues)}"
            raise ServiceFailed("deployment", problem, advice=advice)
    return str(found)


async def polling(client: Client, settings: Settings, *, dead: Collection[str] = ()) -> set[str]:
    """The identities of the workers that poll the task queue now."""
    found = await live_pollers(
        client, settings.task_queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, dead_identities=dead
    )
    return {one.identity for one in found}


def _workers(settings: Settings) -> Row:
    """The workers that poll the task queue, wherever they run, and where those of this home can be looked at.

    Temporal forgets one that went away only after minutes: one whose process ended in this home is not counted.
    """
    home = StackHome.at(settings.home)
    try:
        names = sorted(
            run_with_client(settings, lambda client: polling(client, settings, dead=crashed_worker_ids(home)))
        )
    except SextonError:
        return {"name": WORKER, "ok": False, "detail": "cannot be told while temporal does not answer"}
    except RPCError as error:  # it answered, and refused: no such namespace, no permission
        return {"name": WORKER, "ok": False, "detail": f"cannot be told: {_refused(error)}"}
    urls = {one.worker_id: ", ".join(filter(None, (one.http_url, one.metrics_url))) for one in live_workers(home)}
    shown = [f"{name} ({urls[name]})" if urls.get(name) else name for name in names]
    advice = f"none polls the task queue {settings.task_queue}: `sexton up` starts one"
    return {"name": WORKER, "ok": bool(names), "detail": ", ".join(shown) or advice}


def _identity(settings: Settings) -> Row:
    """Return the row of the catalog's id and of each service that is not its own; changes nothing."""
    ours: list[str] = []
    foreign: list[str] = []
    untold: list[str] = []  # why is said in the row of that service
    try:
        with open_catalog(settings.database_url) as catalog:
            catalog_id = catalog.identities.catalog_id()
            for name, look in _looks(settings, catalog.identities):
                try:
                    ours.append(name if look() else f"{name} (nobody's yet)")
                except CatalogMismatch as error:
                    foreign.append(str(error))
                except (RPCError, SextonError):
                    untold.append(name)
    except SextonError as error:
        return {"name": _IDENTITY, "ok": False, "detail": f"cannot be told: {error}"}
    unanswered = [f"cannot be told of {', '.join(untold)}: no answer, or a refusal"] if untold else []
    problems = [*foreign, *unanswered]
    detail = "; ".join(problems) or ", ".join(ours) or "no service is known"
    return {"name": _IDENTITY, "ok": not problems, "detail": f"catalog {catalog_id}: {detail}"}


def _looks(settings: Settings, identities: Identities) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Each service that is known, and how to ask whether it is the catalog's."""
    if settings.store_is_known:
        own = own_buckets_by_name(settings, OwnStores(identities), hasty=True)
        for role, bucket in buckets_of(settings):
            yield f"{role.value} bucket {bucket}", partial(_is_ours, own(role, bucket))
    if settings.ownership == "zookeeper" and settings.zookeeper:
        yield "zookeeper", lambda: _path(settings, identities.catalog_id())
    if settings.temporal_address:
        yield (
            f"namespace {settings.temporal_namespace}",
            lambda: run_with_client(settings, lambda client: compare_namespace(client, identities.catalog_id())),
        )


def _is_ours(store: OwnStore) -> bool:
    return store.look() is MarkerState.OURS


def _path(settings: Settings, catalog_id: str) -> bool:
    with open_session(settings) as session:
        return check_path(session, catalog_id)


_CLOCK_S = 5.0  # S3 refuses signatures whose clock is 15 minutes off; five seconds is already worth a word


def doctor(settings: Settings) -> list[Row]:
    """As `status`, and Java, search attributes, schedules, ownership, clock, and our certificates if there are any."""
    checks: dict[str, Callable[[Settings], str]] = {
        "java": lambda _: f"Java {find_java().version}",
        "search attributes": _search_attributes,
        SCHEDULES: _schedules,
        "ownership": _ownership,
        "clock": _clock,
        **({"certificates": check_certificates} if files_of_certificates(settings) else {}),
    }
    return [*status(settings), *(checked(name, check, settings) for name, check in checks.items())]


def _search_attributes(settings: Settings) -> str:
    run_with_client(settings, visibility.require_search_attributes)
    return "all registered"


def _schedules(settings: Settings) -> str:
    async def ask(client: Client) -> tuple[int, Sequence[StuckRun]]:
        return len(await list_schedules(client)), await find_stuck_runs(client)

    count, stuck = run_with_client(settings, ask)
    if stuck:
        raise ServiceFailed(SCHEDULES, "; ".join(map(str, stuck)), advice="its runbook is `Schedules`")
    return f"{count} schedule{'' if count == 1 else 's'}, and no job of theirs is stuck"


def _ownership(settings: Settings) -> str:
    with open_catalog(settings.database_url) as catalog:
        if settings.ownership == "single":
            return f"{overview(catalog.fences, None)}; ownership=single"
        with open_directory(settings, catalog.fences.bundles(), catalog.identities.catalog_id()) as directory:
            found = overview(catalog.fences, directory)
    if not found.workers:
        raise ServiceFailed(
            "ownership", f"{found}, no worker has a session", advice="start one, or read a worker's log"
        )
    return f"{found}; workers: {', '.join(worker.worker_id for worker in found.workers)}"


def _clock(settings: Settings) -> str:
    if not settings.store_is_known:
        settings.required("s3_endpoint")
    off = time.time() - clock_s(primary_bucket(settings, hasty=True))
    if abs(off) > _CLOCK_S:
        problem = f"this machine and the object store differ by {off:.0f} s"
        raise ServiceFailed("clock", problem, advice="set both by one time service")
    return f"within {_CLOCK_S:.0f} s of the object store's"
