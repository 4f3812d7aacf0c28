"""Worker process. It serves workflows and activities on task queues until SIGTERM, and then drains."""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import MetricMeter
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.records.record_upkeep import HISTOGRAM_BOUNDS_S as RECORDS_BUCKETS
from activities.transactions.coordinate_transactions import HISTOGRAM_BOUNDS_S
from infra.stack.stack_home import StackHome, keep_worker_record
from infra.telemetry.log_stream import configure_log_stream
from infra.telemetry.metrics_endpoint import MetricsEndpoint, start_metrics_endpoint
from infra.telemetry.tracing import prune_span_files, start_tracing
from logstore import failpoints
from logstore.catalog.records.outbox import RecordOutbox
from logstore.errors import CatalogMismatch, CatalogOutdated, InvalidInput, SextonError
from logstore.ownership import check_worker_id
from logstore.ports.object_storage import OwnedStore
from logstore.records.services.manifest_publication import require_current_catalog
from logstore.records.services.rebuild_manifests import RebuildManifests
from workers.assembly.activities import WorkerActivities
from workers.assembly.log_store import ImportedRecordFunctions, LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.catalog_match import mark_namespace_as_own, mark_or_refuse_primary_and_tiered
from workers.client import workflow_search
from workers.client.data_converter import get_codec
from workers.client.schedules import find_stuck_runs, require_readable_schedules
from workers.client.temporal_connection import connect_client
from workers.hosting.bundle_ownership import OwnershipTelemetry, WorkerOwnership, create_zookeeper_or_single_ownership
from workers.hosting.error_and_subject_interceptors import RunningActivityCounter
from workers.hosting.gauges import make_periodic_gauges, publish_readiness_repeatedly
from workers.hosting.page_server import PageRouter, add_payload_decode_endpoint, create_page_router, serve_pages
from workers.hosting.readiness import Readiness, WorkerPhase, list_required_checks, make_schedules_check
from workers.hosting.store_status import StatusReader, StoreStatusReader, WebUiLinks, add_status_pages
from workers.hosting.temporal_workers import TemporalWorkerSet
from workers.settings import OFF, Settings
from workflows.records.job_definitions import REBUILD_CATALOG

_PRUNE_INTERVAL_S: Final = 300.0

_log = logging.getLogger(__name__)


@asynccontextmanager
async def run_in_background(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def prune_span_files_repeatedly(settings: Settings, *, interval_s: float = _PRUNE_INTERVAL_S) -> None:
    """Prune the home's span files at once and then after each interval, until cancelled. Log disk errors."""
    limits = {"older_than_s": settings.trace_retention, "max_bytes": settings.trace_max_bytes}
    while True:
        try:
            removed = await asyncio.to_thread(prune_span_files, settings.traces_dir, **limits)
        except OSError as error:
            _log.warning("span files are not pruned: %s", error)
        else:
            if removed:
                _log.info("removed %d span files, by age or by size", removed)
        await asyncio.sleep(interval_s)


_SNAPSHOTS_INTERVAL_S: Final = 1.0  # a fifth of the time after which a snapshot is due


async def write_due_buffer_snapshots_repeatedly(
    write_due_snapshots: Callable[[], int], *, interval_s: float = _SNAPSHOTS_INTERVAL_S
) -> None:
    """Write due snapshots of transaction buffers until cancelled. Log an outage of the catalog once."""
    has_logged = False
    while True:
        try:
            due_count, has_logged = await asyncio.to_thread(write_due_snapshots), False
        except SextonError as error:
            if not has_logged:
                _log.warning("no snapshot of transactions is written, because the catalog does not answer: %s", error)
            due_count, has_logged = 0, True
        if not due_count:
            await asyncio.sleep(interval_s)


_PINS_INTERVAL_S: Final = 60.0  # can be frequent, because a check costs one listing and a few reads
_CLOSED_STATUSES: Final = frozenset(
    {
        WorkflowExecutionStatus.COMPLETED,
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.TERMINATED,
        WorkflowExecutionStatus.TIMED_OUT,
    }
)


async def release_rebuild_pins_repeatedly(
    client: Client, manifests: RebuildManifests, *, interval_s: float = _PINS_INTERVAL_S
) -> None:
    while True:
        try:
            await release_pins_of_closed_rebuilds(client, manifests)
        except (RPCError, SextonError) as error:
            _log.debug("pins of rebuilds are not compared with their workflows: %s", error)
        await asyncio.sleep(interval_s)


async def release_pins_of_closed_rebuilds(client: Client, manifests: RebuildManifests) -> None:
    """End the pins of rebuilds whose workflow is closed. If Temporal does not know the workflow, the pin stays.

    Raises:
        RPCError: Temporal does not answer.
        StoreUnavailable: The object store does not answer.
    """
    for pin in await asyncio.to_thread(manifests.list_pins):
        if await _is_rebuild_certainly_closed(client, REBUILD_CATALOG.id(pin.pin_id)):
            await asyncio.to_thread(manifests.end_pin, pin)
            _log.info("rebuild %s has ended, and holds manifest %d no more", pin.pin_id, pin.manifest)


async def _is_rebuild_certainly_closed(client: Client, workflow_id: str) -> bool:
    description = await workflow_search.describe_workflow_if_known(client, workflow_id)
    return (
        description is not None
        and description.workflow_type == REBUILD_CATALOG.name
        and description.status in _CLOSED_STATUSES
    )


@asynccontextmanager
async def watch_catalog_currency(
    log: LogStore,
    *,
    interval_s: float,
    require_current: Callable[[RecordOutbox, OwnedStore], None] = require_current_catalog,
) -> "AsyncIterator[asyncio.Task[CatalogMismatch | CatalogOutdated]]":
    """During the block, check in a task that no other database was rebuilt from the record log. Yield the task.

    If a check finds a newer catalog, the task ends with the error. The worker must then end. Otherwise the worker would
    do the new catalog's jobs on the old database. Deletes of an outdated worker are refused in any case.

    An object store that does not answer is asked again after `interval_s`. Tests replace `require_current`.
    """
    check = partial(require_current, log.catalog.records, log.record_objects)
    watch = asyncio.create_task(_wait_until_catalog_is_outdated(check, interval_s))
    try:
        yield watch
    finally:
        watch.cancel()


async def _wait_until_catalog_is_outdated(
    require_current: Callable[[], None], interval_s: float
) -> CatalogMismatch | CatalogOutdated:
    while True:
        await asyncio.sleep(interval_s)
        try:
            await asyncio.to_thread(require_current)
        except (CatalogMismatch, CatalogOutdated) as refusal:
            _log.error("this worker ends, because its database is not the catalog any more: %s", refusal)
            return refusal
        except SextonError as error:
            _log.debug("the record log did not say whether the database is the catalog: %s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHttpEndpoints:
    metrics: MetricsEndpoint | None
    readiness: Readiness
    pages: PageRouter


async def run_worker(settings: Settings, queues: Sequence[str], worker_id: str | None) -> None:
    """Serve `queues` until SIGTERM or SIGINT. Then finish running activities and take no new ones.

    Raises:
        InvalidInput: The worker id, a queue, an address, a certificate file or a key file is invalid; a record function
            cannot be imported; or a schedule is encrypted with an unknown key.
        ServiceFailed: A service has no address, and no stack was started in the home. Or Temporal or ZooKeeper does not
            answer. Or ZooKeeper refuses this worker.
        PreconditionFailed: The namespace lacks search attributes.
        WorkerIdTaken: Another live process has this worker id.
        CatalogMismatch: A bucket, the namespace or ZooKeeper's path belongs to another catalog.
        CatalogOutdated: The database is older than its record log, or another database has been rebuilt from the log.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.ENVIRONMENT_VARIABLE))
    configure_log_stream(level=settings.log_level)
    name = check_worker_id(f"{socket.gethostname()}-{os.getpid()}" if worker_id is None else worker_id)
    if not queues or not all(queues):
        raise InvalidInput("queues", expected="at least one, each with a name", found=list(queues))
    ImportedRecordFunctions(settings.functions).load()
    has_metrics = settings.metrics_address != OFF
    buckets = {**HISTOGRAM_BOUNDS_S, **RECORDS_BUCKETS}
    metrics = start_metrics_endpoint(settings.metrics_address, buckets=buckets) if has_metrics else None
    tracing = start_tracing("sexton-worker", traces_dir=settings.traces_dir, runs_workflows=True)
    try:
        client = await connect_client(
            settings,
            identity=name,
            runtime=metrics.runtime if metrics else None,
            plugins=[OpenTelemetryPlugin(add_temporal_spans=True)],
        )
        await workflow_search.require_search_attributes(client)
        await require_readable_schedules(client)
        readiness = Readiness()
        metrics_url = metrics.url if metrics else ""
        endpoints = WorkerHttpEndpoints(
            metrics=metrics, readiness=readiness, pages=create_page_router(readiness, metrics_url)
        )
        add_payload_decode_endpoint(endpoints.pages, get_codec(client), settings)
        async with serve_pages(settings.http_address, endpoints.pages) as url:
            with keep_worker_record(StackHome.at(settings.home), name, metrics_url=metrics_url, http_url=url):
                _log.info("probes and pages at %s, metrics at %s", url or "no address", metrics_url or "no address")
                await _serve_queues(client, settings, queues, name, endpoints)
    finally:
        tracing.shutdown()


async def _serve_queues(
    client: Client, settings: Settings, queues: Sequence[str], name: str, endpoints: WorkerHttpEndpoints
) -> None:
    stop, running = asyncio.Event(), RunningActivityCounter()
    forced_exit = ForcedExitTimer(settings.drain_timeout, running)
    with open_log_store(settings) as log:

        def handle_signal() -> None:
            forced_exit.start()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):  # before this line, these signals end the process at once
            asyncio.get_running_loop().add_signal_handler(number, handle_signal)
        await asyncio.to_thread(mark_or_refuse_primary_and_tiered, log.objects, log.buckets, settings)
        await mark_namespace_as_own(client, await asyncio.to_thread(log.catalog.identities.catalog_id))
        owners = create_zookeeper_or_single_ownership(
            settings,
            log,
            name,
            lambda: running.activities / settings.activity_threads,
            observer=OwnershipTelemetry(
                endpoints.metrics.runtime.metric_meter if endpoints.metrics else MetricMeter.noop
            ),
        )
        ui = WebUiLinks(settings.ui_address, settings.temporal_namespace)
        store = StoreStatusReader(log.catalog, log.records.replication.list_replica_statuses, ui)
        add_status_pages(endpoints.pages, StatusReader(name, store, client, endpoints.readiness, ui))
        worker_set = TemporalWorkerSet(
            client=client, activities=WorkerActivities(log, owners), settings=settings, running=running
        )
        with worker_set.create_workers(queues, name) as workers:
            async with (
                run_in_background(prune_span_files_repeatedly(settings)),
                run_in_background(
                    write_due_buffer_snapshots_repeatedly(log.buffer_snapshots.write_snapshots_and_count_due)
                ),
                run_in_background(release_rebuild_pins_repeatedly(client, RebuildManifests(log.records.log))),
                _publish_gauges(log, endpoints, settings),
                watch_catalog_currency(log, interval_s=settings.records_interval) as outdated,
                _own_bundles_during_block(owners, stop) as ownership_end,
                run_in_background(
                    endpoints.readiness.repeat_checks(
                        list_required_checks(client, settings, log.catalog, workers),
                        make_schedules_check(partial(find_stuck_runs, client)),
                    )
                ),
            ):
                _log.info("serving %s as %s", ", ".join(queues), name)
                ends = [asyncio.create_task(stop.wait()), ownership_end, outdated]
                async with _run_workers_until_first_end(ends, workers, endpoints.readiness):
                    _log.info("draining for at most %s s", settings.drain_timeout)
                    forced_exit.start()
                if outdated.done():
                    raise outdated.result()
        if owners.failure:
            raise owners.failure
    _log.info("drained")


@asynccontextmanager
async def _own_bundles_during_block(owners: WorkerOwnership, stop: asyncio.Event) -> AsyncIterator[asyncio.Task[bool]]:
    """Own bundles while the block runs. The yielded task ends when the worker can never own a bundle again."""
    await _start_ownership_or_stop(owners, stop)
    try:
        yield asyncio.create_task(asyncio.to_thread(owners.stopping.wait))
    finally:
        await asyncio.to_thread(owners.stop)


async def _start_ownership_or_stop(owners: WorkerOwnership, stop: asyncio.Event) -> None:
    """Start ownership. An earlier process with this worker id may delay the start. Return early if `stop` is set."""
    starting = asyncio.create_task(asyncio.to_thread(owners.start))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return
    await asyncio.to_thread(owners.stop)
    with suppress(SextonError):  # an interrupted start is no failure
        await starting


@asynccontextmanager
async def _run_workers_until_first_end(
    ends: Sequence[asyncio.Task[Any]], workers: Sequence[Worker], readiness: Readiness
) -> AsyncIterator[None]:
    """Run the workers until a task of `ends` is done or a worker fails. Then run the block, and drain the workers."""
    running = [asyncio.create_task(worker.run()) for worker in workers]
    readiness.phase = WorkerPhase.SERVING
    await asyncio.wait([*ends, *running], return_when=asyncio.FIRST_COMPLETED)
    readiness.phase = WorkerPhase.DRAINING
    yield
    await asyncio.gather(*(worker.shutdown() for worker in workers))
    await asyncio.gather(*running)


@asynccontextmanager
async def _publish_gauges(log: LogStore, endpoints: WorkerHttpEndpoints, settings: Settings) -> AsyncIterator[None]:
    if endpoints.metrics is None:
        yield
        return
    meter = endpoints.metrics.runtime.metric_meter
    gauges = make_periodic_gauges(meter, log, settings)
    async with (
        run_in_background(gauges.run()),
        run_in_background(publish_readiness_repeatedly(meter, endpoints.readiness)),
    ):
        yield


FORCED_EXIT_DELAY_S: Final = 10.0
"""Time between the end of `drain_timeout` and the forced exit of a worker."""

_LOG_TIMEOUT_S: Final = 1.0


class ForcedExitTimer:
    """Timer that ends the process with code 1 if a drain takes too long, for example because a request hangs.

    An exit is safe at any moment: every effect may be repeated, and Temporal gives the activities to other workers.
    """

    def __init__(
        self, drain_timeout_s: float, running: RunningActivityCounter, *, delay_s: float = FORCED_EXIT_DELAY_S
    ) -> None:
        self._timer = threading.Timer(drain_timeout_s + delay_s, _log_and_exit_process, [running])
        self._timer.daemon = True
        self._is_started = False

    def start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._timer.start()


def _log_and_exit_process(running: RunningActivityCounter) -> None:
    def log_activities() -> None:
        _log.error("%d activities did not end, or a request hangs: they are left to other workers", running.activities)
        logging.shutdown()

    try:
        thread = threading.Thread(target=log_activities, daemon=True)
        thread.start()
        thread.join(_LOG_TIMEOUT_S)  # bounded, because a log whose reader has stopped can be neither written nor closed
    finally:
        os._exit(1)
