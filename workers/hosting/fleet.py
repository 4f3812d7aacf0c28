"""A worker process: workflows and activities on task queues, until SIGTERM; then it drains."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin
from temporalio.worker import Worker

from activities.dispatch import owner_queue
from activities.records.metrics import BUCKETS as OF_RECORDS
from activities.transactions.metrics import BUCKETS
from infra.stack.home import StackHome
from infra.stack.workers import recorded
from infra.telemetry.logs import start_logs
from infra.telemetry.metrics import Metrics, start_metrics
from infra.telemetry.tracing import start_tracing
from logstore import failpoints
from logstore.errors import InvalidInput, SextonError
from logstore.ownership import checked_worker_id
from workers.assembly.activities import Activities, activities_over
from workers.assembly.adapters import open_log
from workers.assembly.log import LogStore
from workers.client import search_attributes
from workers.client.connections import connect_client
from workers.hosting.currency_watch import watched
from workers.hosting.gauges import CatalogGauges, DelayedGauges, DeletionGauges, PlanGauges, TransactionGauges
from workers.hosting.inputs import CheckedRunner
from workers.hosting.interceptors import ActivityEdge, RunningActivities
from workers.hosting.ownership_telemetry import OwnershipTelemetry
from workers.hosting.owning import Ownership, new_ownership
from workers.hosting.record_gauges import RecordGauges, ReplicaGauges
from workers.hosting.snapshot_upkeep import write_snapshots
from workers.hosting.trace_upkeep import alongside, prune_traces
from workers.hosting.traced_runs import WorkflowEdge
from workers.identity import namespace
from workers.identity.stores import compare_buckets
from workers.settings import OFF, Settings
from workflows.delayed.build_delayed_index import BuildDelayedIndex
from workflows.delayed.merge_buckets import MergeBuckets
from workflows.delayed.seal_buckets import SealBuckets
from workflows.deletion.delete_ledger import DeleteLedger
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.delete_topic import DeleteTopic
from workflows.deletion.sweep_deletions import SweepDeletions
from workflows.deletion.trim_topic import TrimTopic
from workflows.deletion.trim_topics import TrimTopics
from workflows.limits import bulk_queue, records_queue, transactions_queue, uploads_queue
from workflows.offload.offload_ledger import OffloadLedger
from workflows.offload.offload_topic import OffloadTopic
from workflows.reconciliation.apply_orphans import ApplyOrphans
from workflows.reconciliation.reconcile_orphans import ReconcileOrphans
from workflows.records.defragment_records import DefragmentRecords
from workflows.records.flush_records import FlushRecords
from workflows.records.raid_tombstones import RaidTombstones
from workflows.records.rebuild_catalog import RebuildCatalog
from workflows.records.replicate_records import ReplicateRecords
from workflows.records.sweep_records import SweepRecords
from workflows.transactions.broadcast_transaction import BroadcastTransaction
from workflows.transactions.build_transaction_snapshots import BuildTransactionSnapshots
from workflows.transactions.sweep_transactions import SweepTransactions
from workflows.transactions.transaction_coordinator import TransactionCoordinator

WORKFLOWS = [
    TrimTopic,
    TrimTopics,
    DeleteTopic,
    DeleteLedgers,
    DeleteLedger,
    SweepDeletions,
    OffloadTopic,
    OffloadLedger,
    ReconcileOrphans,
    ApplyOrphans,
    TransactionCoordinator,
    BroadcastTransaction,
    SweepTransactions,
    BuildTransactionSnapshots,
    SealBuckets,
    MergeBuckets,
    BuildDelayedIndex,
    FlushRecords,
    SweepRecords,
    DefragmentRecords,
    RaidTombstones,
    ReplicateRecords,
    RebuildCatalog,
]

FAILURES: tuple[type[BaseException], ...] = (ValidationError, OverflowError)
"""Input that is no JSON of its type: the workflow fails, where it would else try to read it for ever."""

_REMEMBERED = timedelta(seconds=5)  # so long a killed worker's workflows wait for the one that had them in memory
_RECORDS = 6  # activities on the record log at once: a flush that waits, one of each other kind, and room
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSet:
    """What the Temporal workers of one process have in common."""

    client: Client
    activities: Activities
    settings: Settings
    in_hand: RunningActivities

    def shared(self, queue: str, threads: ThreadPoolExecutor) -> Worker:
        """The worker of one queue, with every workflow and activity of this build."""
        return self._worker(
            queue,
            threads,
            self.settings.activity_threads,
            activities=self.activities.all(),
            workflows=WORKFLOWS,
            workflow_runner=CheckedRunner(),
            workflow_failure_exception_types=FAILURES,
            sticky_queue_schedule_to_start_timeout=_REMEMBERED,
        )

    def uploader(self, queue: str, threads: ThreadPoolExecutor) -> Worker:
        """The worker for the uploads of `queue`: they take minutes, and a deletion must not wait for one to end."""
        activities = self.activities.of_uploads()
        return self._worker(uploads_queue(queue), threads, self.settings.upload_threads, activities=activities)

    def bulk(self, queue: str, threads: ThreadPoolExecutor) -> Worker:
        """The worker for the bulk jobs of `queue`, one at a time: each may use the whole machine."""
        return self._worker(bulk_queue(queue), threads, 1, activities=self.activities.of_bulk())

    def transactions(self, queue: str, threads: ThreadPoolExecutor) -> Worker:
        """The worker for coordinators and broadcasts of `queue`: a coordinator holds its thread while it lingers."""
        activities = self.activities.of_transactions()
        return self._worker(
            transactions_queue(queue), threads, self.settings.transaction_coordinators, activities=activities
        )

    def records(self, queue: str, threads: ThreadPoolExecutor) -> Worker:
        """The worker for the record log of `queue`: a flush holds its thread while it waits for changes."""
        return self._worker(records_queue(queue), threads, _RECORDS, activities=self.activities.of_records())

    def owner(self, worker_id: str, threads: ThreadPoolExecutor) -> Worker:
        """The worker for what this process owns: activities alone, and never versioned.

        Versioned ones stop getting tasks past 100 queues, and a roll-out would leave owners without their work.
        """
        activities = self.activities.of_owners()
        return self._worker(owner_queue(worker_id), threads, self.settings.activity_threads, activities=activities)

    def _worker(self, queue: str, threads: ThreadPoolExecutor, at_once: int, **rest: Any) -> Worker:  # noqa: ANN401
        return Worker(
            self.client,
            task_queue=queue,
            activity_executor=threads,
            max_concurrent_activities=at_once,
            graceful_shutdown_timeout=timedelta(seconds=self.settings.drain_timeout),
            interceptors=[WorkflowEdge(), ActivityEdge(), self.in_hand],
            **rest,
        )


async def run_worker(settings: Settings, queues: Sequence[str], worker_id: str | None) -> None:
    """Serve `queues` until SIGTERM or SIGINT, then drain: work in hand ends, none is taken.

    Raises:
        InvalidInput: A worker id that cannot be one, no queue, a queue without a name, or nothing can listen at the
            address for metrics.
        ServiceFailed: No stack is known, or ZooKeeper cannot be reached or refuses us.
        PreconditionFailed: The namespace lacks our search attributes.
        WorkerIdTaken: Another process lives under this worker id.
        CatalogMismatch: Buckets, namespace or ZooKeeper's path are not this catalog's.
        CatalogOutdated: The database is older than its record log, or another one was rebuilt from it meanwhile.
    """
    failpoints.arm_from_environment(os.environ.get(failpoints.VARIABLE))
    start_logs(level=settings.log_level)
    name = checked_worker_id(f"{socket.gethostname()}-{os.getpid()}" if worker_id is None else worker_id)
    if not queues or not all(queues):
        raise InvalidInput("queues", expected="at least one, each with a name", found=list(queues))
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
    in_hand = RunningActivities()
    with (
        open_log(settings) as log,
        ThreadPoolExecutor(settings.activity_threads, "activity") as threads,
        ThreadPoolExecutor(settings.activity_threads, "owner") as owner_threads,
        ThreadPoolExecutor(settings.upload_threads, "upload") as upload_threads,
        ThreadPoolExecutor(len(queues), "bulk") as bulk_threads,
        ThreadPoolExecutor(settings.transaction_coordinators, "transactions") as transaction_threads,
        ThreadPoolExecutor(_RECORDS * len(queues), "records") as record_threads,
    ):
        await asyncio.to_thread(compare_buckets, log.objects, log.buckets, settings)
        await namespace.require(client, await asyncio.to_thread(log.catalog.identities.catalog_id))
        owners = new_ownership(
            settings,
            log,
            name,
            lambda: in_hand.activities / settings.activity_threads,
            events=OwnershipTelemetry(metrics.runtime.metric_meter if metrics else MetricMeter.noop),
        )
        crew = WorkerSet(client=client, activities=activities_over(log, owners), settings=settings, in_hand=in_hand)
        workers = [crew.shared(queue, threads) for queue in queues]
        workers += [crew.uploader(queue, upload_threads) for queue in queues]
        workers += [crew.bulk(queue, bulk_threads) for queue in queues]
        workers += [crew.transactions(queue, transaction_threads) for queue in queues]
        workers += [crew.records(queue, record_threads) for queue in queues]
        workers.append(crew.owner(name, owner_threads))
        async with (
            alongside(prune_traces(settings)),
            alongside(write_snapshots(log.buffer_snapshots.write_due)),
            _gauges(log, metrics),
            watched(log, every_s=settings.records_interval) as replaced,
            _taking_part(owners, stop) as gave_up,
        ):
            _log.info(
                "serving %s as %s, metrics at %s", ", ".join(queues), name, metrics.url if metrics else "no address"
            )
            await _until([asyncio.create_task(stop.wait()), gave_up, replaced], workers, settings)
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


async def _until(ends: Sequence[asyncio.Task[Any]], workers: Sequence[Worker], settings: Settings) -> None:
    """Run the workers until one of `ends`, or the failure of one of the workers; then drain."""
    running = [asyncio.create_task(worker.run()) for worker in workers]
    await asyncio.wait([*ends, *running], return_when=asyncio.FIRST_COMPLETED)
    _log.info("draining for at most %s s", settings.drain_timeout)
    await asyncio.gather(*(worker.shutdown() for worker in workers))
    await asyncio.gather(*running)


def _gauges(log: LogStore, metrics: Metrics | None) -> AbstractAsyncContextManager[None]:
    """Keep the gauges fresh while the block runs, if anybody can read them."""
    if metrics is None:
        return nullcontext()
    meter, catalog = metrics.runtime.metric_meter, log.catalog
    deletions, plans = DeletionGauges(meter, catalog.deletions.inflight), PlanGauges(meter, catalog.reconciliation.runs)
    transactions = TransactionGauges(meter, catalog.transactions.counts)
    delayed = DelayedGauges(meter, catalog.delayed.counts, lambda: log.delayed.snapshots.memory_bytes)
    records = RecordGauges(meter, catalog.records.state, catalog.tombstones.counts)
    replicas = ReplicaGauges(meter, log.records.replication)
    reads = (deletions.read, plans.read, transactions.read, delayed.read, records.read, replicas.read)
    return alongside(CatalogGauges(*reads).run())
