"""Buckets of the settings. The marker of each bucket is compared with the catalog before the bucket's first use."""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from logstore.identity.bucket_markers import BucketRole, NamedBucket
from logstore.identity.services.marker_checked_buckets import LostCatalogIdentity, MarkerCheckedBucket
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.catalog.identity import CatalogIdentity
from workers.settings import Settings, read_stack_record
from workers.settings.tls_files import read_tls_files

if TYPE_CHECKING:
    from infra.objects.s3_store import S3BucketsByLocation, S3ObjectStore


def uses_embedded_store(settings: Settings) -> bool:
    """Return whether the home's stack runs the object store. If it does, offload contexts contain no endpoint."""
    return bool(settings.s3_endpoint) and read_stack_record(settings.home).get("s3_endpoint") == settings.s3_endpoint


def make_checked_bucket_opener(
    settings: Settings,
    identity: CatalogIdentity,
    *,
    fails_fast: bool = False,
    require_current: Callable[[], None] | None = None,
) -> Callable[[BucketRole, CopyLocation], MarkerCheckedBucket]:
    """Return a function that opens a bucket by role and location. The bucket's marker is checked at the first use.

    For primary and tiered buckets, `require_current` is called, too. It raises if the database is not the catalog now.
    """
    # Buckets are opened late, because many commands use none, and the import of boto3 takes 0.3 s.
    open_buckets = cache(partial(_open_buckets_by_location, settings, fails_fast=fails_fast))

    @cache
    def get_configured(role: BucketRole, location: CopyLocation) -> MarkerCheckedBucket:
        named_bucket = NamedBucket(role=role, bucket=location.bucket, address=settings.s3_endpoint)
        return MarkerCheckedBucket(identity, named_bucket, lambda: open_buckets()(location), currency_check(role))

    @cache
    def get_stated(role: BucketRole, store: "S3ObjectStore") -> MarkerCheckedBucket:
        named_bucket = NamedBucket(role=role, bucket=store.bucket, address=store.endpoint)
        return MarkerCheckedBucket(identity, named_bucket, lambda: store, currency_check(role))

    def currency_check(role: BucketRole) -> Callable[[], None] | None:
        return require_current if role in {BucketRole.PRIMARY, BucketRole.TIERED} else None

    def get_bucket(role: BucketRole, location: CopyLocation) -> MarkerCheckedBucket:
        is_configured = location == CopyLocation(location.bucket)
        return get_configured(role, location) if is_configured else get_stated(role, open_buckets()(location))

    return get_bucket


def identify_catalog_by_records_marker(
    settings: Settings,
) -> "tuple[LostCatalogIdentity, Callable[[BucketRole, str], tuple[NamedBucket, S3ObjectStore]]]":
    """Return the catalog in the marker of the records bucket, and a function that opens buckets without a check."""
    buckets = _open_buckets_by_location(settings)

    def get_bucket(role: BucketRole, bucket: str) -> "tuple[NamedBucket, S3ObjectStore]":
        return NamedBucket(role=role, bucket=bucket, address=settings.s3_endpoint), buckets(CopyLocation(bucket))

    return LostCatalogIdentity.read_from_bucket(*get_bucket(BucketRole.RECORDS, settings.records_bucket)), get_bucket


def make_checked_bucket_opener_by_name(
    settings: Settings, identity: CatalogIdentity, *, fails_fast: bool = False
) -> Callable[[BucketRole, str], MarkerCheckedBucket]:
    get_bucket = make_checked_bucket_opener(settings, identity, fails_fast=fails_fast)
    return lambda role, bucket: get_bucket(role, CopyLocation(bucket))


def _open_buckets_by_location(settings: Settings, *, fails_fast: bool = False) -> "S3BucketsByLocation":
    from infra.objects.s3_store import S3BucketsByLocation  # noqa: PLC0415 - start-up time

    home = open_primary_bucket(settings, fails_fast=fails_fast)
    return S3BucketsByLocation(
        home, partial(_open_primary_bucket_at, settings, fails_fast), own_stack=uses_embedded_store(settings)
    )


def open_primary_bucket(settings: Settings, *, fails_fast: bool = False) -> "S3ObjectStore":
    """Open the primary bucket. An empty endpoint means AWS. Empty keys mean the usual AWS credentials.

    `fails_fast` sets short timeouts and one attempt, for commands whose user waits and can run the command again.
    """
    return _open_primary_bucket_at(settings, fails_fast, settings.s3_endpoint, settings.s3_region)


def _open_primary_bucket_at(settings: Settings, fails_fast: bool, endpoint: str, region: str) -> "S3ObjectStore":
    from infra.objects.s3_responses import RequestRetries  # noqa: PLC0415 - start-up time
    from infra.objects.s3_store import FAST_TIMEOUTS, S3ObjectStore, create_s3_client  # noqa: PLC0415 - start-up time

    client = create_s3_client(
        endpoint or None,
        region,
        settings.s3_access_key.get_secret_value() or None,
        settings.s3_secret_key.get_secret_value() or None,
        ca_file=read_tls_files(settings, "s3").ca,
        pool_size=2 * settings.activity_threads
        + settings.upload_threads
        + 8,  # connections for the threads in which readers prefetch
        **(FAST_TIMEOUTS if fails_fast else {}),
    )
    return S3ObjectStore(client, settings.primary_bucket, retries=RequestRetries.once() if fails_fast else None)
