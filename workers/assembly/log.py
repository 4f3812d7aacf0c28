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
from logstore.delayed.services.delayed_log import DelayedLog
from logstore.delayed.services.delivery import Delivery
from logstore.delayed.services.merging import Merger
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
from logstore.transactions.services.broadcast import Broadcaster
from logstore.transactions.services.snapshots import BufferRebuilder, BufferSnapshots
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
    """Services that read and change buckets of delayed messages."""

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
    broadcasts: Broadcaster
    buffer_snapshots: BufferSnapshots
    rebuilder: BufferRebuilder  # of transaction buffers
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
    on = _Ports(catalog, stores.primary, stores.tiered, policies, clock or Clock(), GroupCommitter(catalog.commits))
    contents = ComponentLedgers(
        components=catalog.components,
        ledgers=catalog.ledgers,
        objects=on.objects,
        application=policies.application,
        patience_s=policies.registration_timeout_s,
        clock=on.clock,
    )
    managed, subscriptions = _managed(on), _subscriptions(on, contents)
    buffer_snapshots = BufferSnapshots(snapshots=catalog.transaction_snapshots, contents=contents)
    broadcasts, delayed = _broadcasts(on, managed, subscriptions), _delayed(on, contents)
    with closing(on.committer), closing(managed), closing(broadcasts):
        yield LogStore(
            catalog=catalog,
            objects=on.objects,
            buckets=on.buckets,
            record_objects=stores.records,
            storages=_storages(on),
            policies=policies,
            committer=on.committer,
            managed=managed,
            subscriptions=subscriptions,
            schemas=SchemaRegistry(schemas=catalog.schemas, contents=contents),
            offloader=_offloader(on),
            broadcasts=broadcasts,
            buffer_snapshots=buffer_snapshots,
            rebuilder=_rebuilder(on, buffer_snapshots),
            delayed=delayed,
            delivery=_delivery(on, managed, subscriptions, delayed.snapshots),
            records=_records(on, stores),
            bulk=bulk,
            store_now_us=stores.now_us,
        )


@dataclass(frozen=True, slots=True)
class _Ports:
    """Ports and policies that services are joined over."""

    catalog: Catalog
    objects: OwnedStore
    buckets: Buckets
    policies: Policies
    clock: Clock
    committer: GroupCommitter

    @property
    def tiered(self) -> TieredSegments:
        return TieredSegments(offloads=self.catalog.offloads, buckets=self.buckets)


def _storages(on: _Ports) -> Storages:
    tiered = TieredCopies(on.buckets, now_us=on.catalog.offloads.now_us)
    return {CopyKind.LEDGER.value: PrimaryCopies(on.objects), CopyKind.OFFLOADED_LEDGER.value: tiered}


def _records(on: _Ports, stores: Stores) -> RecordServices:
    return records_over(
        on.catalog,
        stores.records,
        on.policies.records,
        primary=on.objects,
        replicas=stores.replicas,
        clock=on.clock,
        store_now_us=stores.now_us,
    )


def _managed(on: _Ports) -> ManagedLedger:
    return ManagedLedger(
        ledgers=on.catalog.ledgers,
        transactions=on.catalog.transactions,
        objects=on.objects,
        committer=on.committer,
        application=on.policies.application,
        policy=on.policies.roll,
        registration_timeout_s=on.policies.registration_timeout_s,
        tiered=on.tiered,
        clock=on.clock,
    )


def _broadcasts(on: _Ports, managed: ManagedLedger, subscriptions: Subscriptions) -> Broadcaster:
    return Broadcaster(
        transactions=on.catalog.transactions,
        topics=on.catalog.topics,
        managed=managed,
        epoch=on.catalog.ledgers.epoch,
        advance=subscriptions.acknowledge,
    )


def _subscriptions(on: _Ports, contents: ComponentLedgers) -> Subscriptions:
    cursors, inline_bytes = on.catalog.cursors, on.policies.cursor_inline_bytes
    snapshots = CursorLedgers(
        cursors=cursors, ledgers=on.catalog.ledgers, contents=contents, inline_bytes=inline_bytes, clock=on.clock
    )
    transactions = on.catalog.transactions
    return Subscriptions(cursors=cursors, transactions=transactions, committer=on.committer, ledgers=snapshots)


def _rebuilder(on: _Ports, snapshots: BufferSnapshots) -> BufferRebuilder:
    ledgers, transactions = on.catalog.ledgers, on.catalog.transactions
    return BufferRebuilder(
        ledgers=ledgers, transactions=transactions, objects=on.objects, tiered=on.tiered, snapshots=snapshots
    )


def _delayed(on: _Ports, contents: ComponentLedgers) -> DelayedServices:
    index, scratch = on.catalog.delayed, on.policies.scratch
    snapshots = BucketSnapshots(ledgers=on.catalog.ledgers, contents=contents, objects=on.objects)
    sealer = Sealer(
        index=index,
        transactions=on.catalog.transactions,
        log=DelayedLog(ledgers=on.catalog.ledgers, objects=on.objects, tiered=on.tiered),
        snapshots=snapshots,
        limits=on.policies.bucket_limits,
        scratch=scratch,
    )
    merger = Merger(index=index, snapshots=snapshots, scratch=scratch)
    publisher = IndexPublisher(index=index, snapshots=snapshots)
    return DelayedServices(snapshots=snapshots, sealer=sealer, merger=merger, publisher=publisher)


def _delivery(on: _Ports, managed: ManagedLedger, subscriptions: Subscriptions, segments: BucketSnapshots) -> Delivery:
    return Delivery(
        index=on.catalog.delayed,
        snapshots=segments,
        managed=managed,
        subscriptions=subscriptions,
        transactions=on.catalog.transactions,
        clock=on.clock,
        tolerance_ms=on.policies.delivery_tolerance_ms,
    )


def _offloader(on: _Ports) -> Offloader:
    return Offloader(
        offloads=on.catalog.offloads,
        ledgers=on.catalog.ledgers,
        primary=on.objects,
        buckets=on.buckets,
        driver_metadata=on.policies.driver_metadata,
        folder=on.policies.scratch,
        monotonic_s=on.clock.monotonic_s,
    )
