"""What the auditor knows: rows by plain SQL, objects by plain boto3, and what clients were told."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from tests.soak.scene import CONSUMED

TABLES: Final = (
    "topic", "ledger_list", "ledger", "ledger_copy", "segment", "cursor", "schema_version", "pending_deletion",
    "tombstone", "transaction", "transaction_participant", "transaction_snapshot", "delayed_index", "delayed_bucket",
    "producer_sequence", "buffer_range", "buffer_hidden", "record_outbox", "catalog",
)  # fmt: skip
"""What is read of the catalog."""

PRIMARY, TIERED, RECORDS, SHIPPED = "primary", "tiered", "records", "shipped"
PRIMARY_KEY: Final = re.compile(r"ledgers/(?P<shard>[0-9a-f]{2})/(?P<id>[0-9a-f]{16})/(?P<name>[^/]+)")
TIERED_KEY: Final = re.compile(r"(?P<uuid>.+)-ledger-(?P<id>[0-9]+)(?P<index>-index)?")

At = tuple[int, int]
"""A position: ledger and entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a log, as its object holds it."""

    payload: str
    deliver_at_ms: int | None = None
    txn: str | None = None
    marker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What a client asked for, and the answer, if there was one."""

    op: str
    kind: str
    asked: Mapping[str, Any]
    asked_s: float  # seconds since 1970
    end: str = "unknown"  # done, failed, unknown
    ended_s: float | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def positions(self) -> set[At]:
        """Of an acknowledgement: what it asks for."""
        return {(at[0], at[1]) for at in self.asked["positions"]}

    @property
    def stored(self) -> Iterator[tuple[At, str]]:
        """Of an append that was answered: where each of its entries is."""
        first = self.answer.get("first")
        if self.end == "done" and first:
            left = self.asked["payloads"][self.answer.get("duplicates", 0) :]
            yield from (((first[0], first[1] + at), payload) for at, payload in enumerate(left))


def ops_of(said: Iterable[Mapping[str, Any]]) -> list[Op]:
    """Questions joined with their answers, in the order in which they were asked."""
    asked: dict[str, Mapping[str, Any]] = {}
    ended: dict[str, Mapping[str, Any]] = {}
    for one in said:
        if one["what"] == "asked":
            asked[one["op"]] = one
        elif one["what"] in {"done", "failed"}:
            ended[one["op"]] = one
    nothing: Mapping[str, Any] = {"what": "unknown", "wall": None}
    found = [
        Op(
            op=name,
            kind=one["kind"],
            asked=one,
            asked_s=one["wall"],
            end=ended.get(name, nothing)["what"],
            ended_s=ended.get(name, nothing)["wall"],
            answer=ended.get(name, nothing),
        )
        for name, one in asked.items()
    ]
    return sorted(found, key=lambda op: op.asked_s)


@dataclass(kw_only=True)
class Evidence:
    """Everything, at the end of a soak. Plain data, so that tests can plant what must be found."""

    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    objects: Mapping[str, Mapping[str, int]]  # sizes by key, by bucket
    planted: Mapping[tuple[str, str], str]  # digests of objects that are others'
    planted_now: Mapping[tuple[str, str], str]
    uploads: Sequence[str]  # keys of the tiered bucket with parts of unfinished uploads
    entries: Mapping[int, Mapping[At, Entry]]  # of data ledgers, by topic id
    buckets: Mapping[int, Sequence[At]]  # rows of each snapshot of delayed messages, by ledger
    acknowledged: Mapping[tuple[int, str], tuple[At, frozenset[At]]]  # mark, and what is beyond it
    contents: Mapping[int, str]  # digests of what schema ledgers hold
    seen: Mapping[int, Sequence[tuple[At, str]]]  # what a reader of the product sees, by topic id
    recorded: Mapping[tuple[str, int], bool]  # ledgers and topics in the record log: whether the newest version lives
    shipped: Mapping[tuple[str, int], bool]  # the same of the replica's bucket
    replica: Mapping[str, Sequence[Mapping[str, Any]]]  # rows of the database that follows the record log
    ops: Sequence[Op]
    received: Sequence[Mapping[str, Any]]
    reads: Sequence[Mapping[str, Any]]
    faults: Sequence[str]  # what clients met that no program should
    steps: Sequence[tuple[int, float, float]]  # client number, when in seconds since 1970, by so many seconds
    fences: Sequence[tuple[float, int, int, str]]  # when, bundle, counter, worker: samples in order
    owners: Mapping[int, str]  # of ZooKeeper's nodes at the end
    failed_workflows: Sequence[tuple[str, str]]  # id, type of the error
    waits: Sequence[str]  # what had not come to rest in time
    exits: Mapping[str, int]  # of workers and clients that were asked to end
    ended_s: float
    rebuilt: "Evidence | None" = None  # with the tables of the catalog that was rebuilt, and what these say
    is_rebuilt: bool = False  # this is that one

    def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        """Of a table."""
        return self.tables[table]

    @cached_property
    def topics(self) -> dict[str, int]:
        """Ids by name."""
        return {row["name"]: row["topic_id"] for row in self.rows("topic")}

    @cached_property
    def ledgers(self) -> dict[int, Mapping[str, Any]]:
        """Rows by id, each with topic id and component."""
        lists = {row["list_id"]: row for row in self.rows("ledger_list")}
        return {
            row["ledger_id"]: {
                **row,
                "topic_id": lists[row["list_id"]]["topic_id"] if row["list_id"] in lists else None,
                "component": lists[row["list_id"]]["component"] if row["list_id"] in lists else None,
            }
            for row in self.rows("ledger")
        }

    @cached_property
    def segments(self) -> dict[int, list[Mapping[str, Any]]]:
        """Registered ones of each ledger, ascending."""
        found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for row in sorted(self.rows("segment"), key=lambda row: (row["ledger_id"], row["number"])):
            found[row["ledger_id"]].append(row)
        return found

    @cached_property
    def copies(self) -> dict[tuple[int, str], Mapping[str, Any]]:
        """By ledger and kind."""
        return {
            (row["ledger_id"], row["kind"]): {**row, "context": loaded(row["context"])}
            for row in self.rows("ledger_copy")
        }

    @cached_property
    def intents(self) -> list[Mapping[str, Any]]:
        """Deletions, each with its context read."""
        return [{**row, "context": loaded(row["context"])} for row in self.rows("pending_deletion")]

    @cached_property
    def states(self) -> dict[str, Mapping[str, Any]]:
        """Rows of transactions by id."""
        return {f"{row['tc_id']}:{row['sequence']}": row for row in self.rows("transaction")}

    def visible(self, topic_id: int) -> list[tuple[At, str]]:
        """Entries that consumers may see once no transaction is open, from objects and rows of transactions alone."""
        return [
            (at, entry.payload)
            for at, entry in sorted(self.entries.get(topic_id, {}).items())
            if entry.marker is None and (entry.txn is None or self.is_committed(entry.txn))
        ]

    def is_committed(self, txn: str) -> bool:
        """By its row."""
        row = self.states.get(txn)
        return row is not None and row["state"] in {"COMMITTING", "COMMITTED"}

    def of_kind(self, *kinds: str) -> Iterator[Op]:
        """Operations of some kinds."""
        return (op for op in self.ops if op.kind in kinds)

    def acknowledgements(self, topic: str, subscription: str, since_s: float = 0.0) -> Iterator[Op]:
        """Those of a subscription that were asked for since then."""
        for op in self.of_kind("acknowledge"):
            asked = (op.asked["topic"], op.asked.get("subscription", CONSUMED))
            if asked == (topic, subscription) and op.asked_s >= since_s:
                yield op

    def is_acknowledged(self, topic_id: int, subscription: str, at: At) -> bool:
        """By the cursor."""
        mark, beyond = self.acknowledged[topic_id, subscription]
        return at <= mark or at in beyond


def loaded(value: Any) -> Any:
    """A column of JSON, which one database gives as text and the other one as a mapping."""
    return json.loads(value) if isinstance(value, str) else value


def digest(body: bytes) -> str:
    """Of an object's content."""
    return hashlib.sha256(body).hexdigest()


def prefix(ledger_id: int) -> str:
    """Of a ledger's objects in the primary bucket."""
    return f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"
