"""Access to topics for Spark tasks: topics in order of size, and the buckets with the data of their logs."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from sqlalchemy import Select

from infra.objects.s3_store import BucketAddress
from logstore.catalog import Catalog
from logstore.catalog.engine.arrow_bulk import open_arrow_reader
from logstore.errors import UnknownObject, Unsupported
from logstore.identity.bucket_markers import BucketRole, NamedBucket
from logstore.identity.services.marker_checked_buckets import MarkerCheckedBucket
from logstore.log.services.segment_reader import TieredCopyFinder
from logstore.offload.tiered_copy import CopyLocation
from logstore.ports.catalog.log import TopicState
from logstore.ports.object_storage import OwnedStore
from logstore.positions import TopicId
from logstore.reconciliation.bulk_job_inputs_and_results import LEFT_OUT
from spark.sources.store_addresses import CatalogAddresses

TASKS_PER_CORE: Final = 4  # enough to even out tasks of different lengths
_MAX_FACTS: Final = 20
T = TypeVar("T")


def order_topics_by_size(
    database_url: str, size_queries: Callable[[], Iterable[Select[Any]]], topics: Collection[int]
) -> list[int]:
    """Return `topics`, largest first. If `topics` is empty, return all topics of the queries. Call this in an executor.

    The queries return the columns `topic_id` and `size`. Sizes of a topic from several queries are added.
    """
    size_by_topic = Counter[int]()
    with open_arrow_reader(database_url) as connection:
        for query in size_queries():
            for row in connection.table(query).to_pylist():
                size_by_topic[row["topic_id"]] += row["size"]
    return sorted(set(topics) or size_by_topic, key=lambda topic_id: (-size_by_topic[topic_id], topic_id))


def deal_round_robin(items: list[T], count: int) -> list[list[T]]:
    """Distribute the items in turn over `count` lists. If there are fewer items, each item gets its own list."""
    return [items[first::count] for first in range(min(count, len(items)))]


def is_active_topic(catalog: Catalog, topic_id: TopicId) -> bool:
    try:
        return catalog.topics.get_topic_by_id(topic_id).state is TopicState.ACTIVE
    except UnknownObject:
        return False


def unreadable_topic_facts(error_by_topic: Mapping[TopicId, str]) -> dict[str, str]:
    """Return `BulkJobSummary.facts` about the first 20 topics that could not be read."""
    topic_ids = sorted(error_by_topic)[:_MAX_FACTS]
    return {f"{LEFT_OUT}topic {topic_id}": error_by_topic[topic_id] for topic_id in topic_ids}


def open_log_stores(addresses: CatalogAddresses, catalog: Catalog) -> tuple[OwnedStore, TieredCopyFinder]:
    """Return access to the primary bucket and to tiered copies. A bucket of another catalog is refused."""

    def open_bucket(address: BucketAddress) -> OwnedStore:
        named = NamedBucket(role=BucketRole(address.role), bucket=address.bucket, address=address.endpoint)
        return MarkerCheckedBucket(catalog.identities, named, address.store)

    def open_tiered(location: CopyLocation) -> OwnedStore:
        for address in addresses.tiered:
            if address.bucket == location.bucket:
                return open_bucket(address)
        raise Unsupported(f"bucket {location.bucket}: tasks in Spark read tiered copies in the configured bucket alone")

    return open_bucket(addresses.primary), TieredCopyFinder(offloads=catalog.offloads, buckets=open_tiered)
