"""Activities of this build for one log store, and the activities of each task queue."""

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity

from activities.delayed.build_indexes import DelayedIndexBuildActivities
from activities.delayed.seal_and_merge_buckets import IndexBucketActivities
from activities.deletion.deletion_queue import DeletionQueueActivities
from activities.deletion.ledger_deletion import LedgerDeletionActivities
from activities.deletion.topic_deletion import TopicDeletionActivities
from activities.deletion.trim_by_retention import RetentionPreparation, TrimAllTopicsActivities
from activities.offload import LedgerOffloadActivities
from activities.pulsar.abort_transactions import AbortTransactionsActivities
from activities.pulsar.apply_cluster import ApplyClusterActivities
from activities.pulsar.plan_cluster import PlanClusterActivities
from activities.pulsar.undo_cluster import UndoClusterActivities
from activities.reconciliation.apply_orphans import ApplyOrphansActivities, ApplyPreview
from activities.reconciliation.plan_orphans import PlanOrphansActivities
from activities.reconciliation.scrub_ledgers import ScrubLedgersActivities
from activities.records.end_records import EndRecordsActivities
from activities.records.record_upkeep import (
    DefragmentRecordsActivities,
    FlushRecordsActivities,
    RaidTombstonesActivities,
    ReplicateRecordsActivities,
)
from activities.transactions.build_snapshots import TransactionSnapshotBuildActivities
from activities.transactions.coordinate_transactions import TransactionCoordinatorActivities
from logstore.ports.bundle_owners import TopicOwners
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from logstore.records.services.flusher import SharedFlushes
from workers.assembly.log_store import LogStore


class WorkerActivities:
    """Activities of this build for one log store. Each attribute has the activities of one class."""

    def __init__(self, log: LogStore, owners: TopicOwners) -> None:
        catalog, policies, records = log.catalog, log.policies, log.records
        inspector = _create_orphan_inspector(log)
        self.deletion = LedgerDeletionActivities(
            phase_one=catalog.phase_one,
            deletions=catalog.deletions,
            ledgers=catalog.ledgers,
            topics=catalog.topics,
            storages=log.storages,
            flushes=SharedFlushes(catalog.records, records.flusher),
            owners=owners,
        )
        self.upkeep = DeletionQueueActivities(catalog=catalog, finished_retention_s=policies.finished_retention_s)
        self.topics = TopicDeletionActivities(catalog=catalog)
        self.retention = RetentionPreparation(topics=catalog.topics, roller=log.topic_logs, settler=log.subscriptions)
        self.trimming = TrimAllTopicsActivities(catalog=catalog, retention=self.retention)
        self.offload = LedgerOffloadActivities(catalog=catalog, uploader=log.offloader, new_uuid=policies.new_uuid)
        self.planning = PlanOrphansActivities(
            catalog=catalog,
            inspector=inspector,
            bulk=log.bulk,
            store_now_us=log.store_now_us,
            finished_retention_s=policies.finished_retention_s,
        )
        self.applying = ApplyOrphansActivities(
            catalog=catalog,
            inspector=inspector,
            objects=log.objects,
            bulk=log.bulk,
        )
        self.scrubbing = ScrubLedgersActivities(catalog=catalog, inspector=inspector, bulk=log.bulk)
        self.cluster_planning = PlanClusterActivities(
            catalog=catalog, cluster=log.cluster, bulk=log.bulk, finished_retention_s=policies.finished_retention_s
        )
        self.cluster_applying = ApplyClusterActivities(
            catalog=catalog,
            records=log.record_objects,
            cluster=log.cluster,
            bulk=log.bulk,
            store_now_us=log.store_now_us,
            finished_retention_s=policies.finished_retention_s,
        )
        self.cluster_undoing = UndoClusterActivities(catalog=catalog, records=log.record_objects, cluster=log.cluster)
        self.transaction_aborting = AbortTransactionsActivities(catalog=catalog, cluster=log.cluster)
        self.coordination = TransactionCoordinatorActivities(
            transactions=catalog.transactions,
            broadcasts=log.broadcasts,
            finished_retention_s=policies.finished_retention_s,
        )
        self.building = TransactionSnapshotBuildActivities(
            catalog=catalog, bulk=log.bulk, snapshots=log.buffer_snapshots
        )
        self.delayed = IndexBucketActivities(
            index=catalog.delayed,
            topics=catalog.topics,
            sealer=log.delayed.sealer,
            merger=log.delayed.merger,
            limits=policies.bucket_limits,
        )
        self.indexes = DelayedIndexBuildActivities(
            catalog=catalog, bulk=log.bulk, publisher=log.delayed.publisher, limits=policies.bucket_limits
        )
        self.flushing = FlushRecordsActivities(
            records=catalog.records, flusher=records.flusher, interval_s=policies.flush_interval_s
        )
        self.defragmentation = DefragmentRecordsActivities(
            records=catalog.records, defragmenter=records.defragmenter, sweeper=records.sweeper
        )
        self.raiding = RaidTombstonesActivities(records.raider)
        self.replication = ReplicateRecordsActivities(records.replication)
        self.ending = EndRecordsActivities(catalog=catalog, functions=policies.functions)

    def list_owner_activities(self) -> Sequence[Callable[..., Any]]:
        deletion = self.deletion
        return [
            deletion.detach,
            deletion.delete_chunk,
            deletion.hand_over_chunk,
            deletion.claim_and_delete_copy,
            deletion.dead_letter_intent,
            deletion.close_and_certify_batch,
        ]

    def list_upload_activities(self) -> Sequence[Callable[..., Any]]:
        return [self.offload.upload_and_prove_copy]

    def list_bulk_activities(self) -> Sequence[Callable[..., Any]]:
        return [
            self.planning.run_plan_bulk_job,
            self.cluster_planning.run_cluster_plan_bulk_job,
            self.building.build_buffers,
            self.indexes.build_indexes,
            self.scrubbing.cut_scrub_into_pages,
            self.scrubbing.scrub_page,
        ]

    def list_transaction_activities(self) -> Sequence[Callable[..., Any]]:
        return [self.coordination.abort_expired_and_broadcast_decided, self.coordination.tell_owed_participants]

    def list_record_log_activities(self) -> Sequence[Callable[..., Any]]:
        """Return the activities of the records queue. Other activities on the record log run in other queues."""
        return [
            self.flushing.flush_record_log,
            self.defragmentation.defragment_and_remove_old_objects,
            self.raiding.mark_and_remove_tombstones,
            self.replication.ship_to_all_replicas,
        ]

    def all(self) -> Sequence[Callable[..., Any]]:
        return [
            getattr(host, name)
            for host in vars(self).values()
            for name, method in vars(type(host)).items()
            if callable(method) and activity._Definition.from_callable(method)  # noqa: SLF001 - the SDK has no public way
        ]


def create_apply_preview(log: LogStore) -> ApplyPreview:
    return ApplyPreview(catalog=log.catalog, inspector=_create_orphan_inspector(log))


def _create_orphan_inspector(log: LogStore) -> OrphanInspector:
    return OrphanInspector(
        objects=log.objects,
        buckets=log.buckets,
        application=log.policies.application,
        driver_metadata=log.policies.driver_metadata,
    )
