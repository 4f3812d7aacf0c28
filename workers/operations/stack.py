"""The embedded stack with its worker: `up` and `down`."""

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion

from infra.catalog import Database, SqlCatalog, open_catalog, shown_url, upgrade, version
from infra.stack import stack
from infra.stack.home import StackHome
from infra.stack.ports import WantedPorts
from infra.stack.process import ServiceProcess
from infra.stack.workers import crashed_worker_ids
from logstore.errors import ServiceFailed, StoreUnavailable
from workers.client import Sexton, visibility
from workers.client.connections import connect_client, run_with_client
from workers.client.jobs import JobClient
from workers.identity import adopt_buckets, buckets_of, compare_with_newest_manifest, own_build
from workers.operations.new_builds import deploy_unless_served
from workers.operations.status import WORKER, polling
from workers.settings import OFF, Settings

ANY_PORTS = {"SEXTON_METRICS_ADDRESS": "127.0.0.1:0", "SEXTON_HTTP_ADDRESS": "127.0.0.1:0"}
"""For the environment of a worker whose stack has any free ports."""
_POLL_WITHIN_S = 180.0  # importing the SDKs takes a minute where many others are at work
_LEAVE_S = 15.0  # beyond draining; a worker ends by itself 10 s after it
_SHOWN_OF_HOME = 40  # characters: an id has 128 at most

Say = Callable[[str], None]


def up(settings: Settings, *, no_worker: bool, free_ports: bool, on_progress: Say, say: Say) -> dict[str, object]:
    """Start what does not run, and return when all is healthy; see `infra.stack.up`.

    Args:
        settings: The home's.
        no_worker: Whether services alone are started.
        free_ports: Whether any free ports are taken instead of those of the settings.
        on_progress: Called with each step as it begins.
        say: Called with a sentence that people should have read when all is up.

    Raises:
        ServiceFailed: Something could not be started. Servers and worker of this call are stopped again.
        CatalogVersionMismatch: The catalog was written by a newer build; the same.
        CatalogMismatch: Buckets or namespace are not this catalog's; the same.
        CatalogOutdated: The database is older than its record log; the same.
    """
    where = stack.up(stack_options(settings, free_ports=free_ports), on_progress=on_progress)
    settings = at(settings, where)
    worker = ServiceProcess(WORKER, StackHome.at(settings.home))
    earlier = worker.find_process()
    try:
        on_progress("bringing the catalog to this build's version")
        prepare(settings)
        build = own_build(settings)
        listens = settings.environment()  # where it is to listen at no address, it takes no free port
        extra = {name: address for name, address in ANY_PORTS.items() if free_ports and listens[name] != OFF}
        extra |= {"SEXTON_BUILD_ID": build.build_id} if build else {}
        pids = [] if no_worker else [start_worker(settings, extra=extra, on_progress=on_progress)]
        if pids:  # without a worker runs would only pile up
            new = build if earlier is None else None
            run_with_client(settings, lambda client: _ready_for_runs(client, settings, new, on_progress, say))
    except BaseException:
        with suppress(ServiceFailed):  # the first failure is the one to tell
            if earlier is None:
                worker.kill()  # it came to nothing that is worth a drain
            stack.stop_started(settings.home, where.started)
        raise
    return {
        "temporal": where.temporal,
        "ui": where.ui,
        "s3": where.s3,
        "zookeeper": where.zookeeper,
        "database": shown_url(settings.database_url),
        "worker_pids": pids,
        "home": str(settings.home.absolute()),
    }


async def _ready_for_runs(
    client: Client, settings: Settings, build: WorkerDeploymentVersion | None, on_progress: Say, say: Say
) -> None:
    """Apply the schedules; a new worker's build becomes current, unless workers of the current one poll."""
    if build:
        on_progress(f"making build {build.build_id} current, unless workers of the current one poll")
        dead = crashed_worker_ids(StackHome.at(settings.home))
        found = await deploy_unless_served(client, build.deployment_name, build.build_id, dead=dead)
        if found.current != build.build_id:
            deploy = f"`sexton worker deploy --build-id {build.build_id}`"
            say(f"{found}, and its workers poll, so this worker's build was not made current; {deploy} does it")
    on_progress("applying the schedules")
    await Sexton(client, settings).apply_schedules()


def stack_options(settings: Settings, *, free_ports: bool = False, in_memory: bool = False) -> stack.StackOptions:
    """The embedded stack that the settings wish for."""
    wanted = WantedPorts(
        temporal=settings.temporal_port,
        ui=settings.ui_port,
        s3=settings.s3_port,
        zookeeper=settings.zookeeper_port,
    )
    return stack.StackOptions(
        home=settings.home,
        ports=WantedPorts.any_free() if free_ports else wanted,
        temporal_in_memory=in_memory,
        buckets=tuple(bucket for _, bucket in buckets_of(settings)),
    )


def at(settings: Settings, where: stack.StackAddresses) -> Settings:
    """The settings with the addresses of a stack that has just been started."""
    return settings.but(
        temporal_address=where.temporal,
        ui_address=where.ui,
        s3_endpoint=where.s3,
        s3_region=where.region,
        s3_access_key=where.access_key,
        s3_secret_key=where.secret_key,
        zookeeper=where.zookeeper,
    )


def upgrade_catalog(settings: Settings) -> dict[str, object]:
    """Create the catalog's tables, or bring them to this build's version, and mark its buckets.

    Raises:
        CatalogVersionMismatch: It was written by a newer build.
        CatalogMismatch: A bucket is not this catalog's.
        StoreUnavailable: The database does not answer.
    """
    database = Database(settings.database_url)
    try:
        upgrade(database, bundles=settings.bundles)
        return {
            "database": shown_url(settings.database_url),
            "version": version(database),
            "catalog_id": SqlCatalog(database).identities.catalog_id(),
            "buckets": adopt_buckets(settings, database) if settings.store_is_known else {},
        }
    finally:
        database.close()


def prepare(settings: Settings) -> None:
    """Bring catalog and namespace to where a worker can start.

    Raises:
        CatalogVersionMismatch, CatalogMismatch, StoreUnavailable: As `upgrade_catalog`.
        CatalogOutdated: The database is older than its record log; a worker would end at once.
    """
    upgrade_catalog(settings)
    _require_current(settings)

    async def register(client: Client) -> None:
        await visibility.register_search_attributes(client)
        await JobClient(client, settings).verified_client()

    run_with_client(settings, register)


def _require_current(settings: Settings) -> None:
    """Compare with the newest manifest where the store tells it; a worker compares in any case."""
    if not settings.store_is_known:
        return
    with open_catalog(settings.database_url) as catalog, suppress(StoreUnavailable, ServiceFailed):
        compare_with_newest_manifest(settings, catalog)


def start_worker(
    settings: Settings,
    *,
    name: str = WORKER,
    extra: Mapping[str, str] | None = None,
    alone: bool = False,
    on_progress: Say = lambda _: None,
) -> int:
    """Start a worker process of the home unless it runs, and wait until it polls; its pid.

    Args:
        settings: The home's.
        name: Of its pid file and its log.
        extra: Variables of its environment.
        alone: Whether it is told these settings and nothing else, neither this process's environment nor a file.
        on_progress: Called with a sentence for people.

    Raises:
        ServiceFailed: It did not come to poll; says what its log ends with.
    """
    process = ServiceProcess(name, StackHome.at(settings.home))
    found = process.find_process()
    if found:
        return int(found.pid)
    on_progress(f"starting {name}")
    identity = _identity(name, settings.home)
    argv = [sys.executable, "-m", "workers", "--home", str(settings.home), "worker", "run", "--worker-id", identity]
    env, cwd = dict(os.environ), Path.cwd()
    if alone:
        foreign = {name: value for name, value in env.items() if not name.startswith("SEXTON_")}
        env, cwd = foreign | settings.environment(), settings.home
    since = process.start(argv, cwd=cwd, env={**env, **(extra or {})})
    try:
        asyncio.run(_polling(settings, identity, process))
    except BaseException as fault:
        said = process.summarize_last_lines(since)
        process.kill()
        if not isinstance(fault, ServiceFailed):
            raise
        raise ServiceFailed(name, f"{fault.problem} ({said})", advice=f"read {process.log_file}") from fault
    running = process.find_process()
    return int(running.pid) if running else 0


def _identity(name: str, home: Path) -> str:
    """A worker id of its own for each start; of a home's name it shows what such an id may hold, and not too much."""
    shown = re.sub(r"[^A-Za-z0-9._-]+", "-", home.absolute().name)[:_SHOWN_OF_HOME].strip("-") or "home"
    return f"{name}@{shown}-{time.time_ns():x}"


async def _polling(settings: Settings, identity: str, process: ServiceProcess) -> None:
    client = await connect_client(settings)
    give_up = time.monotonic() + _POLL_WITHIN_S
    while identity not in await polling(client, settings):
        if process.find_process() is None:
            raise ServiceFailed(process.name, "it ended while starting", advice="see its log")
        if time.monotonic() > give_up:
            raise ServiceFailed(process.name, f"it did not poll within {_POLL_WITHIN_S:.0f} s", advice="see its log")
        await asyncio.sleep(0.1)


def down(settings: Settings) -> list[str]:
    """Stop the home's workers, which drain, then its services; the names of what ran."""
    home = StackHome.at(settings.home)
    workers = sorted(path.stem for path in home.pids.glob(f"{WORKER}*.json"))
    stopped = [name for name in workers if ServiceProcess(name, home).stop(settings.drain_timeout + _LEAVE_S)]
    return stopped + stack.down(settings.home)
