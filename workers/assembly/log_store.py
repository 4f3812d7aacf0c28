"""Log store of one process: the catalog, the buckets, and all services that use them.

The settings define the log store (`log_store_from_settings.py`), or a test does, with any catalog and any buckets.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Final
from uuid import uuid4

from logstore.catalog import Catalog
from logstore.cursors.services.subscriptions import CursorSnapshots, Subscriptions
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.delayed.services.bucket_merger import Merger
from logstore.delayed.services.bucket_snapshots import BuiltIndexPublisher, IndexBucketSnapshots
from logstore.delayed.services.consumers import MessageDelivery
from logstore.delayed.services.log_sealer import DeliveryTimeReader, Sealer
from logstore.deletion.services.primary_copies import PrimaryCopyStorage
from logstore.deletion.services.tiered_copies import TieredCopyStorage
from logstore.errors import InvalidInput
from logstore.log.ledgers import CopyKind
from logstore.log.services import RollPolicy, TopicLogs
from logstore.log.services.component_ledgers import ComponentLedgers, SchemaRegistry
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.segment_reader import TieredCopyFinder
from logstore.offload.services.tiered_copy_upload import Offloader
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.object_storage import BucketAtLocation, OwnedStore, StorageByCopyKind
from logstore.ports.pulsar_cluster import PulsarClusterAccess
from logstore.records.functions import RecordFunction, RecordFunctionRegistry
from logstore.records.services.bucket_upkeep import Defragmenter, RecordsBucketSweeper
from logstore.records.services.flusher import Flusher
from logstore.records.services.record_log import RecordLog
from logstore.records.services.replicas import ReplicaShipments
from logstore.records.services.tombstone_raids import Raider
from logstore.retrying_clock import Clock
from logstore.transactions.services.broadcast import Broadcaster
from logstore.transactions.services.buffer_snapshots import BufferRebuilder, BufferSnapshots

_DAY_S: Final = 86_400.0


class ImportedRecordFunctions:
    """Record functions from comma-separated references `module:function`. The settings have checked the form."""

    def __init__(self, references: str) -> None:
        self._references = references

    @cached_property
    def _functions(self) -> Mapping[str, RecordFunction]:
        return dict(_import_record_function(reference) for reference in filter(None, self._references.split(",")))

    def load(self) -> None:
        _ = self._functions

    def find_function(self, name: str) -> RecordFunction:
        if name not in self._functions:
            names = ", ".join(sorted(self._functions))
            expected = f"one of {names}" if names else "one that the workers' setting functions names; it names none"
            raise InvalidInput("function", expected=expected, found=name)
        return self._functions[name]


def _import_record_function(reference: str) -> tuple[str, RecordFunction]:
    module, _, name = reference.partition(":")
    try:
        function = getattr(import_module(module), name, None)
    except (Exception, SystemExit) as error:  # a script that calls `sys.exit` would otherwise end the worker
        found = f"{reference} ({type(error).__name__}: {error})"
        raise InvalidInput("functions", expected="modules that can be imported", found=found) from error
    if not callable(function):
        raise InvalidInput("functions", expected=f"a function {name} in the module {module}", found=reference)
    return name, function


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
    flush_interval_s: float = 5.0  # pause between two searches for changes
    cursor_flush_interval_s: float = 60.0  # time between two flushes of cursors
    clock_bound_s: float = 60.0  # maximum difference between the clocks of catalog and object store
    eligible_age_s: float = _DAY_S  # younger tombstones stay; a replica that is silent for longer is STALE
    raider_sleep_s: float = 0.001  # pause between two blocks that a raid reads
    functions: RecordFunctionRegistry = field(default_factory=lambda: ImportedRecordFunctions(""))
    new_uuid: Callable[[], str] = lambda: str(uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStoreBuckets:
    primary: OwnedStore
    tiered: BucketAtLocation
    records: OwnedStore
    now_us: Callable[[], int]  # the object store's clock, in microseconds since 1970
    replicas: Mapping[str, OwnedStore] = field(default_factory=dict)  # replica buckets by name


class LogStore:
    """Log store of one process. Only tests pass a `clock`."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        stores: LogStoreBuckets,
        policies: LogStorePolicies,
        bulk: BulkJobRunner,
        cluster: PulsarClusterAccess,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or Clock()
        self.catalog, self.policies, self.bulk, self.cluster = catalog, policies, bulk, cluster
        self.objects = stores.primary
        self.buckets = stores.tiered
        self.record_objects = stores.records
        self.store_now_us = stores.now_us
        self.storages: StorageByCopyKind = {
            CopyKind.LEDGER.value: PrimaryCopyStorage(stores.primary),
            CopyKind.OFFLOADED_LEDGER.value: TieredCopyStorage(stores.tiered, now_us=catalog.offloads.now_us),
        }
        self.committer = GroupCommitter(catalog.commits.commit_writes)
        tiered = TieredCopyFinder(offloads=catalog.offloads, buckets=stores.tiered)
        contents = ComponentLedgers(
            components=catalog.components,
            ledgers=catalog.ledgers,
            objects=stores.primary,
            application=policies.application,
            patience_s=policies.registration_timeout_s,
            clock=clock,
        )
        self.topic_logs = TopicLogs(
            ledgers=catalog.ledgers,
            transactions=catalog.transactions,
            objects=stores.primary,
            committer=self.committer,
            application=policies.application,
            policy=policies.roll,
            registration_timeout_s=policies.registration_timeout_s,
            tiered=tiered,
            clock=clock,
        )
        self.subscriptions = Subscriptions(
            cursors=catalog.cursors,
            transactions=catalog.transactions,
            committer=self.committer,
            snapshots=CursorSnapshots(
                cursors=catalog.cursors,
                ledgers=catalog.ledgers,
                component_ledgers=contents,
                inline_bytes=policies.cursor_inline_bytes,
                clock=clock,
            ),
        )
        self.schemas = SchemaRegistry(schemas=catalog.schemas, component_ledgers=contents)
        self.offloader = Offloader(
            offloads=catalog.offloads,
            ledgers=catalog.ledgers,
            primary=stores.primary,
            buckets=stores.tiered,
            driver_metadata=policies.driver_metadata,
            folder=policies.scratch,
            monotonic_s=clock.monotonic_s,
        )
        self.broadcasts = Broadcaster(
            transactions=catalog.transactions,
            topics=catalog.topics,
            topic_logs=self.topic_logs,
            epoch=catalog.ledgers.catalog_epoch,
            advance=self.subscriptions.acknowledge,
        )
        self.buffer_snapshots = BufferSnapshots(snapshots=catalog.transaction_snapshots, contents=contents)
        self.rebuilder = BufferRebuilder(
            ledgers=catalog.ledgers,
            transactions=catalog.transactions,
            objects=stores.primary,
            tiered=tiered,
            snapshots=self.buffer_snapshots,
        )
        self.delayed = IndexBucketServices(catalog, policies, stores.primary, tiered, contents)
        self.delivery = MessageDelivery(
            index=catalog.delayed,
            snapshots=self.delayed.snapshots,
            topic_logs=self.topic_logs,
            subscriptions=self.subscriptions,
            transactions=catalog.transactions,
            clock=clock,
            tolerance_ms=policies.delivery_tolerance_ms,
        )
        self.records = RecordLogServices(catalog, policies, stores, clock)

    def close(self) -> None:
        with closing(self.committer), closing(self.topic_logs):
            self.broadcasts.close()


class IndexBucketServices:
    def __init__(
        self,
        catalog: Catalog,
        policies: LogStorePolicies,
        objects: OwnedStore,
        tiered: TieredCopyFinder,
        contents: ComponentLedgers,
    ) -> None:
        self.snapshots = IndexBucketSnapshots(ledgers=catalog.ledgers, contents=contents, objects=objects)
        self.sealer = Sealer(
            index=catalog.delayed,
            transactions=catalog.transactions,
            log=DeliveryTimeReader(ledgers=catalog.ledgers, objects=objects, tiered=tiered),
            snapshots=self.snapshots,
            limits=policies.bucket_limits,
            scratch=policies.scratch,
        )
        self.merger = Merger(index=catalog.delayed, snapshots=self.snapshots, scratch=policies.scratch)
        self.publisher = BuiltIndexPublisher(index=catalog.delayed, snapshots=self.snapshots)  # of bulk jobs' results


class RecordLogServices:
    def __init__(self, catalog: Catalog, policies: LogStorePolicies, stores: LogStoreBuckets, clock: Clock) -> None:
        self._catalog, self._policies, self._primary, self._clock = catalog, policies, stores.primary, clock
        self.log = RecordLog(stores.records)
        self.flusher = Flusher(
            catalog.records,
            self.log,
            clock_bound_s=policies.clock_bound_s,
            cursor_interval_s=policies.cursor_flush_interval_s,
        )
        self.defragmenter = Defragmenter(catalog.records, self.log)
        self.sweeper = RecordsBucketSweeper(stores.records, self.log)
        self.replication = ReplicaShipments(
            stores.records, stores.replicas, store_now_us=stores.now_us, eligible_age_s=policies.eligible_age_s
        )

    def raider(self, eligible_age_s: float | None) -> Raider:
        """Return a raider of tombstones with a minimum age. `None` means the age of the policy."""
        return Raider(
            self._catalog.records,
            self._catalog.tombstones,
            self.log,
            self._primary,
            eligible_age_s=self._policies.eligible_age_s if eligible_age_s is None else eligible_age_s,
            replica_age_s=self._policies.eligible_age_s,  # the policy's age, even if the raid has another age
            sleep_s=self._policies.raider_sleep_s,
            clock=self._clock,
        )
