"""Where a task in an executor reads a topic's log: the buckets of the catalog that it has opened."""

from functools import partial

from infra.catalog import SqlCatalog
from logstore.errors import Unsupported
from logstore.identity.markers import NamedBucket, Role
from logstore.identity.services.own_stores import OwnStores
from logstore.log.services.tiered_segments import TieredSegments
from logstore.offload.places import TieredPlace
from logstore.ports.objects import OwnedStore
from spark.sources.objects import NativePlaces, StoreAddress


def log_stores(places: NativePlaces, catalog: SqlCatalog) -> tuple[OwnedStore, TieredSegments]:
    """The primary bucket, and tiered copies; each is refused where it is not the catalog's."""
    stores = OwnStores(catalog.identities)
    tiered = TieredSegments(offloads=catalog.offloads, buckets=partial(_tiered, places, stores))
    return _owned(stores, places.primary), tiered


def _tiered(places: NativePlaces, stores: OwnStores, place: TieredPlace) -> OwnedStore:
    for address in places.tiered:
        if address.bucket == place.bucket:
            return _owned(stores, address)
    raise Unsupported(f"bucket {place.bucket}: tasks in Spark read tiered copies in the configured bucket alone")


def _owned(stores: OwnStores, address: StoreAddress) -> OwnedStore:
    named = NamedBucket(role=Role(address.role), bucket=address.bucket, address=address.endpoint)
    return stores.own(named, address.store)
