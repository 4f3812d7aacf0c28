"""Bulk jobs on Spark, as the settings name their cluster: constructed here and nowhere else."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from logstore.identity.markers import Role
from logstore.ports.bulk import BulkJobs
from workers.settings import Settings

if TYPE_CHECKING:
    from spark.runner import Main
    from spark.sources.objects import NativeAddresses, StoreAddress


@contextmanager
def bulk_jobs(settings: Settings) -> Iterator[BulkJobs]:
    """Bulk jobs of a process while the block runs. Java is started with the first one."""
    from spark.publication import Publication  # noqa: PLC0415 - start-up time
    from spark.runner import SparkJobs  # noqa: PLC0415
    from spark.session import SparkSettings, WarmSession  # noqa: PLC0415

    def mains() -> Mapping[str, "Main"]:
        from spark.jobs import native_mains, record_mains  # noqa: PLC0415

        records = store_address(settings, Role.RECORDS, settings.records_bucket)
        return {**native_mains(native_addresses(settings)), **record_mains(records)}

    session = WarmSession(SparkSettings(scratch=settings.home / "tmp" / "spark", master=settings.spark_master))
    try:
        yield SparkJobs(session, Publication(Path(settings.bulk_dir)), mains)
    finally:
        session.close()


def store_address(settings: Settings, role: Role, bucket: str) -> "StoreAddress":
    """A bucket of the configured store, as executors reach it."""
    from spark.sources.objects import StoreAddress  # noqa: PLC0415 - start-up time

    keys = settings.s3_access_key.get_secret_value(), settings.s3_secret_key.get_secret_value()
    return StoreAddress(role.value, bucket, settings.s3_endpoint, settings.s3_region, *keys, settings.s3_ca_file)


def native_addresses(settings: Settings) -> "NativeAddresses":
    """Where tasks of the native back end read: what the settings name."""
    from spark.sources.objects import NativeAddresses  # noqa: PLC0415 - start-up time

    return NativeAddresses(
        database_url=settings.database_url,
        primary=store_address(settings, Role.PRIMARY, settings.primary_bucket),
        tiered=(store_address(settings, Role.TIERED, settings.tiered_bucket),),
        application=settings.application,
    )
