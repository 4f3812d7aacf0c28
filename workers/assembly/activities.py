"""Every activity of this build over the ports of one log store, and which of them each task queue is served with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from temporalio import activity

from activities.delayed.buckets import DelayedBuckets
from activities.delayed.building import IndexBuilding
from activities.deletion.ledger_deletion import LedgerDeletion
from activities.deletion.topic_deletion import TopicDeletion
from activities.deletion.trimming import Retention, Trimming
from activities.deletion.upkeep import DeletionUpkeep
from activities.offload import LedgerOffload
from activities.reconciliation.applying import Applying
from activities.reconciliation.objects import ObjectDeletion
from activities.reconciliation.planning import Planning
from activities.reconciliation.preview import ApplyPreview
from activities.reconciliation.scrubbing import Scrubbing
from activities.records.ending import RecordEnding
from activities.records.flushing import RecordFlushing
from activities.records.upkeep import RecordDefragmentation, RecordReplication, TombRaider
from activities.transactions.building import BufferBuilding
from activities.transactions.coordination import Coordination
from logstore.ports.owners import Owners
from logstore.reconciliation.services.orphans import StoredOrphans
from logstore.records.services.flush_requests import FlushRequests
from workers.assembly.log import LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordActivities:
    """Those on the record log."""

    flushing: RecordFlushing
    defragmentation: RecordDefragmentation
    raiding: TombRaider
    replication: RecordReplication
    ending: RecordEnding


@dataclass(frozen=True, slots=True, kw_only=True)
class Activities:
    """The activities that a worker hosts."""

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

    def of_owners(self) -> Sequence[Callable[..., Any]]:
        """Those that run at a topic's owner."""
        one = self.deletion
        return [one.detach, one.delete_chunk, one.hand_over_chunk, one.delete_one, one.dead_letter, one.certify]

    def of_uploads(self) -> Sequence[Callable[..., Any]]:
        """Those of the queue of uploads."""
        return [self.offload.upload]

    def of_bulk(self) -> Sequence[Callable[..., Any]]:
        """Those of the queue of bulk jobs."""
        scrubbing = self.scrubbing
        built = [self.building.build_buffers, self.indexes.build_indexes]
        return [self.planning.run_bulk, *built, scrubbing.cut_scrub, scrubbing.scrub_page]

    def of_transactions(self) -> Sequence[Callable[..., Any]]:
        """Those of the queue of transactions."""
        return [self.coordination.drain, self.coordination.tell]

    def of_records(self) -> Sequence[Callable[..., Any]]:
        """Those of the queue of the record log."""
        one = self.records
        return [one.flushing.flush, one.defragmentation.defragment, one.raiding.raid, one.replication.ship]

    def all(self) -> Sequence[Callable[..., Any]]:
        """Every one: each method of these that is defined as an activity."""
        records = [getattr(self.records, one.name) for one in fields(self.records)]
        hosts = [*(getattr(self, one.name) for one in fields(self) if one.name != "records"), *records]
        return [
            getattr(one, name)
            for one in hosts
            for name, method in vars(type(one)).items()
            if callable(method) and activity._Definition.from_callable(method)  # noqa: SLF001 - no public way
        ]


def activities_over(log: LogStore, owners: Owners) -> Activities:
    """The activities of a worker that knows `owners`."""
    catalog = log.catalog
    deletions, ledgers, topics = catalog.deletions, catalog.ledgers, catalog.topics
    planning, applying, scrubbing = _reconciliation(log)
    retention = Retention(topics=topics, roller=log.managed, settler=log.subscriptions)
    return Activities(
        deletion=LedgerDeletion(
            phase_one=catalog.phase_one,
            deletions=deletions,
            ledgers=ledgers,
            topics=topics,
            storages=log.storages,
            flushes=FlushRequests(catalog.records, log.records.flusher),
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
        delayed=_delayed(log),
        indexes=_indexes(log),
        records=_records(log),
    )


def _records(log: LogStore) -> RecordActivities:
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


def _indexes(log: LogStore) -> IndexBuilding:
    return IndexBuilding(
        runs=log.catalog.reconciliation,
        identities=log.catalog.identities,
        bulk=log.bulk,
        index=log.catalog.delayed,
        publisher=log.delayed.publisher,
        limits=log.policies.bucket_limits,
    )


def _delayed(log: LogStore) -> DelayedBuckets:
    return DelayedBuckets(
        index=log.catalog.delayed,
        topics=log.catalog.topics,
        sealer=log.delayed.sealer,
        merger=log.delayed.merger,
        limits=log.policies.bucket_limits,
    )


def apply_preview(log: LogStore) -> ApplyPreview:
    """Return the preview of applies over the log store."""
    catalog = log.catalog
    return ApplyPreview(
        reconciliation=catalog.reconciliation, identities=catalog.identities, stored=_stored_orphans(log)
    )


def _stored_orphans(log: LogStore) -> StoredOrphans:
    return StoredOrphans(
        objects=log.objects,
        buckets=log.buckets,
        application=log.policies.application,
        driver_metadata=log.policies.driver_metadata,
    )


def _reconciliation(log: LogStore) -> tuple[Planning, Applying, Scrubbing]:
    catalog, policies, stored = log.catalog, log.policies, _stored_orphans(log)
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
