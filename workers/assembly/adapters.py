"""The adapters that settings name: database, buckets, and the log assembled over them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from infra.catalog import SqlCatalog, open_catalog
from logstore.identity.markers import NamedBucket, Role
from logstore.identity.services.own_stores import OwnStore, OwnStores
from logstore.log.services import RollPolicy
from logstore.offload.places import DRIVER, TieredPlace
from workers.assembly.log import LogStore, Policies, assemble
from workers.settings import Settings
from workers.settings.recorded import read_recorded

if TYPE_CHECKING:
    from infra.objects import Places, S3ObjectStore


@contextmanager
def open_log(settings: Settings) -> Iterator[LogStore]:
    """Open the log store that the settings name, and close it at the end.

    Raises:
        CatalogVersionMismatch: The catalog is not of this build's version.
        InvalidInput: A database URL that cannot be used.
        StoreUnavailable: The database does not answer.
    """
    timeout_s = settings.registration_timeout
    with (
        open_catalog(settings.database_url, registration_timeout_s=timeout_s) as catalog,
        log_over(catalog, settings) as log,
    ):
        yield log


@contextmanager
def log_over(catalog: SqlCatalog, settings: Settings) -> Iterator[LogStore]:
    """Open the log store over a catalog that is open; it stays open."""
    own = own_places(settings, OwnStores(catalog.identities))
    with assemble(
        catalog=catalog,
        objects=own(Role.PRIMARY, TieredPlace(settings.primary_bucket)),
        buckets=partial(own, Role.TIERED),
        policies=_policies(settings),
    ) as log:
        yield log


def _policies(settings: Settings) -> Policies:
    return Policies(
        scratch=settings.home / "tmp",
        tiered_place=_tiered_place(settings),
        application=settings.application,
        roll=RollPolicy(
            max_entries=settings.ledger_max_entries,
            max_size_bytes=settings.ledger_max_bytes,
            max_age_s=settings.ledger_max_age,
        ),
        registration_timeout_s=settings.registration_timeout,
        cursor_inline_bytes=settings.cursor_inline_bytes,
        finished_retention_s=settings.finished_retention,
    )


def _tiered_place(settings: Settings) -> dict[str, str]:
    """The driver's own metadata, as each offload context keeps it: what deletion will need, whoever asks for it."""
    endpoint = "" if _on_own_stack(settings) else settings.s3_endpoint
    known = {"bucket": settings.tiered_bucket, "region": settings.s3_region, "endpoint": endpoint}
    return {"driver": DRIVER} | {name: value for name, value in known.items() if value}


def _on_own_stack(settings: Settings) -> bool:
    """Whether the store is the one that this home starts itself: its port may change, so no context names it."""
    return bool(settings.s3_endpoint) and read_recorded(settings.home).get("s3_endpoint") == settings.s3_endpoint


def own_places(
    settings: Settings, stores: OwnStores, *, hasty: bool = False
) -> Callable[[Role, TieredPlace], OwnStore]:
    """Buckets by role and place: each is compared with the catalog before its first use."""

    @cache
    def places() -> "Places":  # most commands ask the store nothing, and boto3 alone takes 0.3 s
        from infra.objects import Places  # noqa: PLC0415 - start-up time

        home = primary_bucket(settings, hasty=hasty)
        return Places(home, partial(_store_at, settings, hasty), own_stack=_on_own_stack(settings))

    @cache
    def at_home(role: Role, place: TieredPlace) -> OwnStore:
        named = NamedBucket(role=role, bucket=place.bucket, address=settings.s3_endpoint)
        return stores.own(named, lambda: places()(place))

    @cache
    def stated(role: Role, store: "S3ObjectStore") -> OwnStore:
        return stores.own(NamedBucket(role=role, bucket=store.bucket, address=store.endpoint), lambda: store)

    def own(role: Role, place: TieredPlace) -> OwnStore:
        return at_home(role, place) if place == TieredPlace(place.bucket) else stated(role, places()(place))

    return own


def own_buckets(settings: Settings, stores: OwnStores, *, hasty: bool = False) -> Callable[[Role, str], OwnStore]:
    """As `own_places`, by the names of buckets of the configured store."""
    own = own_places(settings, stores, hasty=hasty)
    return lambda role, bucket: own(role, TieredPlace(bucket))


def primary_bucket(settings: Settings, *, hasty: bool = False) -> "S3ObjectStore":
    """The primary bucket; without an endpoint it is AWS's, without keys the host's role is used."""
    return _store_at(settings, hasty, settings.s3_endpoint, settings.s3_region)


def _store_at(settings: Settings, hasty: bool, endpoint: str, region: str) -> "S3ObjectStore":
    """Hasty: for a person who waits, and can ask again."""
    from infra.objects import connect  # noqa: PLC0415 - start-up time
    from infra.objects.patience import Patience  # noqa: PLC0415

    haste: dict[str, Any] = {"connect_timeout_s": 3.0, "read_timeout_s": 5.0, "patience": Patience(attempts=1)}

    return connect(
        endpoint or None,
        region,
        settings.s3_access_key.get_secret_value() or None,
        settings.s3_secret_key.get_secret_value() or None,
        settings.primary_bucket,
        pool_size=2 * settings.activity_threads + settings.upload_threads + 8,  # readers prefetch beside the activities
        **(haste if hasty else {}),
    )
