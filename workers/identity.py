"""Whether the stores that the settings name are the catalog's: adopted by upgrades, compared at every start."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from infra.catalog import Database, SqlCatalog
from logstore.errors import CatalogMismatch, SextonError
from logstore.identity import Role
from logstore.own_stores import OwnStore, OwnStores
from logstore.places import TieredPlace
from workers.connections import open_catalog
from workers.settings import Settings
from workers.wiring import LogStore, own_buckets

_log = logging.getLogger(__name__)


def buckets_of(settings: Settings) -> tuple[tuple[Role, str], ...]:
    """Every bucket that the settings name."""
    return (
        (Role.PRIMARY, settings.primary_bucket),
        (Role.TIERED, settings.tiered_bucket),
        (Role.RECORDS, settings.records_bucket),
    )


def knows_a_store(settings: Settings) -> bool:
    """Whether an object store is known: one with an address, or AWS beside a database outside of the home."""
    in_home = settings.database_url == Settings(home=settings.home).database_url
    return bool(settings.s3_endpoint) or not in_home


def adopt_buckets(settings: Settings, database: Database) -> dict[str, str]:
    """Mark each bucket as the catalog's, unless it is; what became of each.

    A store that does not answer, or has no such bucket, is left to whoever uses it first.

    Raises:
        CatalogMismatch: A bucket is not the catalog's.
    """
    own = own_buckets(settings, OwnStores(SqlCatalog(database).identities))
    return {bucket: _adopted(own(role, bucket)) for role, bucket in buckets_of(settings)}


def _adopted(store: OwnStore) -> str:
    try:
        store.require()
    except CatalogMismatch:
        raise
    except SextonError as error:
        return f"not marked yet: {error}"
    return "marked"


def compare_buckets(log: LogStore, settings: Settings) -> None:
    """Refuse to start on buckets of another catalog.

    Where the store does not answer now, the first use of each bucket compares.

    Raises:
        CatalogMismatch: A bucket is not the catalog's.
    """
    for store in (log.objects, log.buckets(TieredPlace(settings.tiered_bucket))):
        try:
            store.require()
        except CatalogMismatch:
            raise
        except SextonError as error:
            _log.warning("a bucket is compared with the catalog at its first use: %s", error)


@contextmanager
def own_store(settings: Settings) -> Iterator[SqlCatalog]:
    """The catalog, once the primary bucket was seen to be its own: for whoever starts jobs upon both.

    Raises:
        CatalogMismatch, CatalogVersionMismatch: They are not of one another, or the catalog is not of this build.
        StoreUnavailable, ServiceRefused: The store did not answer, or refuses us.
    """
    with open_catalog(settings) as catalog:
        own_buckets(settings, OwnStores(catalog.identities))(Role.PRIMARY, settings.primary_bucket).require()
        yield catalog
