"""The buckets that settings name, each compared with the catalog before its first use.

Imports no service of the log: a process that only compares a bucket starts without them.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from logstore.clock import Backoff
from logstore.identity.markers import NamedBucket, Role
from logstore.identity.services.lost_catalogs import LostCatalog
from logstore.identity.services.own_stores import OwnStore, OwnStores
from logstore.offload.tiered import CopyLocation
from workers.settings import Settings, read_stack_record
from workers.settings.tls_files import TlsFiles

if TYPE_CHECKING:
    from infra.objects import S3Buckets, S3ObjectStore


def on_own_stack(settings: Settings) -> bool:
    """Whether the store is the one that this home starts itself: its port may change, so no context names it."""
    return bool(settings.s3_endpoint) and read_stack_record(settings.home).get("s3_endpoint") == settings.s3_endpoint


def own_buckets(
    settings: Settings, stores: OwnStores, *, hasty: bool = False, still_current: Callable[[], None] | None = None
) -> Callable[[Role, CopyLocation], OwnStore]:
    """Buckets by role and location: each is compared with the catalog before its first use.

    What `still_current` raises refuses those of the log itself, the primary and the tiered ones; see `OwnStores.own`.
    """

    @cache
    def resolved() -> "S3Buckets":  # most commands ask the store nothing, and boto3 alone takes 0.3 s
        from infra.objects import S3Buckets  # noqa: PLC0415 - start-up time

        home = primary_bucket(settings, hasty=hasty)
        return S3Buckets(home, partial(_store_at, settings, hasty), own_stack=on_own_stack(settings))

    @cache
    def at_home(role: Role, location: CopyLocation) -> OwnStore:
        named = NamedBucket(role=role, bucket=location.bucket, address=settings.s3_endpoint)
        return stores.own(named, lambda: resolved()(location), asked(role))

    @cache
    def stated(role: Role, store: "S3ObjectStore") -> OwnStore:
        named = NamedBucket(role=role, bucket=store.bucket, address=store.endpoint)
        return stores.own(named, lambda: store, asked(role))

    def asked(role: Role) -> Callable[[], None] | None:
        return still_current if role in {Role.PRIMARY, Role.TIERED} else None

    def own(role: Role, location: CopyLocation) -> OwnStore:
        configured = location == CopyLocation(location.bucket)
        return at_home(role, location) if configured else stated(role, resolved()(location))

    return own


def bare_buckets(settings: Settings) -> "Callable[[str], S3ObjectStore]":
    """Buckets of the configured store by name; the caller checks which catalog they belong to."""
    from infra.objects import S3Buckets  # noqa: PLC0415 - start-up time

    home = primary_bucket(settings)
    known = S3Buckets(home, partial(_store_at, settings, False), own_stack=on_own_stack(settings))
    return lambda bucket: known(CopyLocation(bucket))


def marked_buckets(
    settings: Settings,
) -> "tuple[LostCatalog, Callable[[Role, str], tuple[NamedBucket, S3ObjectStore]]]":
    """The catalog of which the marker of the records bucket tells, without asking it; and buckets of the store by name.

    Raises:
        CatalogMismatch: The records bucket says of no catalog that it is its own.
        StoreUnavailable, ServiceRefused: The store does not answer, or refuses us.
    """
    bare = bare_buckets(settings)

    def at(role: Role, bucket: str) -> "tuple[NamedBucket, S3ObjectStore]":
        return NamedBucket(role=role, bucket=bucket, address=settings.s3_endpoint), bare(bucket)

    return LostCatalog.of(*at(Role.RECORDS, settings.records_bucket)), at


def own_buckets_by_name(
    settings: Settings, stores: OwnStores, *, hasty: bool = False
) -> Callable[[Role, str], OwnStore]:
    """As `own_buckets`, by the names of buckets of the configured store."""
    own = own_buckets(settings, stores, hasty=hasty)
    return lambda role, bucket: own(role, CopyLocation(bucket))


def primary_bucket(settings: Settings, *, hasty: bool = False) -> "S3ObjectStore":
    """The primary bucket; without an endpoint it is AWS's, without keys the host's role is used."""
    return _store_at(settings, hasty, settings.s3_endpoint, settings.s3_region)


def _store_at(settings: Settings, hasty: bool, endpoint: str, region: str) -> "S3ObjectStore":
    """With `hasty`, short time-outs and one attempt: a person waits, and can try again.

    Raises:
        InvalidInput: The file of authorities cannot be used.
    """
    from infra.objects import Retries, S3ObjectStore, make_client  # noqa: PLC0415 - start-up time

    haste: dict[str, Any] = {"connect_timeout_s": 3.0, "read_timeout_s": 5.0} if hasty else {}
    client = make_client(
        endpoint or None,
        region,
        settings.s3_access_key.get_secret_value() or None,
        settings.s3_secret_key.get_secret_value() or None,
        ca_file=TlsFiles.of(settings, "s3").ca,
        pool_size=2 * settings.activity_threads + settings.upload_threads + 8,  # readers prefetch beside the activities
        **haste,
    )
    return S3ObjectStore(
        client, settings.primary_bucket, retries=Retries(backoff=Backoff(attempts=1)) if hasty else None
    )
