"""Start and stop of the embedded stack with its worker."""

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

from infra.stack import embedded_stack
from infra.stack.service_port_choice import RequestedPorts
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome, find_crashed_worker_ids
from logstore.catalog import Catalog, Database, mask_passwords, migrate_catalog, open_catalog, read_catalog_version
from logstore.errors import ServiceFailed, StoreUnavailable
from workers.build_identity import own_build
from workers.catalog_match import list_configured_buckets, mark_unmarked_buckets, refuse_outdated_catalog
from workers.client import Sexton, workflow_search
from workers.client.job_client import JobClient
from workers.client.temporal_connection import connect_client, run_with_client
from workers.operations.service_checks import WORKER, list_polling_workers
from workers.operations.worker_builds import deploy_unless_current_build_is_served
from workers.settings import OFF, Settings

ANY_PORTS = {"SEXTON_METRICS_ADDRESS": "127.0.0.1:0", "SEXTON_HTTP_ADDRESS": "127.0.0.1:0"}
"""Environment variables with which a worker uses any free ports."""
_POLL_TIMEOUT_S = 180.0  # the import of the SDKs takes a minute on a busy machine
_STOP_MARGIN_S = 15.0  # time beyond `drain_timeout`; a worker exits at the latest 10 s after `drain_timeout`
_MAX_HOME_NAME_CHARS = 40  # part of a worker id, which has at most 128 characters

Say = Callable[[str], None]


def start_stack(
    settings: Settings, *, no_worker: bool, free_ports: bool, on_progress: Say, say: Say
) -> dict[str, object]:
    """Start services and a worker that do not run yet, and wait until all are healthy. After an error, stop them again.

    Raises:
        ServiceFailed: A service or the worker could not be started.
        CatalogVersionMismatch, CatalogMismatch, CatalogOutdated: As `prepare_catalog_and_namespace` raises them.
    """
    stack_addresses = embedded_stack.start_stack(
        stack_options_from_settings(settings, free_ports=free_ports), on_progress=on_progress
    )
    settings = add_stack_addresses(settings, stack_addresses)
    worker = ServiceProcess(WORKER, StackHome.at(settings.home))
    earlier_worker = worker.find_process()
    try:
        on_progress("bringing the catalog to this build's version")
        prepare_catalog_and_namespace(settings)
        build = own_build(settings)
        addresses = settings.environment()  # an address that is `off` stays off
        extra_env = {name: address for name, address in ANY_PORTS.items() if free_ports and addresses[name] != OFF}
        extra_env |= {"SEXTON_BUILD_ID": build.build_id} if build else {}
        pids = [] if no_worker else [start_worker(settings, extra_env=extra_env, on_progress=on_progress)]
        if pids:  # without a worker, scheduled runs would only pile up
            new_build = build if earlier_worker is None else None
            run_with_client(
                settings,
                lambda client: _deploy_build_and_apply_schedules(client, settings, new_build, on_progress, say),
            )
    except BaseException:
        with suppress(ServiceFailed):  # the first error counts
            if earlier_worker is None:
                worker.kill()  # the worker has no activities to drain
            embedded_stack.stop_started_services(settings.home, stack_addresses.started)
        raise
    return {
        "temporal": stack_addresses.temporal,
        "ui": stack_addresses.ui,
        "s3": stack_addresses.s3,
        "zookeeper": stack_addresses.zookeeper,
        "database": mask_passwords(settings.database_url),
        "worker_pids": pids,
        "home": str(settings.home.absolute()),
    }


async def _deploy_build_and_apply_schedules(
    client: Client, settings: Settings, build: WorkerDeploymentVersion | None, on_progress: Say, say: Say
) -> None:
    if build:
        on_progress(f"making build {build.build_id} current, unless workers of the current one poll")
        dead = find_crashed_worker_ids(StackHome.at(settings.home))
        deployment = await deploy_unless_current_build_is_served(
            client, build.deployment_name, build.build_id, dead_identities=dead
        )
        if deployment.current != build.build_id:
            deploy = f"`sexton worker deploy --build-id {build.build_id}`"
            say(f"{deployment}, and its workers poll, so this worker's build was not made current; {deploy} does it")
    on_progress("applying the schedules")
    await Sexton(client, settings).apply_schedules()


def stack_options_from_settings(
    settings: Settings, *, free_ports: bool = False, in_memory: bool = False
) -> embedded_stack.StackOptions:
    configured_ports = RequestedPorts(
        temporal=settings.temporal_port,
        ui=settings.ui_port,
        s3=settings.s3_port,
        zookeeper=settings.zookeeper_port,
    )
    return embedded_stack.StackOptions(
        home=settings.home,
        ports=RequestedPorts.any_free() if free_ports else configured_ports,
        temporal_in_memory=in_memory,
        buckets=tuple(bucket for _, bucket in list_configured_buckets(settings)),
    )


def add_stack_addresses(settings: Settings, stack_addresses: embedded_stack.StackAddresses) -> Settings:
    return settings.with_changes(
        temporal_address=stack_addresses.temporal,
        ui_address=stack_addresses.ui,
        s3_endpoint=stack_addresses.s3,
        s3_region=stack_addresses.region,
        s3_access_key=stack_addresses.access_key,
        s3_secret_key=stack_addresses.secret_key,
        zookeeper=stack_addresses.zookeeper,
    )


def upgrade_catalog(settings: Settings) -> dict[str, object]:
    """Create the catalog's tables, or upgrade existing tables to this build. Write markers into unmarked buckets."""
    database = Database(settings.database_url)
    try:
        migrate_catalog(database, bundles=settings.bundles)
        return {
            "database": mask_passwords(settings.database_url),
            "version": read_catalog_version(database),
            "catalog_id": Catalog(database).identities.catalog_id(),
            "buckets": mark_unmarked_buckets(settings, database) if settings.has_object_store else {},
        }
    finally:
        database.close()


def prepare_catalog_and_namespace(settings: Settings) -> None:
    """Prepare the catalog and the namespace for a worker.

    Raises:
        CatalogVersionMismatch: A newer build wrote the catalog.
        CatalogMismatch: A bucket or the namespace belongs to another catalog.
        CatalogOutdated: The database is older than its record log. A worker would end at once.
    """
    upgrade_catalog(settings)
    if settings.has_object_store:
        # A store that does not answer is accepted, because each worker checks the buckets when it starts.
        with open_catalog(settings.database_url) as catalog, suppress(StoreUnavailable, ServiceFailed):
            refuse_outdated_catalog(settings, catalog)

    async def register(client: Client) -> None:
        await workflow_search.register_search_attributes(client)
        await JobClient(client, settings).mark_namespace_and_get_client()

    run_with_client(settings, register)


def start_worker(
    settings: Settings,
    *,
    name: str = WORKER,
    extra_env: Mapping[str, str] | None = None,
    isolated: bool = False,
    on_progress: Say = lambda _: None,
) -> int:
    """Start the worker `name` unless it runs already. Wait until the worker polls, and return its pid.

    An `isolated` worker gets only `settings`, and nothing from this process's environment or `sexton.toml`.

    Raises:
        ServiceFailed: The worker ended or did not poll in time. The error has the end of the worker's log.
    """
    process = ServiceProcess(name, StackHome.at(settings.home))
    running = process.find_process()
    if running:
        return int(running.pid)
    on_progress(f"starting {name}")
    identity = _make_worker_id(name, settings.home)
    argv = [sys.executable, "-m", "workers", "--home", str(settings.home), "worker", "run", "--worker-id", identity]
    env, cwd = dict(os.environ), Path.cwd()
    if isolated:
        other_env = {variable: value for variable, value in env.items() if not variable.startswith("SEXTON_")}
        env, cwd = other_env | settings.environment(), settings.home
    log_start = process.start(argv, cwd=cwd, env={**env, **(extra_env or {})})
    try:
        asyncio.run(_wait_until_polling(settings, identity, process))
    except BaseException as fault:
        last_lines = process.summarize_last_failure_lines(log_start)
        process.kill()
        if not isinstance(fault, ServiceFailed):
            raise
        raise ServiceFailed(name, f"{fault.problem} ({last_lines})", advice=f"read {process.log_file}") from fault
    started = process.find_process()
    return int(started.pid) if started else 0


def _make_worker_id(name: str, home: Path) -> str:
    home_name = re.sub(r"[^A-Za-z0-9._-]+", "-", home.absolute().name)[:_MAX_HOME_NAME_CHARS].strip("-") or "home"
    return f"{name}@{home_name}-{time.time_ns():x}"


async def _wait_until_polling(settings: Settings, identity: str, process: ServiceProcess) -> None:
    client = await connect_client(settings)
    deadline_s = time.monotonic() + _POLL_TIMEOUT_S
    while identity not in await list_polling_workers(client, settings):
        if process.find_process() is None:
            raise ServiceFailed(process.name, "it ended while starting", advice="see its log")
        if time.monotonic() > deadline_s:
            raise ServiceFailed(process.name, f"it did not poll within {_POLL_TIMEOUT_S:.0f} s", advice="see its log")
        await asyncio.sleep(0.1)


def stop_stack(settings: Settings) -> list[str]:
    """Stop the home's workers, which drain first, then the home's services. Return the names of the processes."""
    home = StackHome.at(settings.home)
    workers = sorted(path.stem for path in home.pids.glob(f"{WORKER}*.json"))
    stopped = [name for name in workers if ServiceProcess(name, home).stop(settings.drain_timeout + _STOP_MARGIN_S)]
    return stopped + embedded_stack.stop_stack(settings.home)
