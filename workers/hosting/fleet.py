"""A worker process: workflows and activities on task queues, until SIGTERM; then it drains."""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin
from temporalio.worker import Worker

from activities.records.metrics import BUCKETS as OF_RECORDS
from activities.transactions.coordination import BUCKETS
from infra.stack.home import StackHome
from infra.stack.workers import record_worker
from infra.telemetry.endpoints import MetricsEndpoint, start_metrics
from infra.telemetry.logs import start_logs
from infra.telemetry.tracing import start_tracing
from logstore import failpoints
from logstore.errors import InvalidInput, SextonError
from logstore.ownership import check_worker_id
from logstore.records.services.cold_start import ColdStart
from workers.assembly.activities import activities_over
from workers.assembly.adapters import open_log
from workers.assembly.log import LogStore
from workers.assembly.records import NamedFunctions
from workers.client import visibility
from workers.client.connections import connect_client
from workers.client.payload_codec import get_codec
from workers.client.scheduled_runs import find_stuck_runs
from workers.client.schedules import require_readable_schedules
from workers.hosting.codec_page import add_codec
from workers.hosting.gauges import catalog_gauges, show_readiness
from workers.hosting.http import Pages, new_pages, serving
from workers.hosting.interceptors import RunningActivities
from workers.hosting.ownership_telemetry import OwnershipTelemetry
from workers.hosting.owning import Ownership, new_ownership
from workers.hosting.readiness import Phase, Readiness, check_of_schedules, checks_of
from workers.hosting.status_page import StatusDocument, add_status
from workers.hosting.store_status import StoreStatus, WebUi
from workers.hosting.upkeep import alongside, prune_traces, watch_rebuild_pins, watched, write_snapshots
from workers.hosting.worker_sets import WorkerSet
from workers.identity import compare_buckets, require_namespace
from workers.settings import OFF, Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The face of one process: metrics, probes and pages."""

    metrics: MetricsEndpoint | None
    readiness: Readiness
    pages: Pages


async def run_worker(settings: Settings, queues: Sequence[str], worker_id: str | None) -> None:
    """Serve `queues` until SIGTERM or SIGINT, then drain: work in hand ends, none is taken.

    Raises:
        InvalidInput: A worker id that cannot be one, no queue, a queue without a name, a function over records that
            cannot be imported, nothing can listen at the address for metrics or for pages, files of certificates
            or keys cannot be used, or a schedule is encrypted by a key that is not ours.
        ServiceFailed: No stack is known, or ZooKeeper cannot be reached or refuses us.
        PreconditionFailed: The namespace lacks our search attributes.
        WorkerIdTaken: Another process lives under this worker id.
        CatalogMismatch: Buckets, namespace or ZooKeeper's path are not this catalog's.
        CatalogOutdated: The database is older than its record log, or another one was rebuilt from it meanwhile.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.VARIABLE))
    start_logs(level=settings.log_level)
    name = check_worker_id(f"{socket.gethostname()}-{os.getpid()}" if worker_id is None else worker_id)
    if not queues or not all(queues):
        raise InvalidInput("queues", expected="at least one, each with a name", found=list(queues))
    NamedFunctions(settings.functions).load()
    wanted = settings.metrics_address != OFF
    metrics = start_metrics(settings.metrics_address, buckets={**BUCKETS, **OF_RECORDS}) if wanted else None
    tracing = start_tracing("sexton-worker", traces_dir=settings.traces_dir, workflows=True)
    try:
        client = await connect_client(
            settings,
            identity=name,
            runtime=metrics.runtime if metrics else None,
            plugins=[OpenTelemetryPlugin(add_temporal_spans=True)],
        )
        await visibility.require_search_attributes(client)
        await require_readable_schedules(client)
        readiness = Readiness()
        metrics_url = metrics.url if metrics else ""
        shown = Shown(metrics=metrics, readiness=readiness, pages=new_pages(readiness, metrics_url))
        add_codec(shown.pages, get_codec(client), settings)
        async with serving(settings.http_address, shown.pages) as url:
            with record_worker(StackHome.at(settings.home), name, metrics_url=metrics_url, http_url=url):
                _log.info("probes and pages at %s, metrics at %s", url or "no address", metrics_url or "no address")
                await _serve(client, settings, queues, name, shown)
    finally:
        tracing.shutdown()


async def _serve(client: Client, settings: Settings, queues: Sequence[str], name: str, shown: Shown) -> None:
    stop, in_hand = asyncio.Event(), RunningActivities()
    end = LastMoment(settings.drain_timeout, in_hand)
    with open_log(settings) as log:

        def told() -> None:
            end.begin()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):  # until now they end the process at once
            asyncio.get_running_loop().add_signal_handler(number, told)
        await asyncio.to_thread(compare_buckets, log.objects, log.buckets, settings)
        await require_namespace(client, await asyncio.to_thread(log.catalog.identities.catalog_id))
        owners = new_ownership(
            settings,
            log,
            name,
            lambda: in_hand.activities / settings.activity_threads,
            events=OwnershipTelemetry(shown.metrics.runtime.metric_meter if shown.metrics else MetricMeter.noop),
        )
        ui = WebUi(settings.ui_address, settings.temporal_namespace)
        store = StoreStatus(log.catalog, log.records.replication.standings, ui)
        add_status(shown.pages, StatusDocument(name, store, client, shown.readiness, ui))
        crew = WorkerSet(client=client, activities=activities_over(log, owners), settings=settings, in_hand=in_hand)
        with crew.workers(queues, name) as workers:
            async with (
                alongside(prune_traces(settings)),
                alongside(write_snapshots(log.buffer_snapshots.write_due)),
                alongside(watch_rebuild_pins(client, ColdStart(log.records.log))),
                _gauges(log, shown, settings),
                watched(log, every_s=settings.records_interval) as replaced,
                _taking_part(owners, stop) as abandon_upload,
                alongside(
                    shown.readiness.watch(
                        checks_of(client, settings, log.catalog, workers),
                        check_of_schedules(partial(find_stuck_runs, client)),
                    )
                ),
            ):
                _log.info("serving %s as %s", ", ".join(queues), name)
                ends = [asyncio.create_task(stop.wait()), abandon_upload, replaced]
                async with _until(ends, workers, shown.readiness):
                    _log.info("draining for at most %s s", settings.drain_timeout)
                    end.begin()
                if replaced.done():
                    raise replaced.result()
        if owners.failure:
            raise owners.failure
    _log.info("drained")


@asynccontextmanager
async def _taking_part(owners: Ownership, stop: asyncio.Event) -> AsyncIterator[asyncio.Task[bool]]:
    """Own bundles while the block runs; what it is given ends when this worker owns nothing and never will again."""
    await _joined(owners, stop)
    try:
        yield asyncio.create_task(asyncio.to_thread(owners.stopping.wait))
    finally:
        await asyncio.to_thread(owners.stop)


async def _joined(owners: Ownership, stop: asyncio.Event) -> None:
    """Join, unless told to end first: an earlier process of this worker's id is waited for, and writes of others."""
    joining = asyncio.create_task(asyncio.to_thread(owners.start))
    told = asyncio.create_task(stop.wait())
    await asyncio.wait([joining, told], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if joining.done():
        await joining
        return
    await asyncio.to_thread(owners.stop)
    with suppress(SextonError):  # that it could not join is no failure any more
        await joining


@asynccontextmanager
async def _until(
    ends: Sequence[asyncio.Task[Any]], workers: Sequence[Worker], readiness: Readiness
) -> AsyncIterator[None]:
    """Run the workers until one of `ends`, or the failure of one of them; the block is what comes before they drain."""
    running = [asyncio.create_task(worker.run()) for worker in workers]
    readiness.phase = Phase.SERVING
    await asyncio.wait([*ends, *running], return_when=asyncio.FIRST_COMPLETED)
    readiness.phase = Phase.DRAINING
    yield
    await asyncio.gather(*(worker.shutdown() for worker in workers))
    await asyncio.gather(*running)


@asynccontextmanager
async def _gauges(log: LogStore, shown: Shown, settings: Settings) -> AsyncIterator[None]:
    """Keep the gauges fresh while the block runs, if they can be read."""
    if shown.metrics is None:
        yield
        return
    meter = shown.metrics.runtime.metric_meter
    gauges = catalog_gauges(meter, log, settings)
    async with alongside(gauges.run()), alongside(show_readiness(meter, shown.readiness)):
        yield


LEAVE_S: Final = 10.0
"""So long after `drain_timeout` a worker ends at the latest, in seconds."""

_TOLD_WITHIN_S: Final = 1.0


class LastMoment:
    """Ends the process with code 1 where it takes longer to end by itself than a drain may.

    From the signal on the worker is not ready and takes no task. For `drain_timeout` what it has in hand goes on. Then
    it is cancelled, and stops after the request or the transaction in hand. A request that hangs cannot be stopped, so
    after `LEAVE_S` more the process ends all the same, as if it were killed: which is safe at any moment, because every
    effect may be repeated, and Temporal gives the activity to another worker once its heartbeat is missed. That holds
    from the signal to the end of the process: also for a worker that was still starting, and for requests of no
    activity, such as a look at a bucket, for whose threads Python waits at its own end.
    """

    def __init__(self, drain_timeout_s: float, in_hand: RunningActivities, *, leave_s: float = LEAVE_S) -> None:
        """Count from nothing yet; `leave_s` is for tests."""
        self._timer = threading.Timer(drain_timeout_s + leave_s, _leave, [in_hand])
        self._timer.daemon = True
        self._begun = False

    def begin(self) -> None:
        """Count from now on; it was told before, or not. Nothing takes it back."""
        if not self._begun:
            self._begun = True
            self._timer.start()


def _leave(in_hand: RunningActivities) -> None:
    try:
        telling = threading.Thread(target=_tell, args=[in_hand], daemon=True)
        telling.start()
        telling.join(_TOLD_WITHIN_S)  # a log that no reader takes lines from any more can neither be written nor closed
    finally:
        os._exit(1)


def _tell(in_hand: RunningActivities) -> None:
    _log.error("%d activities did not end, or a request hangs: they are left to other workers", in_hand.activities)
    logging.shutdown()
