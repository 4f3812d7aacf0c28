"""Log store that the settings define: its database, its buckets, and its bulk jobs on Spark."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.catalog import Catalog, open_catalog
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.identity.bucket_markers import BucketRole
from logstore.log.services import RollPolicy
from logstore.offload.tiered_copy import DRIVER, CopyLocation
from logstore.ports.bulk_jobs import BulkJobRunner
from logstore.records.services.manifest_publication import require_current_catalog
from workers.assembly.checked_buckets import make_checked_bucket_opener, open_primary_bucket, uses_embedded_store
from workers.assembly.log_store import ImportedRecordFunctions, LogStore, LogStoreBuckets, LogStorePolicies
from workers.assembly.pulsar_cluster import PulsarClusterOfSettings, pulsar_cluster_from_settings
from workers.settings import Settings

if TYPE_CHECKING:
    from infra.objects.s3_store import BucketAddress
    from infra.pulsar.cluster_access import PulsarCluster
    from spark.job_runner import JobMain
    from spark.sources.store_addresses import CatalogAddresses

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


def roll_policy_from_settings(settings: Settings) -> RollPolicy:
    return RollPolicy(
        max_entries=settings.ledger_max_entries,
        max_size_bytes=settings.ledger_max_bytes,
        max_age_s=settings.ledger_max_age,
    )


def _policies_from_settings(settings: Settings) -> LogStorePolicies:
    # A later deletion of the tiered copy uses this metadata, even if the settings have changed.
    endpoint = "" if uses_embedded_store(settings) else settings.s3_endpoint
    location = {"bucket": settings.tiered_bucket, "region": settings.s3_region, "endpoint": endpoint}
    return LogStorePolicies(
        scratch=settings.home / "tmp",
        driver_metadata={"driver": DRIVER} | {name: value for name, value in location.items() if value},
        application=settings.application,
        roll=roll_policy_from_settings(settings),
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
