"""Whether the stores that the settings name are the catalog's: adopted by upgrades, compared at every start."""

import logging
from collections.abc import Callable

from infra.catalog import Database, SqlCatalog
from logstore.errors import CatalogMismatch, CatalogOutdated, ServiceRefused, SextonError
from logstore.identity.markers import Role
from logstore.identity.services.own_stores import OwnStores
from logstore.offload.tiered import CopyLocation
from logstore.ports.catalog import Identities
from logstore.ports.objects import Buckets, OwnedStore
from workers.assembly.buckets import own_buckets_by_name
from workers.settings import Settings

_log = logging.getLogger(__name__)


def buckets_of(settings: Settings) -> tuple[tuple[Role, str], ...]:
    """Every bucket that the settings name."""
    return (
        (Role.PRIMARY, settings.primary_bucket),
        (Role.TIERED, settings.tiered_bucket),
        (Role.RECORDS, settings.records_bucket),
        *((Role.REPLICA, bucket) for bucket in settings.replicas),
    )


def adopt_buckets(settings: Settings, database: Database) -> dict[str, str]:
    """Mark each bucket as the catalog's, unless it is marked; returns a phrase for each bucket.

    A bucket whose store does not answer, or that does not exist, is marked at its first use.

    Raises:
        CatalogMismatch: A bucket is not the catalog's.
    """
    own = own_buckets_by_name(settings, OwnStores(SqlCatalog(database).identities))
    asked = {bucket: _unanswered(own(role, bucket).require) for role, bucket in buckets_of(settings)}
    return {bucket: f"not marked yet: {why}" if why else "marked" for bucket, why in asked.items()}


def _unanswered(compare: Callable[[], object]) -> SextonError | None:
    """Compare a bucket with the catalog; why that cannot be done now, or None.

    Raises:
        CatalogMismatch: It is not the catalog's.
        CatalogOutdated: The database is older than its record log.
    """
    try:
        compare()
    except (CatalogMismatch, CatalogOutdated):
        raise
    except SextonError as error:
        return error
    return None


def compare_buckets(objects: OwnedStore, buckets: Buckets, settings: Settings) -> None:
    """Refuse to start on buckets of another catalog.

    Where the store does not answer now, or refuses us for a moment, the first use of each bucket compares.

    Raises:
        CatalogMismatch: A bucket is not the catalog's.
        CatalogOutdated: The database is older than its record log.
        ServiceRefused: The store refuses us the primary bucket: no such bucket, no permission, wrong keys.
    """
    for store in (objects, buckets(CopyLocation(settings.tiered_bucket))):
        why = _unanswered(store.require)
        if store is objects and isinstance(why, ServiceRefused) and not why.may_pass:
            raise why
        if why:
            _log.warning("a bucket is compared with the catalog at its first use: %s", why)


def refuse_foreign_bucket(settings: Settings, identities: Identities) -> None:
    """Refuse a primary bucket that is another catalog's, for a process that starts jobs and uses no bucket itself.

    A store that is not known, does not answer or refuses us is no obstacle: durable jobs wait for it.

    Raises:
        CatalogMismatch: It is another catalog's, or not the one that this catalog has marked.
    """
    if not settings.store_is_known:
        return
    store = own_buckets_by_name(settings, OwnStores(identities), hasty=True)(Role.PRIMARY, settings.primary_bucket)
    if why := _unanswered(store.look):
        _log.info("the primary bucket is left to the workers: %s", why)
