"""Estimates of a planned store's size and of its load on each service.

Print a Markdown table for a store:

    python -m workers.operations.sizing TOPICS LEDGERS [CLUSTERS]

Source: rows and blocks as `tests/workers/operations/test_sizing.py` measures them; S3's pages of 1,000 keys.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from logstore.deletion.services.absence_proofs import SAMPLE_KEYS
from logstore.errors import InvalidInput
from logstore.log.ledger_object_keys import SHARDS
from logstore.records.block_files import MAX_VERSIONS_PER_BLOCK
from workflows.deletion.job_definitions import DeletionPolicy, TrimTopicsInput

ROW_BYTES: Final[Mapping[str, Mapping[str, int]]] = {
    "postgresql": {
        "topic": 210,
        "ledger_list": 132,
        "cursor": 190,
        "ledger": 189,
        "ledger_copy": 84,
        "segment": 181,
        "pending_deletion": 494,
    },
    "sqlite": {
        "topic": 142,
        "ledger_list": 61,
        "cursor": 84,
        "ledger": 79,
        "ledger_copy": 47,
        "segment": 105,
        "pending_deletion": 347,
    },
}
"""Bytes of a new row with its index entries, by database and table. Updates enlarge PostgreSQL's files."""

MANIFEST_BLOCK_BYTES: Final = 270

SEGMENT_RECORD_BYTES: Final = 40
"""Bytes per segment in a full block, mostly for the segment's digest. Most records are segments."""

EVENTS_PER_ACTIVITY: Final = 6
"""Events per activity in a history: three of the activity, and three of the next workflow task."""

REBUILT_RECORDS_PER_CORE_S: Final = 20_000
"""Records per second that one core finds and loads in a rebuild: 5,000,000 in two minutes on two cores."""

KEYS_PER_PAGE: Final = 1_000
"""Maximum number of keys in one LIST and in one DeleteObjects."""

_DAY_S: Final = 86_400
_DEFAULT_POLICY: Final = DeletionPolicy()
_TOPICS_PER_PAGE: Final = TrimTopicsInput().page


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStore:
    """Contents of a planned store. All numbers are at least 1."""

    topics: int
    ledgers: int  # closed and open ledgers of all topics
    segments: int = 10  # per ledger
    subscriptions: int = 2  # per topic
    life_days: float = 30.0  # age at which a ledger is deleted
    finished_days: float = 30.0  # time for which the row of a finished deletion is kept
    trim_interval_s: float = 300.0  # time in which trims check every topic once
    database: str = "postgresql"

    def __post_init__(self) -> None:
        for name in ("topics", "ledgers", "segments", "subscriptions", "life_days", "finished_days", "trim_interval_s"):
            if not 1 <= getattr(self, name) < 2**53:
                raise InvalidInput(name, expected="1 to 2**53 - 1", found=getattr(self, name))
        if self.database not in ROW_BYTES:
            raise InvalidInput("database", expected=" or ".join(sorted(ROW_BYTES)), found=self.database)

    def split_by_clusters(self, clusters: int) -> "PlannedStore":
        return replace(self, topics=ceil(self.topics / clusters), ledgers=ceil(self.ledgers / clusters))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSizeEstimate:
    """Sizes and rates of a planned store. Rates are averages over the day."""

    rows: Mapping[str, int]  # number of rows by large table
    row_bytes: Mapping[str, int]  # by large table, indexes included
    objects: int
    objects_per_shard: int  # the ledgers of a store are spread over 256 shards
    deleted_per_s: float  # deleted ledgers
    lists_per_s: float  # LIST requests of deletions
    deletes_per_s: float  # DeleteObjects requests of up to 1,000 keys
    gets_per_s: float  # GET requests of deletions, of one byte each
    puts_per_s: float  # PUT requests for segments and statements
    plan_lists: int  # LIST requests of one plan that lists the whole bucket
    events_per_s: float  # in Temporal's histories, for trims and deletions
    topics_per_s: float  # topics that trims check
    blocks: int  # of the record log, if all are full
    block_bytes: int  # of segments only
    manifest_bytes: int  # of each manifest; every flush writes a new one
    rebuild_core_s: float  # core seconds of Spark in a rebuild of the catalog

    @property
    def catalog_bytes(self) -> int:
        return sum(self.row_bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRequestEstimate:
    """Requests to the object store in phase two, for primary copies whose objects the first listing finds."""

    lists: int
    deletes: int
    gets: int  # GETs of one byte, which check a sample of the deleted objects


def estimate_s3_requests_of_deletion(
    ledgers: int, *, segments_per_ledger: int, chunk: int = _DEFAULT_POLICY.chunk
) -> DeletionRequestEstimate:
    """Estimate the requests for a batch of ledgers with `segments_per_ledger` segments each.

    A ledger needs a LIST for each page of keys. The only ledger of a chunk needs one more. Shared LISTs are ignored.
    """
    full_chunks, remaining_ledgers = divmod(ledgers, chunk)
    chunk_sizes = [chunk] * full_chunks + [remaining_ledgers] * bool(remaining_ledgers)
    return DeletionRequestEstimate(
        lists=ledgers * ceil((segments_per_ledger + 1) / KEYS_PER_PAGE) + chunk_sizes.count(1),
        gets=sum(min(SAMPLE_KEYS, size * segments_per_ledger) + min(SAMPLE_KEYS, size) for size in chunk_sizes),
        deletes=sum(
            ceil(size * segments_per_ledger / KEYS_PER_PAGE) + ceil(size / KEYS_PER_PAGE) for size in chunk_sizes
        ),
    )


def estimate_store_size(plan: PlannedStore) -> StoreSizeEstimate:
    deleted_per_s = plan.ledgers / plan.life_days / _DAY_S
    rows = {
        "topic": plan.topics,
        "ledger_list": plan.topics,
        "cursor": plan.topics * plan.subscriptions,
        "ledger": plan.ledgers,
        "ledger_copy": plan.ledgers,
        "segment": plan.ledgers * plan.segments,
        "pending_deletion": ceil(deleted_per_s * _DAY_S * plan.finished_days),
    }
    objects, bytes_per_row = plan.ledgers * (plan.segments + 1), ROW_BYTES[plan.database]
    requests = estimate_s3_requests_of_deletion(_DEFAULT_POLICY.chunk, segments_per_ledger=plan.segments)
    records = sum(count for table, count in rows.items() if table != "ledger_copy")
    blocks = ceil(records / MAX_VERSIONS_PER_BLOCK)
    topics_per_s = plan.topics / plan.trim_interval_s
    return StoreSizeEstimate(
        rows=rows,
        row_bytes={table: count * bytes_per_row[table] for table, count in rows.items()},
        objects=objects,
        objects_per_shard=ceil(objects / SHARDS),
        deleted_per_s=deleted_per_s,
        lists_per_s=deleted_per_s * requests.lists / _DEFAULT_POLICY.chunk,
        deletes_per_s=deleted_per_s * requests.deletes / _DEFAULT_POLICY.chunk,
        gets_per_s=deleted_per_s * requests.gets / _DEFAULT_POLICY.chunk,
        puts_per_s=deleted_per_s * (plan.segments + 1),  # in a steady state as many objects are written as deleted
        plan_lists=ceil(objects / KEYS_PER_PAGE),
        events_per_s=EVENTS_PER_ACTIVITY * (topics_per_s / _TOPICS_PER_PAGE + deleted_per_s / _DEFAULT_POLICY.chunk),
        topics_per_s=topics_per_s,
        blocks=blocks,
        block_bytes=rows["segment"] * SEGMENT_RECORD_BYTES,
        manifest_bytes=blocks * MANIFEST_BLOCK_BYTES,
        rebuild_core_s=records / REBUILT_RECORDS_PER_CORE_S,
    )


def format_size_table(sizes: Mapping[str, StoreSizeEstimate]) -> str:
    format_by_row: dict[str, Callable[[StoreSizeEstimate], str]] = {
        "catalog": lambda size: format_bytes(size.catalog_bytes),
        "of it segments": lambda size: format_bytes(size.row_bytes["segment"]),
        "of it ledgers with their copies": lambda size: format_bytes(
            size.row_bytes["ledger"] + size.row_bytes["ledger_copy"]
        ),
        "of it finished deletions": lambda size: format_bytes(size.row_bytes["pending_deletion"]),
        "objects": lambda size: f"{size.objects:,}",
        "objects of one of 256 prefixes": lambda size: f"{size.objects_per_shard:,}",
        "ledgers deleted a second": lambda size: _format_rate(size.deleted_per_s),
        "LIST a second, of deletions": lambda size: _format_rate(size.lists_per_s),
        "DeleteObjects a second": lambda size: _format_rate(size.deletes_per_s),
        "GET a second, of deletions": lambda size: _format_rate(size.gets_per_s),
        "PUT a second": lambda size: _format_rate(size.puts_per_s),
        "LIST of one reconciliation without an inventory": lambda size: f"{size.plan_lists:,}",
        "topics that a trim looks at in a second": lambda size: _format_rate(size.topics_per_s),
        "events a second in Temporal": lambda size: _format_rate(size.events_per_s),
        "blocks of the record log": lambda size: f"{size.blocks:,}",
        "bytes of its segments": lambda size: format_bytes(size.block_bytes),
        "bytes of each manifest": lambda size: format_bytes(size.manifest_bytes),
        "core hours of a rebuild": lambda size: _format_rate(size.rebuild_core_s / 3_600),
    }
    head = f"| | {' | '.join(sizes)} |\n|---|{'---:|' * len(sizes)}\n"
    return head + "".join(
        f"| {name} | {' | '.join(format_cell(size) for size in sizes.values())} |\n"
        for name, format_cell in format_by_row.items()
    )


def format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.3g} {unit}"
        count /= 1_000
    return f"{count:,.3g} TB"


def _format_rate(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.2g}"


if __name__ == "__main__":
    topics, ledgers, *clusters = map(int, sys.argv[1:])
    store = PlannedStore(topics=topics, ledgers=ledgers)
    columns = {"the store": estimate_store_size(store)}
    if clusters:
        columns[f"one of {clusters[0]} clusters"] = estimate_store_size(store.split_by_clusters(clusters[0]))
    sys.stdout.write(format_size_table(columns))
