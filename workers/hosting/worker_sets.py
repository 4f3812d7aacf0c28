"""The Temporal workers of one process: which workflows and activities each of its task queues gets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError
from temporalio.client import Client
from temporalio.worker import Worker, WorkerDeploymentConfig

from activities.dispatch import owner_queue
from workers.assembly.activities import Activities
from workers.client.payload_codec import get_codec
from workers.hosting.inputs import COMMAND_BY_WORKFLOW, CheckedRunner
from workers.hosting.interceptors import ActivityEdge, RunningActivities, WorkflowEdge
from workers.identity import own_build
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
from workflows.reconciliation.scrub_ledgers import ScrubLedgers
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
    ScrubLedgers,
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

Hosted = Sequence[Callable[..., Any]]

_REMEMBERED = timedelta(seconds=5)  # so long a killed worker's workflows wait for the one that had them in memory
_RECORDS_AT_ONCE: Final = 6
"""Activities on the record log at once: a flush that waits, one of each other kind, and room."""


def workflow_runner(client: Client, *, versioned: bool = False) -> CheckedRunner:
    """Return the runner of a worker that serves the common queue with this client."""
    encrypts = bool(get_codec(client).first_key_name)
    return CheckedRunner(versioned=versioned, encrypts=encrypts, command_by_workflow=COMMAND_BY_WORKFLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSet:
    """The common parts of the Temporal workers of one process."""

    client: Client
    activities: Activities
    settings: Settings
    in_hand: RunningActivities

    @contextmanager
    def workers(self, queues: Sequence[str], worker_id: str) -> Iterator[list[Worker]]:
        """All of them, not running yet, with their threads, which end with the block.

        Each queue has one for every workflow and activity. Beside it uploads have one of their own, because they take
        minutes and a deletion must not wait for one; bulk jobs, one at a time, because each may use the whole machine;
        coordinators and flushes, which hold their threads while they wait for work. The last one is for what this
        process owns: activities alone, and never versioned, because versioned ones stop getting tasks past 100 queues
        and a roll-out would leave owners without their work.
        """
        given, does, many = self.settings, self.activities, len(queues)
        versioned = own_build(given) is not None
        with ExitStack() as opened:

            def crew(
                name: str,
                threads: int,
                at_once: int,
                served: Iterable[str],
                hosted: Hosted,
                **more: Any,  # noqa: ANN401
            ) -> list[Worker]:
                pool = opened.enter_context(ThreadPoolExecutor(threads, name))
                return [self._worker(queue, pool, at_once, activities=hosted, **more) for queue in served]

            usual, uploads, lingering = given.activity_threads, given.upload_threads, given.transaction_coordinators
            yield [
                *crew(
                    "activity",
                    usual,
                    usual,
                    queues,
                    does.all(),
                    workflows=WORKFLOWS,
                    workflow_runner=workflow_runner(self.client, versioned=versioned),
                    workflow_failure_exception_types=FAILURES,
                    sticky_queue_schedule_to_start_timeout=_REMEMBERED,
                ),
                *crew("upload", uploads, uploads, map(uploads_queue, queues), does.of_uploads()),
                *crew("bulk", many, 1, map(bulk_queue, queues), does.of_bulk()),
                *crew("transactions", lingering, lingering, map(transactions_queue, queues), does.of_transactions()),
                *crew(
                    "records", _RECORDS_AT_ONCE * many, _RECORDS_AT_ONCE, map(records_queue, queues), does.of_records()
                ),
                *crew("owner", usual, usual, [owner_queue(worker_id)], does.of_owners(), versioned=False),
            ]

    def _worker(
        self,
        queue: str,
        threads: ThreadPoolExecutor,
        at_once: int,
        *,
        versioned: bool = True,
        **rest: Any,  # noqa: ANN401
    ) -> Worker:
        version = own_build(self.settings) if versioned else None
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
