"""Index buckets of delayed messages: those that subscriptions name, with what their ledgers say."""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import islice, repeat
from threading import Lock
from typing import Final

from infra.pulsar.bookie_reads import BookieAddress, BookieDirectory, read_first_entry
from infra.pulsar.reference_scan import list_namespaces, list_topics
from infra.pulsar.scan_facts import ScanProblem
from infra.pulsar.znode_reads import Znode, ZnodeReader
from logstore.errors import StoreUnavailable, UnknownObject
from logstore.pulsar.delayed_buckets import (
    IndexBucketReference,
    IndexBucketSegment,
    find_index_buckets,
    parse_index_bucket,
)
from logstore.pulsar.ledger_metadata import parse_ledger_metadata
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, format_ledger_path, topic_from_managed_ledger

_BUCKETS_PER_BATCH: Final = 1_000
_PARALLEL_READS: Final = 16
_BOOKIE_TIMEOUT_S: Final = 3.0  # a person waits


class IndexBucketState(StrEnum):
    STORED = "stored"
    DANGLING = "dangling"  # the ledger does not exist
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedIndexBucket:
    """Bucket of a subscription. A bucket that is not `STORED` has no segments."""

    cursor: str  # path of the subscription's znode
    reference: IndexBucketReference
    state: IndexBucketState
    segments: tuple[IndexBucketSegment, ...] = ()
    size_bytes: int = 0  # 0 for a ledger that is not closed
    problem: str = ""  # why the bucket cannot be read


def list_partitions(reader: ZnodeReader, managed_ledger: str) -> list[str]:
    """Return the paths of a topic and of all its partitions that exist.

    Raises:
        UnknownObject: The cluster has neither the topic nor a partition of it.
    """
    parent, _, local = managed_ledger.rpartition("/")
    partition = re.compile(rf"{re.escape(local)}(-partition-(0|[1-9]\d*))?", re.ASCII)
    ((_, names),) = reader.list_children([f"{MANAGED_LEDGERS}/{parent}"])
    matching = [name for name in names or () if partition.fullmatch(name)]
    if not matching:
        raise UnknownObject("topic", expected="a topic of the cluster", found=topic_from_managed_ledger(managed_ledger))
    in_order = sorted(matching, key=lambda name: (len(name), name))  # partition 10 after partition 9
    return [f"{MANAGED_LEDGERS}/{parent}/{name}" for name in in_order]


def scan_all_index_buckets(reader: ZnodeReader, ledgers_root: str) -> Iterator[ScannedIndexBucket | ScanProblem]:
    """Yield the buckets of all topics, and what cannot be read. Memory holds one batch."""
    problems: list[ScanProblem] = []

    def iterate_topics() -> Iterator[str]:
        for topic in list_topics(reader, list_namespaces(reader)):
            if isinstance(topic, ScanProblem):
                problems.append(topic)
            else:
                yield topic

    for item in scan_index_buckets(reader, ledgers_root, iterate_topics()):
        yield from problems
        problems.clear()
        yield item
    yield from problems


def scan_index_buckets(
    reader: ZnodeReader, ledgers_root: str, topics: Iterable[str]
) -> Iterator[ScannedIndexBucket | ScanProblem]:
    """Yield the buckets of some topics, by subscription and ledgers. Memory holds one batch.

    Pulsar deletes the ledger of a bucket before the name. A bucket that has lost its name meanwhile is left out.
    """
    directory, lock = BookieDirectory(reader, ledgers_root), Lock()
    find_address_once = cache(directory.find_address)

    def find_address(bookie_id: str) -> BookieAddress | None:
        with lock:  # a reader of znodes has one thread
            return find_address_once(bookie_id)

    found = _find_named_buckets(reader, reader.list_paths(topics))
    while batch := list(islice(found, _BUCKETS_PER_BATCH)):
        named = [item for item in batch if isinstance(item, _NamedBucket)]
        paths = [f"{ledgers_root}/{format_ledger_path(bucket.reference.ledger_id)}" for bucket in named]
        znodes = [znode for _, znode in reader.read(paths)]
        with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="index-buckets") as threads:
            buckets = list(threads.map(_read_bucket, named, znodes, repeat(find_address)))
        dangling = dict.fromkeys(bucket.cursor for bucket in buckets if bucket.state is IndexBucketState.DANGLING)
        named_now = set(_find_named_buckets(reader, dangling))
        yield from (item for item in batch if isinstance(item, ScanProblem))
        for bucket in buckets:
            if (
                bucket.state is not IndexBucketState.DANGLING
                or _NamedBucket(bucket.cursor, bucket.reference) in named_now
            ):
                yield bucket


@dataclass(frozen=True, slots=True)
class _NamedBucket:
    cursor: str
    reference: IndexBucketReference


def _find_named_buckets(reader: ZnodeReader, cursors: Iterable[str]) -> Iterator[_NamedBucket | ScanProblem]:
    for path, znode in reader.read(cursors):
        try:
            references = find_index_buckets(znode.data) if znode is not None else []
        except UnreadableMetadata as error:
            yield ScanProblem(path, str(error))
        else:
            yield from (_NamedBucket(path, reference) for reference in references)


def _read_bucket(
    named: _NamedBucket, znode: Znode | None, find_address: Callable[[str], BookieAddress | None]
) -> ScannedIndexBucket:
    bucket = ScannedIndexBucket(cursor=named.cursor, reference=named.reference, state=IndexBucketState.DANGLING)
    if znode is None:
        return bucket
    try:
        metadata = parse_ledger_metadata(znode.data)
        bucket = replace(bucket, size_bytes=metadata.size_bytes)
        entry = read_first_entry(named.reference.ledger_id, metadata, find_address, timeout_s=_BOOKIE_TIMEOUT_S)
        return replace(bucket, state=IndexBucketState.STORED, segments=tuple(parse_index_bucket(entry.payload)))
    except (StoreUnavailable, UnreadableMetadata) as error:
        return replace(bucket, state=IndexBucketState.UNREADABLE, problem=str(error))
