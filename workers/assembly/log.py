"""The log of one process, assembled over any catalog and any buckets: the real ones, or those of tests."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from logstore.clock import Clock
from logstore.cursors.services.cursor_ledgers import CursorLedgers
from logstore.cursors.services.subscriptions import Subscriptions
from logstore.delayed.buckets import BucketLimits
from logstore.delayed.services.building import IndexPublisher
from logstore.delayed.services.delivery import Delivery
from logstore.delayed.services.merging import Merger
from logstore.delayed.services.reading import DelayedLog
from logstore.delayed.services.sealing import Sealer
from logstore.delayed.services.snapshots import BucketSnapshots
from logstore.deletion.services.primary_copies import PrimaryCopies
from logstore.deletion.services.tiered_copies import TieredCopies
from logstore.log.ledgers import CopyKind
from logstore.log.services import ManagedLedger, RollPolicy
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.schemas import SchemaRegistry
from logstore.log.services.tiered_segments import TieredSegments
from logstore.offload.services.writing import Offloader
from logstore.ports.bulk import BulkJobs
from logstore.ports.catalog import Catalog
from logstore.ports.objects import Buckets, OwnedStore, Storages
from logstore.transactions.services.broadcast import Broadcasts
from logstore.transactions.services.snapshots import BufferSnapshots, Rebuilder
from workers.assembly.records import RecordPolicies, RecordServices, records_over

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """An operator's choices for the log's behaviour. The defaults are those of the settings."""

    scratch: Path  # a folder in which tiered copies and snapshots of buckets are built
    driver_metadata: Mapping[str, str]  # of new tiered copies: driver, bucket, and endpoint and region where known
    application: str = "sexton"
    roll: RollPolicy = field(default_factory=RollPolicy)
    registration_timeout_s: float = 600
    cursor_inline_bytes: int = 16_384
    bucket_limits: BucketLimits = field(default_factory=BucketLimits)
    delivery_tolerance_ms: int = 0  # a message may be delivered so much before its time
    finished_retention_s: float = 30 * _DAY_S
    records: RecordPolicies = field(default_factory=RecordPolicies)
    new_uuid: Callable[[], str] = lambda: str(uuid4())  # of an offload's attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The buckets of a log store."""

    primary: OwnedStore
    tiered: Buckets  # by location
    records: OwnedStore  # of the record log
    now_us: Callable[[], int]  # the store's own clock, in microseconds since 1970
    replicas: Mapping[str, OwnedStore] = field(default_factory=dict)  # of the record log, by bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedServices:
    """What reads and changes buckets of delayed messages."""

    snapshots: BucketSnapshots
    sealer: Sealer
    merger: Merger
    publisher: IndexPublisher  # of what a bulk job has built


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStore:
    """The log of one process: the catalog, the buckets, the group committer, and the services over them."""

    catalog: Catalog
    objects: OwnedStore  # the primary bucket
    buckets: Buckets  # tiered ones, by their location
    record_objects: OwnedStore  # the bucket of the record log
    storages: Storages  # where copies stand, by kind
    policies: Policies
    committer: GroupCommitter
    managed: ManagedLedger
    subscriptions: Subscriptions
    schemas: SchemaRegistry
    offloader: Offloader
    broadcasts: Broadcasts
    buffer_snapshots: BufferSnapshots
    rebuilder: Rebuilder  # of transaction buffers
    delayed: DelayedServices
    delivery: Delivery  # to consumers
    records: RecordServices
    bulk: BulkJobs
    store_now_us: Callable[[], int]  # the object store's own clock, in microseconds since 1970


@contextmanager
def assemble(
    *, catalog: Catalog, stores: Stores, policies: Policies, bulk: BulkJobs, clock: Clock | None = None
) -> Iterator[LogStore]:
    """Join the services of a log over ports, and end its writer at the end.

    Args:
        catalog: Metadata, in SQL or in memory.
        stores: Buckets, real ones or those of tests.
        policies: An operator's choices.
        bulk: Bulk jobs.
        clock: For tests; the process's own by default.
    """
    clock, committer = clock or Clock(), GroupCommitter(catalog.commits)
    objects, buckets = stores.primary, stores.tiered
    managed = _managed(catalog, objects, policies, committer, clock, buckets=buckets)
    contents = _contents(catalog, objects, policies, clock)
    subscriptions = _subscriptions(catalog, contents, policies, committer, clock)
    buffer_snapshots = BufferSnapshots(snapshots=catalog.transaction_snapshots, contents=contents)
    broadcasts = _broadcasts(catalog, managed, subscriptions)
    delayed = _delayed(catalog, objects, buckets, policies, contents)
    with closing(committer), closing(managed), closing(broadcasts):
        yield LogStore(
            catalog=catalog,
            objects=objects,
            buckets=buckets,
            record_objects=stores.records,
            storages=_storages(catalog, objects, buckets),
            policies=policies,
            committer=committer,
            managed=managed,
            subscriptions=subscriptions,
            schemas=SchemaRegistry(schemas=catalog.schemas, contents=contents),
            offloader=_offloader(catalog, objects, buckets, policies, clock),
            broadcasts=broadcasts,
            buffer_snapshots=buffer_snapshots,
            rebuilder=_rebuilder(catalog, objects, buckets, buffer_snapshots),
            delayed=delayed,
            delivery=_delivery(catalog, managed, subscriptions, policies, segments=delayed.snapshots, clock=clock),
            records=records_over(
                catalog,
                stores.records,
                policies.records,
                primary=objects,
                replicas=stores.replicas,
                clock=clock,
                store_now_us=stores.now_us,
            ),
            bulk=bulk,
            store_now_us=stores.now_us,
        )


def _managed(
    catalog: Catalog,
    objects: OwnedStore,
    policies: Policies,
    committer: GroupCommitter,
    clock: Clock,
    *,
    buckets: Buckets,
) -> ManagedLedger:
    return ManagedLedger(
        ledgers=catalog.ledgers,
        transactions=catalog.transactions,
        objects=objects,
        committer=committer,
        application=policies.application,
        policy=policies.roll,
        registration_timeout_s=policies.registration_timeout_s,
        tiered=TieredSegments(offloads=catalog.offloads, buckets=buckets),
        clock=clock,
    )


def _broadcasts(catalog: Catalog, managed: ManagedLedger, subscriptions: Subscriptions) -> Broadcasts:
    return Broadcasts(
        transactions=catalog.transactions,
        topics=catalog.topics,
        managed=managed,
        epoch=catalog.ledgers.epoch,
        advance=subscriptions.acknowledge,
    )


def _storages(catalog: Catalog, objects: OwnedStore, buckets: Buckets) -> Storages:
    return {
        CopyKind.LEDGER.value: PrimaryCopies(objects),
        CopyKind.OFFLOADED_LEDGER.value: TieredCopies(buckets, now_us=catalog.offloads.now_us),
    }


def _contents(catalog: Catalog, objects: OwnedStore, policies: Policies, clock: Clock) -> ComponentLedgers:
    return ComponentLedgers(
        components=catalog.components,
        ledgers=catalog.ledgers,
        objects=objects,
        application=policies.application,
        patience_s=policies.registration_timeout_s,
        clock=clock,
    )


def _subscriptions(
    catalog: Catalog, contents: ComponentLedgers, policies: Policies, committer: GroupCommitter, clock: Clock
) -> Subscriptions:
    snapshots = CursorLedgers(
        cursors=catalog.cursors,
        ledgers=catalog.ledgers,
        contents=contents,
        inline_bytes=policies.cursor_inline_bytes,
        clock=clock,
    )
    return Subscriptions(
        cursors=catalog.cursors, transactions=catalog.transactions, committer=committer, ledgers=snapshots
    )


def _rebuilder(catalog: Catalog, objects: OwnedStore, buckets: Buckets, snapshots: BufferSnapshots) -> Rebuilder:
    return Rebuilder(
        ledgers=catalog.ledgers,
        transactions=catalog.transactions,
        objects=objects,
        tiered=TieredSegments(offloads=catalog.offloads, buckets=buckets),
        snapshots=snapshots,
    )


def _delayed(
    catalog: Catalog, objects: OwnedStore, buckets: Buckets, policies: Policies, contents: ComponentLedgers
) -> DelayedServices:
    snapshots = BucketSnapshots(ledgers=catalog.ledgers, contents=contents, objects=objects)
    sealer = Sealer(
        index=catalog.delayed,
        transactions=catalog.transactions,
        log=DelayedLog(
            ledgers=catalog.ledgers,
            objects=objects,
            tiered=TieredSegments(offloads=catalog.offloads, buckets=buckets),
        ),
        snapshots=snapshots,
        limits=policies.bucket_limits,
        scratch=policies.scratch,
    )
    merger = Merger(index=catalog.delayed, snapshots=snapshots, scratch=policies.scratch)
    publisher = IndexPublisher(index=catalog.delayed, snapshots=snapshots)
    return DelayedServices(snapshots=snapshots, sealer=sealer, merger=merger, publisher=publisher)


def _delivery(
    catalog: Catalog,
    managed: ManagedLedger,
    subscriptions: Subscriptions,
    policies: Policies,
    *,
    segments: BucketSnapshots,
    clock: Clock,
) -> Delivery:
    return Delivery(
        index=catalog.delayed,
        segments=segments,
        managed=managed,
        subscriptions=subscriptions,
        transactions=catalog.transactions,
        clock=clock,
        tolerance_ms=policies.delivery_tolerance_ms,
    )


def _offloader(catalog: Catalog, objects: OwnedStore, buckets: Buckets, policies: Policies, clock: Clock) -> Offloader:
    return Offloader(
        offloads=catalog.offloads,
        ledgers=catalog.ledgers,
        primary=objects,
        buckets=buckets,
        driver_metadata=policies.driver_metadata,
        folder=policies.scratch,
        monotonic_s=clock.monotonic_s,
    )
