"""A worker process: workflows and activities on task queues, until SIGTERM; then it drains."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import timedelta

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.worker import Worker

from infra.stack.home import StackHome
from infra.stack.workers import recorded
from infra.telemetry import start_logs, start_tracing
from infra.telemetry.metrics import Metrics, start_metrics
from logstore import failpoints
from workers import search_attributes
from workers.connections import connect_client
from workers.gauges import DeletionGauges
from workers.interceptors import ActivityEdge
from workers.requests import uploads_queue
from workers.settings import OFF, Settings
from workers.wiring import LogStore, all_activities, open_log, upload_activities
from workflows.delete_ledger import DeleteLedger
from workflows.delete_ledgers import DeleteLedgers
from workflows.delete_topic import DeleteTopic
from workflows.offload_ledger import OffloadLedger
from workflows.offload_topic import OffloadTopic
from workflows.sweep_deletions import SweepDeletions
from workflows.trim_topic import TrimTopic
from workflows.trim_topics import TrimTopics

WORKFLOWS = [
    TrimTopic,
    TrimTopics,
    DeleteTopic,
    DeleteLedgers,
    DeleteLedger,
    SweepDeletions,
    OffloadTopic,
    OffloadLedger,
]

FAILURES: tuple[type[BaseException], ...] = (ValidationError, OverflowError)
"""Input that is no JSON of its type: the workflow fails, where it would else try to read it for ever."""

_log = logging.getLogger(__name__)


def new_worker(client: Client, log: LogStore, settings: Settings, *, queue: str, threads: ThreadPoolExecutor) -> Worker:
    """A Temporal worker on one queue, with every workflow and activity of this build."""
    return Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=all_activities(log),
        activity_executor=threads,
        workflow_failure_exception_types=FAILURES,
        max_concurrent_activities=settings.activity_threads,
        graceful_shutdown_timeout=timedelta(seconds=settings.drain_timeout),
        interceptors=[ActivityEdge()],
    )


def new_uploader(
    client: Client, log: LogStore, settings: Settings, *, queue: str, threads: ThreadPoolExecutor
) -> Worker:
    """A Temporal worker for the uploads of `queue`: they take minutes, and a deletion must not wait for one to end."""
    return Worker(
        client,
        task_queue=uploads_queue(queue),
        activities=upload_activities(log),
        activity_executor=threads,
        max_concurrent_activities=settings.upload_threads,
        graceful_shutdown_timeout=timedelta(seconds=settings.drain_timeout),
        interceptors=[ActivityEdge()],
    )


async def run_worker(settings: Settings, queues: Sequence[str], worker_id: str | None) -> None:
    """Serve `queues` until SIGTERM or SIGINT, then drain: work in hand ends, none is taken.

    Raises:
        InvalidInput: Nothing can listen at the address for metrics.
        ServiceFailed: No stack is known.
        PreconditionFailed: The namespace lacks our search attributes.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.VARIABLE))
    start_logs(level=settings.log_level)
    name = worker_id or f"{socket.gethostname()}-{os.getpid()}"
    metrics = start_metrics(settings.metrics_address) if settings.metrics_address != OFF else None
    tracing = start_tracing("sexton-worker", traces_dir=settings.home / "traces")
    try:
        client = await connect_client(settings, identity=name, runtime=metrics.runtime if metrics else None)
        await search_attributes.require(client)
        with ExitStack() as while_serving:
            if metrics:
                while_serving.enter_context(recorded(StackHome.at(settings.home), name, metrics.url))
            await _serve(client, settings, queues, name, metrics)
    finally:
        tracing.shutdown()


async def _serve(client: Client, settings: Settings, queues: Sequence[str], name: str, metrics: Metrics | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with (
        open_log(settings) as log,
        ThreadPoolExecutor(settings.activity_threads, "activity") as threads,
        ThreadPoolExecutor(settings.upload_threads, "upload") as upload_threads,
    ):
        workers = [new_worker(client, log, settings, queue=queue, threads=threads) for queue in queues]
        workers += [new_uploader(client, log, settings, queue=queue, threads=upload_threads) for queue in queues]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        _log.info("serving %s as %s, metrics at %s", ", ".join(queues), name, metrics.url if metrics else "no address")
        stopped = asyncio.create_task(stop.wait())
        async with _gauges(log, metrics):
            await asyncio.wait([stopped, *running], return_when=asyncio.FIRST_COMPLETED)  # one that fails ends all
            _log.info("draining for at most %s s", settings.drain_timeout)
            await asyncio.gather(*(worker.shutdown() for worker in workers))
            await asyncio.gather(*running)
    _log.info("drained")


@asynccontextmanager
async def _gauges(log: LogStore, metrics: Metrics | None) -> AsyncIterator[None]:
    """Keep the gauges fresh while the block runs, if anybody can read them."""
    if metrics is None:
        yield
        return
    reading = asyncio.create_task(DeletionGauges(metrics.runtime.metric_meter, log.catalog.deletions).run())
    try:
        yield
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
