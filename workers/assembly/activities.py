"""Activities of this build for one log store, and the activities of each task queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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
from activities.reconciliation.apply_orphans import ApplyOrphansActivities
from activities.reconciliation.apply_preview import ApplyPreview
from activities.reconciliation.delete_single_objects import SingleObjectDeletion
from activities.reconciliation.plan_orphans import PlanOrphansActivities
from activities.reconciliation.scrub_ledgers import ScrubLedgersActivities
from activities.records.defragment_raid_ship import (
    DefragmentRecordsActivities,
    RaidTombstonesActivities,
    ReplicateRecordsActivities,
)
from activities.records.end_records import EndRecordsActivities
from activities.records.flush_records import FlushRecordsActivities
from activities.transactions.build_snapshots import TransactionSnapshotBuildActivities
from activities.transactions.coordinate_transactions import TransactionCoordinatorActivities
from logstore.ports.bundle_owners import TopicOwners
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from logstore.records.services.shared_flushes import SharedFlushes
from workers.assembly.log_store import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLogActivities:
    flushing: FlushRecordsActivities
    defragmentation: DefragmentRecordsActivities
    raiding: RaidTombstonesActivities
    replication: ReplicateRecordsActivities
    ending: EndRecordsActivities


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivities:
    deletion: LedgerDeletionActivities
    upkeep: DeletionQueueActivities
    topics: TopicDeletionActivities
    retention: RetentionPreparation
    trimming: TrimAllTopicsActivities
    offload: LedgerOffloadActivities
    planning: PlanOrphansActivities
    applying: ApplyOrphansActivities
    scrubbing: ScrubLedgersActivities
    cluster_planning: PlanClusterActivities
    cluster_applying: ApplyClusterActivities
    cluster_undoing: UndoClusterActivities
    transaction_aborting: AbortTransactionsActivities
    coordination: TransactionCoordinatorActivities
    building: TransactionSnapshotBuildActivities
    delayed: IndexBucketActivities
    indexes: DelayedIndexBuildActivities
    records: RecordLogActivities

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
        records = self.records
        return [
            records.flushing.flush_record_log,
            records.defragmentation.defragment_and_remove_old_objects,
            records.raiding.mark_and_remove_tombstones,
            records.replication.ship_to_all_replicas,
        ]

    def all(self) -> Sequence[Callable[..., Any]]:
        record_hosts = [getattr(self.records, field.name) for field in fields(self.records)]
        hosts = [*(getattr(self, field.name) for field in fields(self) if field.name != "records"), *record_hosts]
        return [
            getattr(host, name)
            for host in hosts
            for name, method in vars(type(host)).items()
            if callable(method) and activity._Definition.from_callable(method)  # noqa: SLF001 - the SDK has no public way
        ]


def create_activities(log: LogStore, owners: TopicOwners) -> WorkerActivities:
    catalog = log.catalog
    deletions, ledgers, topics = catalog.deletions, catalog.ledgers, catalog.topics
    planning, applying, scrubbing = _create_reconciliation_activities(log)
    retention = RetentionPreparation(topics=topics, roller=log.topic_logs, settler=log.subscriptions)
    return WorkerActivities(
        deletion=LedgerDeletionActivities(
            phase_one=catalog.phase_one,
            deletions=deletions,
            ledgers=ledgers,
            topics=topics,
            storages=log.storages,
            flushes=SharedFlushes(catalog.records, log.records.flusher),
            owners=owners,
        ),
        upkeep=DeletionQueueActivities(
            upkeep=catalog.upkeep,
            deletions=deletions,
            ledgers=ledgers,
            finished_retention_s=log.policies.finished_retention_s,
        ),
        topics=TopicDeletionActivities(phase_one=catalog.phase_one, ledgers=ledgers),
        retention=retention,
        trimming=TrimAllTopicsActivities(
            topics=topics, phase_one=catalog.phase_one, deletions=deletions, ledgers=ledgers, retention=retention
        ),
        offload=LedgerOffloadActivities(
            uploader=log.offloader,
            offloads=catalog.offloads,
            ledgers=ledgers,
            topics=topics,
            new_uuid=log.policies.new_uuid,
        ),
        planning=planning,
        applying=applying,
        scrubbing=scrubbing,
        cluster_planning=PlanClusterActivities(
            reconciliation=catalog.reconciliation,
            identities=catalog.identities,
            cluster=log.cluster,
            bulk=log.bulk,
            finished_retention_s=log.policies.finished_retention_s,
        ),
        cluster_applying=ApplyClusterActivities(
            reconciliation=catalog.reconciliation,
            audit_log=catalog.audit_log,
            identities=catalog.identities,
            journal=catalog.cluster_journal,
            records=log.record_objects,
            cluster=log.cluster,
            bulk=log.bulk,
            store_now_us=log.store_now_us,
            finished_retention_s=log.policies.finished_retention_s,
        ),
        cluster_undoing=UndoClusterActivities(
            reconciliation=catalog.reconciliation,
            audit_log=catalog.audit_log,
            identities=catalog.identities,
            journal=catalog.cluster_journal,
            records=log.record_objects,
            cluster=log.cluster,
        ),
        transaction_aborting=AbortTransactionsActivities(
            reconciliation=catalog.reconciliation, audit_log=catalog.audit_log, cluster=log.cluster
        ),
        coordination=TransactionCoordinatorActivities(
            transactions=catalog.transactions,
            broadcasts=log.broadcasts,
            finished_retention_s=log.policies.finished_retention_s,
        ),
        building=TransactionSnapshotBuildActivities(
            runs=catalog.reconciliation, identities=catalog.identities, bulk=log.bulk, snapshots=log.buffer_snapshots
        ),
        delayed=IndexBucketActivities(
            index=catalog.delayed,
            topics=topics,
            sealer=log.delayed.sealer,
            merger=log.delayed.merger,
            limits=log.policies.bucket_limits,
        ),
        indexes=DelayedIndexBuildActivities(
            runs=catalog.reconciliation,
            identities=catalog.identities,
            bulk=log.bulk,
            index=catalog.delayed,
            publisher=log.delayed.publisher,
            limits=log.policies.bucket_limits,
        ),
        records=_create_record_activities(log),
    )


def _create_record_activities(log: LogStore) -> RecordLogActivities:
    catalog, records, services = log.catalog, log.catalog.records, log.records
    return RecordLogActivities(
        flushing=FlushRecordsActivities(
            records=records, flusher=services.flusher, interval_s=log.policies.records.interval_s
        ),
        defragmentation=DefragmentRecordsActivities(
            records=records, defragmenter=services.defragmenter, sweeper=services.sweeper
        ),
        raiding=RaidTombstonesActivities(services.raider),
        replication=ReplicateRecordsActivities(services.replication),
        ending=EndRecordsActivities(
            topics=catalog.topics,
            ledgers=catalog.ledgers,
            phase_one=catalog.phase_one,
            deletions=catalog.deletions,
            records=records,
            functions=log.policies.records.functions,
        ),
    )


def create_apply_preview(log: LogStore) -> ApplyPreview:
    catalog = log.catalog
    return ApplyPreview(
        reconciliation=catalog.reconciliation, identities=catalog.identities, inspector=_create_orphan_inspector(log)
    )


def _create_orphan_inspector(log: LogStore) -> OrphanInspector:
    return OrphanInspector(
        objects=log.objects,
        buckets=log.buckets,
        application=log.policies.application,
        driver_metadata=log.policies.driver_metadata,
    )


def _create_reconciliation_activities(
    log: LogStore,
) -> tuple[PlanOrphansActivities, ApplyOrphansActivities, ScrubLedgersActivities]:
    catalog, policies, stored = log.catalog, log.policies, _create_orphan_inspector(log)
    planning = PlanOrphansActivities(
        reconciliation=catalog.reconciliation,
        identities=catalog.identities,
        inspector=stored,
        bulk=log.bulk,
        store_now_us=log.store_now_us,
        finished_retention_s=policies.finished_retention_s,
    )
    deletion = SingleObjectDeletion(reconciliation=catalog.reconciliation, inspector=stored, objects=log.objects)
    applying = ApplyOrphansActivities(
        reconciliation=catalog.reconciliation,
        identities=catalog.identities,
        inspector=stored,
        objects=deletion,
        bulk=log.bulk,
    )
    scrubbing = ScrubLedgersActivities(
        reconciliation=catalog.reconciliation, identities=catalog.identities, inspector=stored, bulk=log.bulk
    )
    return planning, applying, scrubbing
