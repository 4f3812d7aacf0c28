"""The Temporal workers of one process: which workflows and activities each of its task queues gets."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from activities.dispatch import owner_queue
from workers.assembly.activities import Activities
from workers.hosting.inputs import CheckedRunner
from workers.hosting.interceptors import ActivityEdge, RunningActivities
from workers.hosting.traced_runs import WorkflowEdge
from workers.identity.builds import own_build
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
from workflows.limits import bulk_queue, records_queue, transactions_queue, uploads_queue
from workflows.offload.offload_ledger import OffloadLedger
from workflows.offload.offload_topic import OffloadTopic
from workflows.reconciliation.apply_orphans import ApplyOrphans
from workflows.reconciliation.reconcile_orphans import ReconcileOrphans
from workflows.records.defragment_records import DefragmentRecords
from workflows.records.end_records import EndRecords
from workflows.records.flush_records import FlushRecords
from workflows.records.follow_records import FollowRecords
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
    EndRecords,
    RebuildCatalog,
    FollowRecords,
]

FAILURES: tuple[type[BaseException], ...] = (ValidationError, OverflowError)
"""Input that is no JSON of its type: the workflow fails, where it would otherwise try to read it for ever."""

_REMEMBERED = timedelta(seconds=5)  # so long a killed worker's workflows wait for the one that had them in memory
RECORDS_AT_ONCE: Final = 6
"""Activities on the record log at once: a flush that waits, one of each other kind, and room."""


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
            workflow_runner=CheckedRunner(versioned=self._version is not None),
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
        return self._worker(records_queue(queue), threads, RECORDS_AT_ONCE, activities=self.activities.of_records())

    def owner(self, worker_id: str, threads: ThreadPoolExecutor) -> Worker:
        """The worker for what this process owns: activities alone, and never versioned.

        Versioned ones stop getting tasks past 100 queues, and a roll-out would leave owners without their work.
        """
        activities = self.activities.of_owners()
        return self._worker(
            owner_queue(worker_id), threads, self.settings.activity_threads, versioned=False, activities=activities
        )

    @property
    def _version(self) -> WorkerDeploymentVersion | None:
        return own_build(self.settings)

    def _worker(
        self,
        queue: str,
        threads: ThreadPoolExecutor,
        at_once: int,
        *,
        versioned: bool = True,
        **rest: Any,  # noqa: ANN401
    ) -> Worker:
        version = self._version if versioned else None
        return Worker(
            self.client,
            task_queue=queue,
            activity_executor=threads,
            max_concurrent_activities=at_once,
            graceful_shutdown_timeout=timedelta(seconds=self.settings.drain_timeout),
            deployment_config=WorkerDeploymentConfig(version, use_worker_versioning=True) if version else None,
            interceptors=[WorkflowEdge(), ActivityEdge(), self.in_hand],
            **rest,
        )
