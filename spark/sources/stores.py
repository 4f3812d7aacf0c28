"""Where a task in an executor reads a topic's log: the buckets of the catalog that it has opened."""

from functools import partial

from infra.catalog import SqlCatalog
from logstore.errors import Unsupported
from logstore.identity.markers import NamedBucket, Role
from logstore.identity.services.own_stores import OwnStores
from logstore.log.services.tiered_segments import TieredSegments
from logstore.offload.locations import CopyLocation
from logstore.ports.objects import OwnedStore
from spark.sources.objects import NativeAddresses, StoreAddress


def log_stores(addresses: NativeAddresses, catalog: SqlCatalog) -> tuple[OwnedStore, TieredSegments]:
    """The primary bucket, and tiered copies; each is refused where it is not the catalog's."""
    stores = OwnStores(catalog.identities)
    tiered = TieredSegments(offloads=catalog.offloads, buckets=partial(_tiered, addresses, stores))
    return _owned(stores, addresses.primary), tiered


def _tiered(addresses: NativeAddresses, stores: OwnStores, location: CopyLocation) -> OwnedStore:
    for address in addresses.tiered:
        if address.bucket == location.bucket:
            return _owned(stores, address)
    raise Unsupported(f"bucket {location.bucket}: tasks in Spark read tiered copies in the configured bucket alone")


def _owned(stores: OwnStores, address: StoreAddress) -> OwnedStore:
    named = NamedBucket(role=Role(address.role), bucket=address.bucket, address=address.endpoint)
    return stores.own(named, address.store)
