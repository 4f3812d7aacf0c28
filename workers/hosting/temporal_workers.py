"""Temporal workers of one process, with the workflows and activities of each task queue."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.worker import Worker, WorkerDeploymentConfig

from activities.owner_routing import owner_task_queue
from workers.assembly.activities import WorkerActivities
from workers.build_identity import own_build
from workers.client.data_converter import get_codec
from workers.hosting.error_and_subject_interceptors import (
    ActivityErrorAndSubjectInterceptor,
    RunningActivityCounter,
    WorkflowErrorAndSubjectInterceptor,
)
from workers.hosting.workflow_input_checks import COMMAND_BY_WORKFLOW, InputCheckingRunner
from workers.settings import Settings
from workflows.delayed.build_delayed_index import BuildDelayedIndex
from workflows.delayed.merge_buckets import MergeBuckets
from workflows.delayed.seal_buckets import SealBuckets
from workflows.deletion.delete_ledger import DeleteLedger
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.delete_topic import DeleteTopic
from workflows.deletion.sweep_deletions import SweepDeletions
from workflows.deletion.trim_topic import TrimTopic
from workflows.deletion.trim_topics import TrimTopics
from workflows.offload.offload_ledger import OffloadLedger
from workflows.offload.offload_topic import OffloadTopic
from workflows.pulsar.abort_transactions import AbortTransactions
from workflows.pulsar.apply_pulsar import ApplyPulsar
from workflows.pulsar.plan_pulsar import PlanPulsar
from workflows.pulsar.undo_pulsar import UndoPulsar
from workflows.reconciliation.apply_orphans import ApplyOrphans
from workflows.reconciliation.reconcile_orphans import ReconcileOrphans
from workflows.reconciliation.scrub_ledgers import ScrubLedgers
from workflows.records.defragment_records import DefragmentRecords
from workflows.records.end_records import EndRecords
from workflows.records.flush_records import FlushRecords
from workflows.records.follow_records import FollowRecords
from workflows.records.raid_tombstones import RaidTombstones
from workflows.records.rebuild_catalog import RebuildCatalog
from workflows.records.replicate_records import ReplicateRecords
from workflows.records.sweep_records import SweepRecords
from workflows.task_queues import bulk_queue, records_queue, transactions_queue, uploads_queue
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
    ScrubLedgers,
    PlanPulsar,
    ApplyPulsar,
    UndoPulsar,
    AbortTransactions,
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
    EndRecords,
    RebuildCatalog,
    FollowRecords,
]

UNREADABLE_INPUT_ERRORS: tuple[type[BaseException], ...] = (ValidationError, OverflowError)
"""Errors of unreadable input. They end the workflow, because retries of the workflow task would never succeed."""

_STICKY_TIMEOUT = timedelta(seconds=5)  # how long a workflow task waits for a killed worker
_MAX_RECORD_ACTIVITIES: Final = 6
"""Maximum number of concurrent activities on the record log: one of each kind, and some in reserve."""


def make_workflow_runner(client: Client, *, versioned: bool = False) -> InputCheckingRunner:
    encrypts = bool(get_codec(client).first_key_name)
    return InputCheckingRunner(versioned=versioned, encrypts=encrypts, command_by_workflow=COMMAND_BY_WORKFLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalWorkerSet:
    client: Client
    activities: WorkerActivities
    settings: Settings
    running: RunningActivityCounter

    @contextmanager
    def create_workers(self, queues: Sequence[str], worker_id: str) -> Iterator[list[Worker]]:
        """Yield all workers, which the caller must run. Their thread pools close when the block ends.

        Each queue has one worker for all workflows and activities, and these additional workers:

        - uploads: an upload takes minutes, and deletions must not wait for it;
        - bulk jobs: one runs at a time, because a bulk job may use the whole machine;
        - transaction coordinators and record jobs: these activities occupy threads while they wait for work.

        One more worker serves the queue of this process as a bundle owner, without Worker Versioning. If versioned,
        each such queue would count towards the 100 queues of a build, and further bundle owners would get no work.
        """
        settings, activities, queue_count = self.settings, self.activities, len(queues)
        versioned = own_build(settings) is not None
        with ExitStack() as stack:

            def add_queue_workers(
                name: str,
                queues: Iterable[str],
                hosted: Sequence[Callable[..., Any]],
                *,
                threads: int,
                max_activities: int | None = None,  # of each worker; None: as many as there are threads
                **options: Any,  # noqa: ANN401
            ) -> list[Worker]:
                pool = stack.enter_context(ThreadPoolExecutor(threads, name))
                return [
                    self._create_worker(queue, pool, max_activities or threads, activities=hosted, **options)
                    for queue in queues
                ]

            yield [
                *add_queue_workers(
                    "activity",
                    queues,
                    activities.all(),
                    threads=settings.activity_threads,
                    workflows=WORKFLOWS,
                    workflow_runner=make_workflow_runner(self.client, versioned=versioned),
                    workflow_failure_exception_types=UNREADABLE_INPUT_ERRORS,
                    sticky_queue_schedule_to_start_timeout=_STICKY_TIMEOUT,
                ),
                *add_queue_workers(
                    "upload",
                    map(uploads_queue, queues),
                    activities.list_upload_activities(),
                    threads=settings.upload_threads,
                ),
                *add_queue_workers(
                    "bulk",
                    map(bulk_queue, queues),
                    activities.list_bulk_activities(),
                    threads=queue_count,
                    max_activities=1,
                ),
                *add_queue_workers(
                    "transactions",
                    map(transactions_queue, queues),
                    activities.list_transaction_activities(),
                    threads=settings.transaction_coordinators,
                ),
                *add_queue_workers(
                    "records",
                    map(records_queue, queues),
                    activities.list_record_log_activities(),
                    threads=_MAX_RECORD_ACTIVITIES * queue_count,
                    max_activities=_MAX_RECORD_ACTIVITIES,
                ),
                *add_queue_workers(
                    "owner",
                    [owner_task_queue(worker_id)],
                    activities.list_owner_activities(),
                    threads=settings.activity_threads,
                    versioned=False,
                ),
            ]

    def _create_worker(
        self,
        queue: str,
        threads: ThreadPoolExecutor,
        max_activities: int,
        *,
        versioned: bool = True,
        **options: Any,  # noqa: ANN401
    ) -> Worker:
        version = own_build(self.settings) if versioned else None
        return Worker(
            self.client,
            task_queue=queue,
            activity_executor=threads,
            max_concurrent_activities=max_activities,
            graceful_shutdown_timeout=timedelta(seconds=self.settings.drain_timeout),
            deployment_config=WorkerDeploymentConfig(version, use_worker_versioning=True) if version else None,
            interceptors=[WorkflowErrorAndSubjectInterceptor(), ActivityErrorAndSubjectInterceptor(), self.running],
            **options,
        )
