"""How large a store gets, and what it asks of each service: arithmetic for planning, on figures that tests measure.

    python -m workers.operations.sizing TOPICS LEDGERS [CLUSTERS]

prints it for a store of your own, in Markdown.

Source: rows and blocks as `tests/workers/operations/test_sizing.py` measures them; S3's pages of 1,000 keys.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final

from logstore.deletion.services.absence import SAMPLE_KEYS
from logstore.errors import InvalidInput
from logstore.log.ledgers import SHARDS
from logstore.records.blocks import VERSIONS
from workflows.deletion.values import DeletionPolicy, TrimTopicsInput

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
"""Of one row with its share of the indexes, just written; updates and deletes let PostgreSQL's files grow further."""

MANIFEST_BLOCK_BYTES: Final = 270
"""Of one block in a manifest of the record log."""

SEGMENT_RECORD_BYTES: Final = 40
"""Of a segment in a full block, most of it the digest; there are more of these than of all other records."""

EVENTS: Final = 6
"""In a history, for one activity: its own three, and three of the workflow's task that goes on after it."""

SPARK_ROWS: Final = 20_000
"""Records that one core finds and loads in a second for a rebuild: 5,000,000 in two minutes on two cores."""

PAGE: Final = 1_000
"""Keys of one LIST and of one DeleteObjects."""

_DAY_S: Final = 86_400
_POLICY: Final = DeletionPolicy()
_TOPICS_AT_ONCE: Final = TrimTopicsInput().page


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlan:
    """The contents of a store that is planned; all numbers 1 or more."""

    topics: int
    ledgers: int  # closed ones and open ones, of all topics
    segments: int = 10  # of one ledger
    subscriptions: int = 2  # of one topic
    life_days: float = 30.0  # how long a ledger lives
    finished_days: float = 30.0  # how long its row of deletion is kept after that
    trim_interval_s: float = 300.0  # within which all topics are to be looked at once
    database: str = "postgresql"

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            InvalidInput: A number below 1, or a database that is neither `postgresql` nor `sqlite`.
        """
        for name in ("topics", "ledgers", "segments", "subscriptions", "life_days", "finished_days", "trim_interval_s"):
            if not 1 <= getattr(self, name) < 2**53:
                raise InvalidInput(name, expected="1 to 2**53 - 1", found=getattr(self, name))
        if self.database not in ROW_BYTES:
            raise InvalidInput("database", expected=" or ".join(sorted(ROW_BYTES)), found=self.database)

    def of(self, clusters: int) -> "StorePlan":
        """The part of one cluster where `clusters` of them share it evenly."""
        return StorePlan(
            topics=ceil(self.topics / clusters),
            ledgers=ceil(self.ledgers / clusters),
            segments=self.segments,
            subscriptions=self.subscriptions,
            life_days=self.life_days,
            finished_days=self.finished_days,
            trim_interval_s=self.trim_interval_s,
            database=self.database,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSize:
    """Sizes and rates of it, on average over the day."""

    rows: Mapping[str, int]  # of the large tables
    row_bytes: Mapping[str, int]  # of each of them, indexes included
    objects: int
    objects_a_shard: int  # of the 256 prefixes, over which ledgers are spread by their ids
    deleted_a_s: float  # ledgers
    lists_a_s: float
    deletes_a_s: float  # requests, of up to 1,000 keys each
    gets_a_s: float  # of deletions, one byte each
    puts_a_s: float  # of segments and statements
    plan_lists: int  # requests of one reconciliation that lists the whole bucket
    events_a_s: float  # of Temporal's histories, for trims and deletions
    topics_a_s: float  # that trims look at
    blocks: int  # of the record log, all full
    block_bytes: int  # of segments alone
    manifest_bytes: int  # of each manifest, which is put anew at each flush
    rebuild_core_s: float  # of Spark, for a rebuild of the catalog

    @property
    def catalog_bytes(self) -> int:
        """Of the large tables together."""
        return sum(self.row_bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRequests:
    """Requests of phase two at the object store, for primary copies of which it finds all objects at the first look."""

    lists: int
    deletes: int
    gets: int  # of one byte each: the second look at a sample of what was deleted


def deletion_requests(ledgers: int, *, segments: int, chunk: int = _POLICY.chunk) -> DeletionRequests:
    """For a batch of ledgers with `segments` segments each: a LIST for each, and the keys of a chunk together in pages.

    No ledgers are counted as neighbours, which would share a LIST. Segments go first and `meta.json` after them, so
    that a chunk has two runs of pages. Behind each run a sample of its keys is asked for again. A ledger that is alone
    in its chunk is listed a second time.
    """
    whole, rest = divmod(ledgers, chunk)
    sizes = [chunk] * whole + [rest] * bool(rest)
    return DeletionRequests(
        lists=ledgers * ceil((segments + 1) / PAGE) + sizes.count(1),
        gets=sum(min(SAMPLE_KEYS, one * segments) + min(SAMPLE_KEYS, one) for one in sizes),
        deletes=sum(ceil(one * segments / PAGE) + ceil(one / PAGE) for one in sizes),
    )


def size_of(plan: StorePlan) -> StoreSize:
    """The arithmetic."""
    deleted_a_s = plan.ledgers / plan.life_days / _DAY_S
    rows = {
        "topic": plan.topics,
        "ledger_list": plan.topics,
        "cursor": plan.topics * plan.subscriptions,
        "ledger": plan.ledgers,
        "ledger_copy": plan.ledgers,
        "segment": plan.ledgers * plan.segments,
        "pending_deletion": ceil(deleted_a_s * _DAY_S * plan.finished_days),
    }
    objects, each = plan.ledgers * (plan.segments + 1), ROW_BYTES[plan.database]
    asked = deletion_requests(_POLICY.chunk, segments=plan.segments)
    records = sum(count for table, count in rows.items() if table != "ledger_copy")
    blocks = ceil(records / VERSIONS)
    topics_a_s = plan.topics / plan.trim_interval_s
    return StoreSize(
        rows=rows,
        row_bytes={table: count * each[table] for table, count in rows.items()},
        objects=objects,
        objects_a_shard=ceil(objects / SHARDS),
        deleted_a_s=deleted_a_s,
        lists_a_s=deleted_a_s * asked.lists / _POLICY.chunk,
        deletes_a_s=deleted_a_s * asked.deletes / _POLICY.chunk,
        gets_a_s=deleted_a_s * asked.gets / _POLICY.chunk,
        puts_a_s=deleted_a_s * (plan.segments + 1),  # as many are written as go
        plan_lists=ceil(objects / PAGE),
        events_a_s=EVENTS * (topics_a_s / _TOPICS_AT_ONCE + deleted_a_s / _POLICY.chunk),
        topics_a_s=topics_a_s,
        blocks=blocks,
        block_bytes=rows["segment"] * SEGMENT_RECORD_BYTES,
        manifest_bytes=blocks * MANIFEST_BLOCK_BYTES,
        rebuild_core_s=records / SPARK_ROWS,
    )


def table(sizes: Mapping[str, StoreSize]) -> str:
    """Sizes beside each other, in Markdown; the last line ends with a line break.

    Args:
        sizes: By the heading of each column.
    """
    lines: dict[str, Callable[[StoreSize], str]] = {
        "catalog": lambda one: _bytes(one.catalog_bytes),
        "of it segments": lambda one: _bytes(one.row_bytes["segment"]),
        "of it ledgers with their copies": lambda one: _bytes(one.row_bytes["ledger"] + one.row_bytes["ledger_copy"]),
        "of it finished deletions": lambda one: _bytes(one.row_bytes["pending_deletion"]),
        "objects": lambda one: f"{one.objects:,}",
        "objects of one of 256 prefixes": lambda one: f"{one.objects_a_shard:,}",
        "ledgers deleted a second": lambda one: _rate(one.deleted_a_s),
        "LIST a second, of deletions": lambda one: _rate(one.lists_a_s),
        "DeleteObjects a second": lambda one: _rate(one.deletes_a_s),
        "GET a second, of deletions": lambda one: _rate(one.gets_a_s),
        "PUT a second": lambda one: _rate(one.puts_a_s),
        "LIST of one reconciliation without an inventory": lambda one: f"{one.plan_lists:,}",
        "topics that a trim looks at in a second": lambda one: _rate(one.topics_a_s),
        "events a second in Temporal": lambda one: _rate(one.events_a_s),
        "blocks of the record log": lambda one: f"{one.blocks:,}",
        "bytes of its segments": lambda one: _bytes(one.block_bytes),
        "bytes of each manifest": lambda one: _bytes(one.manifest_bytes),
        "core hours of a rebuild": lambda one: _rate(one.rebuild_core_s / 3_600),
    }
    head = f"| | {' | '.join(sizes)} |\n|---|{'---:|' * len(sizes)}\n"
    return head + "".join(
        f"| {name} | {' | '.join(shown(one) for one in sizes.values())} |\n" for name, shown in lines.items()
    )


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.3g} {unit}"
        count /= 1_000
    return f"{count:,.3g} TB"


def _rate(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.2g}"


if __name__ == "__main__":
    topics, ledgers, *more = map(int, sys.argv[1:])
    whole = StorePlan(topics=topics, ledgers=ledgers)
    shown = {"the store": size_of(whole)} | ({f"one of {more[0]} clusters": size_of(whole.of(more[0]))} if more else {})
    sys.stdout.write(table(shown))
