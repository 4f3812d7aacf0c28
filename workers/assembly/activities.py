"""Activities of this build for one log store, and the activities of each task queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from temporalio import activity

from activities.delayed.build_indexes import IndexBuilding
from activities.delayed.seal_and_merge_buckets import DelayedBuckets
from activities.deletion.ledger_deletion import LedgerDeletion
from activities.deletion.queue_upkeep import DeletionUpkeep
from activities.deletion.topic_deletion import TopicDeletion
from activities.deletion.trim_by_retention import Retention, Trimming
from activities.offload import LedgerOffload
from activities.reconciliation.apply_orphans import Applying
from activities.reconciliation.apply_preview import ApplyPreview
from activities.reconciliation.delete_single_objects import ObjectDeletion
from activities.reconciliation.plan_orphans import Planning
from activities.reconciliation.scrub_ledgers import Scrubbing
from activities.records.end_records import RecordEnding
from activities.records.flush_records import RecordFlushing
from activities.records.record_log_upkeep import RecordDefragmentation, RecordReplication, TombRaider
from activities.transactions.build_snapshots import BufferBuilding
from activities.transactions.coordinate_transactions import Coordination
from logstore.ports.bundle_owners import Owners
from logstore.reconciliation.services.orphan_inspection import OrphanInspector
from logstore.records.services.shared_flushes import SharedFlushes
from workers.assembly.log_store import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordActivities:
    """Activities on the record log."""

    flushing: RecordFlushing
    defragmentation: RecordDefragmentation
    raiding: TombRaider
    replication: RecordReplication
    ending: RecordEnding


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """All activities that a worker hosts."""

    deletion: LedgerDeletion
    upkeep: DeletionUpkeep
    topics: TopicDeletion
    retention: Retention
    trimming: Trimming
    offload: LedgerOffload
    planning: Planning
    applying: Applying
    scrubbing: Scrubbing
    coordination: Coordination
    building: BufferBuilding
    delayed: DelayedBuckets
    indexes: IndexBuilding
    records: RecordActivities

    def owner_activities(self) -> Sequence[Callable[..., Any]]:
        deletion = self.deletion
        return [
            deletion.detach,
            deletion.delete_chunk,
            deletion.hand_over_chunk,
            deletion.delete_one,
            deletion.dead_letter,
            deletion.certify,
        ]

    def upload_activities(self) -> Sequence[Callable[..., Any]]:
        return [self.offload.upload]

    def bulk_activities(self) -> Sequence[Callable[..., Any]]:
        return [
            self.planning.run_bulk,
            self.building.build_buffers,
            self.indexes.build_indexes,
            self.scrubbing.cut_scrub,
            self.scrubbing.scrub_page,
        ]

    def transaction_activities(self) -> Sequence[Callable[..., Any]]:
        return [self.coordination.drain, self.coordination.tell]

    def record_activities(self) -> Sequence[Callable[..., Any]]:
        records = self.records
        return [
            records.flushing.flush,
            records.defragmentation.defragment,
            records.raiding.raid,
            records.replication.ship,
        ]

    def all(self) -> Sequence[Callable[..., Any]]:
        """Return all activities of all fields."""
        record_hosts = [getattr(self.records, field.name) for field in fields(self.records)]
        hosts = [*(getattr(self, field.name) for field in fields(self) if field.name != "records"), *record_hosts]
        return [
            getattr(host, name)
            for host in hosts
            for name, method in vars(type(host)).items()
            if callable(method) and activity._Definition.from_callable(method)  # noqa: SLF001 - no public way
        ]


def create_activities(log: LogStore, owners: Owners) -> Activities:
    """Create the activities of a worker. `owners` finds the owner of a topic."""
    catalog = log.catalog
    deletions, ledgers, topics = catalog.deletions, catalog.ledgers, catalog.topics
    planning, applying, scrubbing = _create_reconciliation(log)
    retention = Retention(topics=topics, roller=log.managed, settler=log.subscriptions)
    return Activities(
        deletion=LedgerDeletion(
            phase_one=catalog.phase_one,
            deletions=deletions,
            ledgers=ledgers,
            topics=topics,
            storages=log.storages,
            flushes=SharedFlushes(catalog.records, log.records.flusher),
            owners=owners,
        ),
        upkeep=DeletionUpkeep(
            upkeep=catalog.upkeep,
            deletions=deletions,
            ledgers=ledgers,
            finished_retention_s=log.policies.finished_retention_s,
        ),
        topics=TopicDeletion(phase_one=catalog.phase_one, ledgers=ledgers),
        retention=retention,
        trimming=Trimming(
            topics=topics, phase_one=catalog.phase_one, deletions=deletions, ledgers=ledgers, idle=retention
        ),
        offload=LedgerOffload(
            uploader=log.offloader,
            offloads=catalog.offloads,
            ledgers=ledgers,
            topics=topics,
            new_uuid=log.policies.new_uuid,
        ),
        planning=planning,
        applying=applying,
        scrubbing=scrubbing,
        coordination=Coordination(
            transactions=catalog.transactions,
            broadcasts=log.broadcasts,
            finished_retention_s=log.policies.finished_retention_s,
        ),
        building=BufferBuilding(
            runs=catalog.reconciliation, identities=catalog.identities, bulk=log.bulk, snapshots=log.buffer_snapshots
        ),
        delayed=DelayedBuckets(
            index=catalog.delayed,
            topics=topics,
            sealer=log.delayed.sealer,
            merger=log.delayed.merger,
            limits=log.policies.bucket_limits,
        ),
        indexes=IndexBuilding(
            runs=catalog.reconciliation,
            identities=catalog.identities,
            bulk=log.bulk,
            index=catalog.delayed,
            publisher=log.delayed.publisher,
            limits=log.policies.bucket_limits,
        ),
        records=_create_record_activities(log),
    )


def _create_record_activities(log: LogStore) -> RecordActivities:
    catalog, records, services = log.catalog, log.catalog.records, log.records
    return RecordActivities(
        flushing=RecordFlushing(records=records, flusher=services.flusher, interval_s=log.policies.records.interval_s),
        defragmentation=RecordDefragmentation(
            records=records, defragmenter=services.defragmenter, sweeper=services.sweeper
        ),
        raiding=TombRaider(services.raider),
        replication=RecordReplication(services.replication),
        ending=RecordEnding(
            topics=catalog.topics,
            ledgers=catalog.ledgers,
            phase_one=catalog.phase_one,
            deletions=catalog.deletions,
            records=records,
            functions=log.policies.records.functions,
        ),
    )


def create_apply_preview(log: LogStore) -> ApplyPreview:
    """Create the preview of applies."""
    catalog = log.catalog
    return ApplyPreview(
        reconciliation=catalog.reconciliation, identities=catalog.identities, stored=_create_stored_orphans(log)
    )


def _create_stored_orphans(log: LogStore) -> OrphanInspector:
    return OrphanInspector(
        objects=log.objects,
        buckets=log.buckets,
        application=log.policies.application,
        driver_metadata=log.policies.driver_metadata,
    )


def _create_reconciliation(log: LogStore) -> tuple[Planning, Applying, Scrubbing]:
    catalog, policies, stored = log.catalog, log.policies, _create_stored_orphans(log)
    planning = Planning(
        reconciliation=catalog.reconciliation,
        identities=catalog.identities,
        stored=stored,
        bulk=log.bulk,
        store_now_us=log.store_now_us,
        finished_retention_s=policies.finished_retention_s,
    )
    deletion = ObjectDeletion(reconciliation=catalog.reconciliation, stored=stored, objects=log.objects)
    applying = Applying(
        reconciliation=catalog.reconciliation,
        identities=catalog.identities,
        stored=stored,
        objects=deletion,
        bulk=log.bulk,
    )
    scrubbing = Scrubbing(
        reconciliation=catalog.reconciliation, identities=catalog.identities, stored=stored, bulk=log.bulk
    )
    return planning, applying, scrubbing
