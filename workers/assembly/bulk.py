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
    from spark.sources.objects import NativeAddresses


@contextmanager
def bulk_jobs(settings: Settings) -> Iterator[BulkJobs]:
    """Bulk jobs of a process while the block runs. Java is started with the first one."""
    from spark.publication import Publication  # noqa: PLC0415 - start-up time
    from spark.runner import SparkJobs  # noqa: PLC0415
    from spark.session import SparkSettings, WarmSession  # noqa: PLC0415

    def mains() -> Mapping[str, "Main"]:
        from spark.delayed.building import delayed_mains  # noqa: PLC0415
        from spark.reconciliation.backend import native_mains  # noqa: PLC0415
        from spark.transactions.building import transaction_mains  # noqa: PLC0415

        addresses = native_addresses(settings)
        return {**native_mains(addresses), **transaction_mains(addresses), **delayed_mains(addresses)}

    session = WarmSession(SparkSettings(scratch=settings.home / "tmp" / "spark", master=settings.spark_master))
    try:
        yield SparkJobs(session, Publication(Path(settings.bulk_dir)), mains)
    finally:
        session.close()


def native_addresses(settings: Settings) -> "NativeAddresses":
    """Where tasks of the native back end read: what the settings name."""
    from spark.sources.objects import NativeAddresses, StoreAddress  # noqa: PLC0415 - start-up time

    def address(role: Role, bucket: str) -> StoreAddress:
        keys = settings.s3_access_key.get_secret_value(), settings.s3_secret_key.get_secret_value()
        return StoreAddress(role.value, bucket, settings.s3_endpoint, settings.s3_region, *keys)

    return NativeAddresses(
        database_url=settings.database_url,
        primary=address(Role.PRIMARY, settings.primary_bucket),
        tiered=(address(Role.TIERED, settings.tiered_bucket),),
        application=settings.application,
    )
