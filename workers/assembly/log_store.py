"""Log store of one process: the catalog, the buckets, and all services that use them.

The settings define the log store, or a test does, with any catalog and any buckets.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from logstore.catalog import Catalog, open_catalog
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
from logstore.errors import InvalidInput
from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import CopyKind
from logstore.log.services import RollPolicy, TopicLogs
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.log.services.group_commit import GroupCommitter
from logstore.log.services.schemas import SchemaRegistry
from logstore.log.services.segment_sources import TieredCopyFinder
from logstore.offload.services.tiered_copy_upload import Offloader
from logstore.offload.tiered_copy import DRIVER, CopyLocation
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.ports.object_storage import BucketAtLocation, OwnedStore, StorageByCopyKind
from logstore.ports.pulsar_cluster import PulsarClusterAccess
from logstore.records.functions import RecordFunction, RecordFunctionRegistry
from logstore.records.services.defragmenter import Defragmenter
from logstore.records.services.flusher import Flusher
from logstore.records.services.manifest_publication import require_current_catalog
from logstore.records.services.record_log import RecordLog
from logstore.records.services.records_bucket_sweeper import RecordsBucketSweeper
from logstore.records.services.replica_shipments import ReplicaShipments
from logstore.records.services.tombstone_raids import Raider
from logstore.retrying_clock import Clock
from logstore.transactions.services.broadcast import Broadcaster
from logstore.transactions.services.buffer_snapshots import BufferRebuilder, BufferSnapshots
from workers.assembly.checked_buckets import make_checked_bucket_opener, open_primary_bucket, uses_embedded_store
from workers.assembly.pulsar_cluster import PulsarClusterOfSettings, pulsar_cluster_from_settings
from workers.settings import Settings

if TYPE_CHECKING:
    from infra.objects.s3_store import BucketAddress
    from infra.pulsar.cluster_access import PulsarCluster
    from spark.job_runner import JobMain
    from spark.sources.store_addresses import CatalogAddresses

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


_SCAN_SESSION_TIMEOUT_S: Final = 30.0  # longer than an election of a leader


@contextmanager
def open_log_store(settings: Settings) -> Iterator[LogStore]:
    """Open the log store of the settings while the block runs. Raises the errors of `open_catalog`."""
    timeout_s = settings.registration_timeout
    with (
        open_catalog(settings.database_url, registration_timeout_s=timeout_s) as catalog,
        open_log_store_on_catalog(catalog, settings) as log,
    ):
        yield log


@contextmanager
def open_log_store_on_catalog(catalog: Catalog, settings: Settings) -> Iterator[LogStore]:
    """Open the log store with an open catalog. The catalog stays open after the block."""
    get_bucket = make_checked_bucket_opener(
        settings,
        catalog.identities,
        require_current=lambda: require_current_catalog(
            catalog.records, get_bucket(BucketRole.RECORDS, CopyLocation(settings.records_bucket))
        ),
    )
    with (
        open_spark_bulk_jobs(settings) as bulk,
        closing(
            LogStore(
                catalog=catalog,
                stores=LogStoreBuckets(
                    primary=get_bucket(BucketRole.PRIMARY, CopyLocation(settings.primary_bucket)),
                    tiered=partial(get_bucket, BucketRole.TIERED),
                    records=get_bucket(BucketRole.RECORDS, CopyLocation(settings.records_bucket)),
                    now_us=make_store_clock(settings),
                    replicas={name: get_bucket(BucketRole.REPLICA, CopyLocation(name)) for name in settings.replicas},
                ),
                policies=_policies_from_settings(settings),
                bulk=bulk,
                cluster=PulsarClusterOfSettings(settings),
            )
        ) as log,
    ):
        yield log


def make_store_clock(settings: Settings) -> Callable[[], int]:
    primary = cache(lambda: open_primary_bucket(settings))

    def now_us() -> int:
        from infra.objects.s3_store import read_store_clock_s  # noqa: PLC0415 - start-up time

        return round(read_store_clock_s(primary()) * 1_000_000)

    return now_us


def _policies_from_settings(settings: Settings) -> LogStorePolicies:
    # A later deletion of the tiered copy uses this metadata, even if the settings have changed.
    endpoint = "" if uses_embedded_store(settings) else settings.s3_endpoint
    location = {"bucket": settings.tiered_bucket, "region": settings.s3_region, "endpoint": endpoint}
    return LogStorePolicies(
        scratch=settings.home / "tmp",
        driver_metadata={"driver": DRIVER} | {name: value for name, value in location.items() if value},
        application=settings.application,
        roll=RollPolicy(
            max_entries=settings.ledger_max_entries,
            max_size_bytes=settings.ledger_max_bytes,
            max_age_s=settings.ledger_max_age,
        ),
        registration_timeout_s=settings.registration_timeout,
        cursor_inline_bytes=settings.cursor_inline_bytes,
        bucket_limits=SealAndMergeLimits(
            messages=settings.delayed_messages,
            ledgers=settings.delayed_ledgers,
            idle_s=settings.delayed_idle,
            buckets=settings.delayed_buckets,
        ),
        delivery_tolerance_ms=settings.delayed_tolerance * 1_000,
        finished_retention_s=settings.finished_retention,
        flush_interval_s=settings.records_interval,
        cursor_flush_interval_s=settings.records_cursor_interval,
        clock_bound_s=settings.clock_bound,
        eligible_age_s=settings.eligible_age,
        raider_sleep_s=settings.tomb_raider_sleep / 1_000,
        functions=ImportedRecordFunctions(settings.functions),
    )


@contextmanager
def open_spark_bulk_jobs(settings: Settings) -> Iterator[BulkJobRunner]:
    """Yield the runner of a process's bulk jobs. Spark's Java process starts with the first bulk job."""
    from spark.job_runner import SparkBulkJobs  # noqa: PLC0415
    from spark.published_output import PublishedOutputs  # noqa: PLC0415 - start-up time
    from spark.warm_session import SparkSettings, WarmSession  # noqa: PLC0415

    def mains() -> Mapping[str, "JobMain"]:
        from spark.job_mains import (  # noqa: PLC0415
            catalog_job_mains,
            lazy_cluster_job_mains,
            record_log_job_mains,
        )

        records = executor_bucket_address(settings, BucketRole.RECORDS, settings.records_bucket)
        return {
            **catalog_job_mains(executor_catalog_and_bucket_addresses(settings)),
            **record_log_job_mains(records),
            **lazy_cluster_job_mains(partial(find_cluster_for_jobs, settings)),
        }

    session = WarmSession(SparkSettings(scratch=settings.home / "tmp" / "spark", master=settings.spark_master))
    try:
        yield SparkBulkJobs(session, PublishedOutputs(Path(settings.bulk_dir)), mains)
    finally:
        session.close()


def find_cluster_for_jobs(settings: Settings) -> "PulsarCluster":
    return replace(pulsar_cluster_from_settings(settings), session_timeout_s=_SCAN_SESSION_TIMEOUT_S)


def executor_bucket_address(settings: Settings, role: BucketRole, bucket: str) -> "BucketAddress":
    from infra.objects.s3_store import BucketAddress  # noqa: PLC0415 - start-up time

    keys = settings.s3_access_key.get_secret_value(), settings.s3_secret_key.get_secret_value()
    return BucketAddress(role.value, bucket, settings.s3_endpoint, settings.s3_region, *keys, settings.s3_ca_file)


def executor_catalog_and_bucket_addresses(settings: Settings) -> "CatalogAddresses":
    from spark.sources.store_addresses import CatalogAddresses  # noqa: PLC0415 - start-up time

    return CatalogAddresses(
        database_url=settings.database_url,
        primary=executor_bucket_address(settings, BucketRole.PRIMARY, settings.primary_bucket),
        tiered=(executor_bucket_address(settings, BucketRole.TIERED, settings.tiered_bucket),),
        application=settings.application,
    )
