"""Topics and their logs, as tasks in executors read them: the largest first, those that are deleted left out."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Select

from infra.catalog import SqlCatalog
from infra.catalog.engine.adbc import open_arrow_reader
from logstore.errors import UnknownObject, Unsupported
from logstore.identity.markers import NamedBucket, Role
from logstore.identity.services.own_stores import OwnStores
from logstore.log.services.tiered_segments import TieredSegments
from logstore.offload.tiered import CopyLocation
from logstore.ports.catalog import TopicState
from logstore.ports.objects import OwnedStore
from logstore.positions import TopicId
from logstore.reconciliation.jobs import LEFT_OUT
from spark.sources.objects import NativeAddresses, StoreAddress

WAVES: Final = 4
"""Tasks for each that can run at once: enough to even out."""

_SHOWN: Final = 20
T = TypeVar("T")


def by_size(database_url: str, sizes: Callable[[], Iterable[Select[Any]]], topics: Collection[int]) -> list[int]:
    """In an executor: the topics that are asked for, or all that the queries find, the largest first.

    Args:
        database_url: The catalog's.
        sizes: Queries of `topic_id` and `size`; a topic that several find is as large as all of them say.
        topics: Which; none: all.
    """
    found = Counter[int]()
    with open_arrow_reader(database_url) as connection:
        for query in sizes():
            for row in connection.table(query).to_pylist():
                found[row["topic_id"]] += row["size"]
    return sorted(set(topics) or found, key=lambda topic_id: (-found[topic_id], topic_id))


def dealt(items: list[T], count: int) -> list[list[T]]:
    """The items, dealt in turn to `count` lists, or to fewer where there are fewer items."""
    return [items[at::count] for at in range(min(count, len(items)))]


def is_active(catalog: SqlCatalog, topic_id: TopicId) -> bool:
    """Whether the topic exists and is not about to be deleted."""
    try:
        return catalog.topics.by_id(topic_id).state is TopicState.ACTIVE
    except UnknownObject:
        return False


def left_out(whys: Mapping[TopicId, str]) -> dict[str, str]:
    """The facts of a job that says of the first topics that could not be read, why."""
    return {f"{LEFT_OUT}topic {topic_id}": whys[topic_id] for topic_id in sorted(whys)[:_SHOWN]}


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
