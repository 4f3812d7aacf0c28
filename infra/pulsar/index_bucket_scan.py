"""Index buckets of delayed messages: those that subscriptions name, with what their ledgers say."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from infra.pulsar.bookie_reads import BookieConnections, BookieDirectory, BookieEntry, read_stored_entries
from infra.pulsar.ledger_scan import find_ledger_metadata
from infra.pulsar.reference_scan import list_namespaces, list_topics
from infra.pulsar.scan_facts import ScanProblem
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import StoreUnavailable, UnknownObject
from logstore.pulsar.delayed_buckets import IndexBucketSegment, parse_index_bucket
from logstore.pulsar.ledger_metadata import LedgerMetadata
from logstore.pulsar.ledger_references import IndexBucketReference, find_cursor_references
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS, topic_from_managed_ledger

_BUCKETS_PER_BATCH: Final = 100
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
    names_and_problems = _find_named_buckets(reader, reader.list_paths(topics))
    with BookieConnections(BookieDirectory(reader, ledgers_root), timeout_s=_BOOKIE_TIMEOUT_S) as connections:
        while batch := list(islice(names_and_problems, _BUCKETS_PER_BATCH)):
            named = [item for item in batch if isinstance(item, _NamedBucket)]
            buckets = _read_buckets(reader, connections, ledgers_root, named)
            dangling = dict.fromkeys(bucket.cursor for bucket in buckets if bucket.state is IndexBucketState.DANGLING)
            named_now = set(_find_named_buckets(reader, dangling))
            yield from (item for item in batch if isinstance(item, ScanProblem))
            for bucket in buckets:
                is_dangling = bucket.state is IndexBucketState.DANGLING
                if not is_dangling or _NamedBucket(bucket.cursor, bucket.reference) in named_now:
                    yield bucket


@dataclass(frozen=True, slots=True)
class _NamedBucket:
    cursor: str
    reference: IndexBucketReference


def _find_named_buckets(reader: ZnodeReader, cursors: Iterable[str]) -> Iterator[_NamedBucket | ScanProblem]:
    for path, znode in reader.read(cursors):
        try:
            references = find_cursor_references(znode.data).index_buckets if znode is not None else ()
        except UnreadableMetadata as error:
            yield ScanProblem(path, str(error))
        else:
            yield from (_NamedBucket(path, reference) for reference in references)


def _read_buckets(
    reader: ZnodeReader, connections: BookieConnections, ledgers_root: str, named: Sequence[_NamedBucket]
) -> list[ScannedIndexBucket]:
    metadata_by_ledger_id: dict[int, LedgerMetadata] = {}
    entry_by_ledger_id: dict[int, BookieEntry | StoreUnavailable | UnreadableMetadata] = {}
    ledger_ids = [bucket.reference.ledger_id for bucket in named]
    for ledger_id, metadata in find_ledger_metadata(reader, ledgers_root, ledger_ids).items():
        if isinstance(metadata, UnreadableMetadata):
            entry_by_ledger_id[ledger_id] = metadata
        elif metadata is not None:
            metadata_by_ledger_id[ledger_id] = metadata
    first_entries = [(ledger_id, 0) for ledger_id in metadata_by_ledger_id]
    entry_by_place = read_stored_entries(connections, metadata_by_ledger_id, first_entries)
    entry_by_ledger_id |= {ledger_id: entry for (ledger_id, _), entry in entry_by_place.items()}
    return [
        _make_bucket(bucket, metadata_by_ledger_id.get(ledger_id), entry_by_ledger_id.get(ledger_id))
        for bucket, ledger_id in zip(named, ledger_ids, strict=True)
    ]


def _make_bucket(
    named: _NamedBucket,
    metadata: LedgerMetadata | None,
    entry: BookieEntry | StoreUnavailable | UnreadableMetadata | None,
) -> ScannedIndexBucket:
    """Return a bucket. Without an entry and a reason why it cannot be read, its ledger does not exist."""
    size_bytes = metadata.size_bytes if metadata else 0
    bucket = ScannedIndexBucket(
        cursor=named.cursor, reference=named.reference, state=IndexBucketState.DANGLING, size_bytes=size_bytes
    )
    try:
        if entry is None:
            return bucket
        if isinstance(entry, Exception):
            raise entry
        return replace(bucket, state=IndexBucketState.STORED, segments=tuple(parse_index_bucket(entry.payload)))
    except (StoreUnavailable, UnreadableMetadata) as error:
        return replace(bucket, state=IndexBucketState.UNREADABLE, problem=str(error))
