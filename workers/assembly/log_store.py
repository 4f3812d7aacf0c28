"""Log store of one process, assembled from any catalog and any buckets."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from logstore.catalog.sql_catalog import Catalog
from logstore.cursors.services.cursor_snapshots import CursorSnapshots
from logstore.cursors.services.subscriptions import Subscriptions
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.delayed.services.bucket_merger import Merger
from logstore.delayed.services.bucket_snapshots import IndexBucketSnapshots
from logstore.delayed.services.built_index_publisher import BuiltIndexPublisher
from logstore.delayed.services.consumers import MessageDelivery
from logstore.delayed.services.delivery_time_reader import DeliveryTimeReader
from logstore.delayed.services.log_sealer import Sealer
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.log.ledgers import CopyKind
from logstore.log.services import RollPolicy, TopicLogs
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.schemas import SchemaRegistry
from logstore.log.services.segment_sources import TieredCopyFinder
from logstore.offload.services.tiered_copy_upload import Offloader
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.object_storage import BucketAtLocation, OwnedStore, StorageByCopyKind
from logstore.ports.pulsar_cluster import PulsarClusterAccess
from logstore.retrying_clock import Clock
from logstore.transactions.services.broadcast import Broadcaster
from logstore.transactions.services.buffer_snapshots import BufferRebuilder, BufferSnapshots
from workers.assembly.record_log_services import RecordLogPolicies, RecordLogServices, create_record_log_services

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStorePolicies:
    """Options of the log store. The defaults are those of the settings."""

    scratch: Path  # folder in which tiered copies and index buckets are built
    driver_metadata: Mapping[str, str]  # driver's metadata of new tiered copies; endpoint and region may be absent
    application: str = "sexton"
    roll: RollPolicy = field(default_factory=RollPolicy)
    registration_timeout_s: float = 600
    cursor_inline_bytes: int = 16_384
    bucket_limits: SealAndMergeLimits = field(default_factory=SealAndMergeLimits)
    delivery_tolerance_ms: int = 0  # time by which a message may be delivered early
    finished_retention_s: float = 30 * _DAY_S
    records: RecordLogPolicies = field(default_factory=RecordLogPolicies)
    new_uuid: Callable[[], str] = lambda: str(uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStoreBuckets:
    primary: OwnedStore
    tiered: BucketAtLocation
    records: OwnedStore
    now_us: Callable[[], int]  # the object store's clock, in microseconds since 1970
    replicas: Mapping[str, OwnedStore] = field(default_factory=dict)  # replica buckets by name


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexBucketServices:
    snapshots: IndexBucketSnapshots
    sealer: Sealer
    merger: Merger
    publisher: BuiltIndexPublisher  # publishes the results of bulk jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStore:
    """Log store of one process: the catalog, the buckets, and all services that use them."""

    catalog: Catalog
    objects: OwnedStore  # the primary bucket
    buckets: BucketAtLocation  # tiered buckets by location
    record_objects: OwnedStore  # the records bucket
    storages: StorageByCopyKind  # by kind of copy
    policies: LogStorePolicies
    committer: GroupCommitter
    topic_logs: TopicLogs
    subscriptions: Subscriptions
    schemas: SchemaRegistry
    offloader: Offloader
    broadcasts: Broadcaster
    buffer_snapshots: BufferSnapshots
    rebuilder: BufferRebuilder
    delayed: IndexBucketServices
    delivery: MessageDelivery
    records: RecordLogServices
    bulk: BulkJobRunner
    cluster: PulsarClusterAccess
    store_now_us: Callable[[], int]  # the object store's clock, in microseconds since 1970


@contextmanager
def assemble_log_store(
    *,
    catalog: Catalog,
    stores: LogStoreBuckets,
    policies: LogStorePolicies,
    bulk: BulkJobRunner,
    cluster: PulsarClusterAccess,
    clock: Clock | None = None,
) -> Iterator[LogStore]:
    """Assemble the services of a log store, for use inside the block. Only tests pass a `clock`."""
    parts = _SharedParts(
        catalog,
        stores.primary,
        stores.tiered,
        policies,
        clock or Clock(),
        GroupCommitter(catalog.commits.commit_writes),
    )
    contents = ComponentLedgers(
        components=catalog.components,
        ledgers=catalog.ledgers,
        objects=parts.objects,
        application=policies.application,
        patience_s=policies.registration_timeout_s,
        clock=parts.clock,
    )
    topic_logs, subscriptions = _create_topic_logs(parts), _create_subscriptions(parts, contents)
    buffer_snapshots = BufferSnapshots(snapshots=catalog.transaction_snapshots, contents=contents)
    delayed = _create_index_bucket_services(parts, contents)
    broadcasts = Broadcaster(
        transactions=catalog.transactions,
        topics=catalog.topics,
        topic_logs=topic_logs,
        epoch=catalog.ledgers.catalog_epoch,
        advance=subscriptions.acknowledge,
    )
    with closing(parts.committer), closing(topic_logs), closing(broadcasts):
        yield LogStore(
            catalog=catalog,
            objects=parts.objects,
            buckets=parts.buckets,
            record_objects=stores.records,
            storages={
                CopyKind.LEDGER.value: PrimaryCopyStorage(parts.objects),
                CopyKind.OFFLOADED_LEDGER.value: TieredCopyStorage(parts.buckets, now_us=catalog.offloads.now_us),
            },
            policies=policies,
            committer=parts.committer,
            topic_logs=topic_logs,
            subscriptions=subscriptions,
            schemas=SchemaRegistry(schemas=catalog.schemas, component_ledgers=contents),
            offloader=Offloader(
                offloads=catalog.offloads,
                ledgers=catalog.ledgers,
                primary=parts.objects,
                buckets=parts.buckets,
                driver_metadata=policies.driver_metadata,
                folder=policies.scratch,
                monotonic_s=parts.clock.monotonic_s,
            ),
            broadcasts=broadcasts,
            buffer_snapshots=buffer_snapshots,
            rebuilder=BufferRebuilder(
                ledgers=catalog.ledgers,
                transactions=catalog.transactions,
                objects=parts.objects,
                tiered=parts.tiered,
                snapshots=buffer_snapshots,
            ),
            delayed=delayed,
            delivery=MessageDelivery(
                index=catalog.delayed,
                snapshots=delayed.snapshots,
                topic_logs=topic_logs,
                subscriptions=subscriptions,
                transactions=catalog.transactions,
                clock=parts.clock,
                tolerance_ms=policies.delivery_tolerance_ms,
            ),
            records=create_record_log_services(
                catalog,
                stores.records,
                policies.records,
                primary=parts.objects,
                replicas=stores.replicas,
                clock=parts.clock,
                store_now_us=stores.now_us,
            ),
            bulk=bulk,
            cluster=cluster,
            store_now_us=stores.now_us,
        )


@dataclass(frozen=True, slots=True)
class _SharedParts:
    catalog: Catalog
    objects: OwnedStore
    buckets: BucketAtLocation
    policies: LogStorePolicies
    clock: Clock
    committer: GroupCommitter

    @property
    def tiered(self) -> TieredCopyFinder:
        return TieredCopyFinder(offloads=self.catalog.offloads, buckets=self.buckets)


def _create_topic_logs(parts: _SharedParts) -> TopicLogs:
    return TopicLogs(
        ledgers=parts.catalog.ledgers,
        transactions=parts.catalog.transactions,
        objects=parts.objects,
        committer=parts.committer,
        application=parts.policies.application,
        policy=parts.policies.roll,
        registration_timeout_s=parts.policies.registration_timeout_s,
        tiered=parts.tiered,
        clock=parts.clock,
    )


def _create_subscriptions(parts: _SharedParts, contents: ComponentLedgers) -> Subscriptions:
    cursors, inline_bytes = parts.catalog.cursors, parts.policies.cursor_inline_bytes
    snapshots = CursorSnapshots(
        cursors=cursors,
        ledgers=parts.catalog.ledgers,
        component_ledgers=contents,
        inline_bytes=inline_bytes,
        clock=parts.clock,
    )
    transactions = parts.catalog.transactions
    return Subscriptions(cursors=cursors, transactions=transactions, committer=parts.committer, snapshots=snapshots)


def _create_index_bucket_services(parts: _SharedParts, contents: ComponentLedgers) -> IndexBucketServices:
    index, scratch = parts.catalog.delayed, parts.policies.scratch
    snapshots = IndexBucketSnapshots(ledgers=parts.catalog.ledgers, contents=contents, objects=parts.objects)
    sealer = Sealer(
        index=index,
        transactions=parts.catalog.transactions,
        log=DeliveryTimeReader(ledgers=parts.catalog.ledgers, objects=parts.objects, tiered=parts.tiered),
        snapshots=snapshots,
        limits=parts.policies.bucket_limits,
        scratch=scratch,
    )
    merger = Merger(index=index, snapshots=snapshots, scratch=scratch)
    publisher = BuiltIndexPublisher(index=index, snapshots=snapshots)
    return IndexBucketServices(snapshots=snapshots, sealer=sealer, merger=merger, publisher=publisher)
