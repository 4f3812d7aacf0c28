"""Evidence of a soak: rows by plain SQL, objects by plain boto3, and the answers that clients got."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from tests.soak.soak_setup import CONSUMING_SUBSCRIPTION

TABLES: Final = (
    "topic", "ledger_list", "ledger", "ledger_copy", "segment", "cursor", "schema_version", "pending_deletion",
    "tombstone", "transaction", "transaction_participant", "transaction_snapshot", "delayed_index", "delayed_bucket",
    "producer_sequence", "buffer_range", "buffer_hidden", "record_outbox", "catalog",
)  # fmt: skip
"""Tables of the catalog that the auditor reads."""

PRIMARY, TIERED, RECORDS, SHIPPED = "primary", "tiered", "records", "shipped"
PRIMARY_KEY: Final = re.compile(r"ledgers/(?P<shard>[0-9a-f]{2})/(?P<id>[0-9a-f]{16})/(?P<name>[^/]+)")
TIERED_KEY: Final = re.compile(r"(?P<uuid>.+)-ledger-(?P<id>[0-9]+)(?P<index>-index)?")

EntryPosition = tuple[int, int]
"""A position: ledger and entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """Entry of a log, as its object holds it."""

    payload: str
    deliver_at_ms: int | None = None
    txn: str | None = None
    marker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOperation:
    """Request of a client, and the answer if there was one."""

    op: str
    kind: str
    asked: Mapping[str, Any]
    requested_s: float  # seconds since 1970
    end: str = "unknown"  # done, failed, unknown
    ended_s: float | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def positions(self) -> set[EntryPosition]:
        """Positions that an acknowledgement asks for."""
        return {(pair[0], pair[1]) for pair in self.asked["positions"]}

    @property
    def stored(self) -> Iterator[tuple[EntryPosition, str]]:
        """Position and payload of each entry of an answered append."""
        first_position = self.answer.get("first")
        if self.end == "done" and first_position:
            payloads = self.asked["payloads"][self.answer.get("duplicates", 0) :]
            yield from (
                ((first_position[0], first_position[1] + offset), payload) for offset, payload in enumerate(payloads)
            )


def join_operations(journal_entries: Iterable[Mapping[str, Any]]) -> list[ClientOperation]:
    """Join requests with their answers, in the order of the requests."""
    request_by_operation: dict[str, Mapping[str, Any]] = {}
    answer_by_operation: dict[str, Mapping[str, Any]] = {}
    for entry in journal_entries:
        if entry["what"] == "asked":
            request_by_operation[entry["op"]] = entry
        elif entry["what"] in {"done", "failed"}:
            answer_by_operation[entry["op"]] = entry
    no_answer: Mapping[str, Any] = {"what": "unknown", "wall": None}
    operations = [
        ClientOperation(
            op=name,
            kind=request["kind"],
            asked=request,
            requested_s=request["wall"],
            end=answer_by_operation.get(name, no_answer)["what"],
            ended_s=answer_by_operation.get(name, no_answer)["wall"],
            answer=answer_by_operation.get(name, no_answer),
        )
        for name, request in request_by_operation.items()
    ]
    return sorted(operations, key=lambda op: op.requested_s)


@dataclass(kw_only=True)
class Evidence:
    """All evidence at the end of a soak, as plain data, so that tests can plant violations."""

    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    objects: Mapping[str, Mapping[str, int]]  # sizes by key, by bucket
    planted: Mapping[tuple[str, str], str]  # digests of objects that are others'
    foreign_digests_at_end: Mapping[tuple[str, str], str]
    uploads: Sequence[str]  # keys of the tiered bucket with parts of unfinished uploads
    entries: Mapping[int, Mapping[EntryPosition, LogEntry]]  # of data ledgers, by topic id
    buckets: Mapping[int, Sequence[EntryPosition]]  # rows of each snapshot of delayed messages, by ledger
    acknowledged: Mapping[
        tuple[int, str], tuple[EntryPosition, frozenset[EntryPosition]]
    ]  # mark, and what is beyond it
    contents: Mapping[int, str]  # digests of what schema ledgers hold
    seen: Mapping[int, Sequence[tuple[EntryPosition, str]]]  # what a reader of the product sees, by topic id
    recorded: Mapping[tuple[str, int], bool]  # ledgers and topics in the record log: whether the newest version lives
    shipped: Mapping[tuple[str, int], bool]  # the same of the replica's bucket
    replica: Mapping[str, Sequence[Mapping[str, Any]]]  # rows of the database that follows the record log
    ops: Sequence[ClientOperation]
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
        return self.tables[table]

    @cached_property
    def topics(self) -> dict[str, int]:
        """Topic ids by name."""
        return {row["name"]: row["topic_id"] for row in self.rows("topic")}

    @cached_property
    def ledgers(self) -> dict[int, Mapping[str, Any]]:
        """Rows of ledgers by id, each with topic id and component."""
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
        """Registered segments of each ledger, ascending."""
        segments: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for row in sorted(self.rows("segment"), key=lambda row: (row["ledger_id"], row["number"])):
            segments[row["ledger_id"]].append(row)
        return segments

    @cached_property
    def copies(self) -> dict[tuple[int, str], Mapping[str, Any]]:
        """Copies by ledger and kind."""
        return {
            (row["ledger_id"], row["kind"]): {**row, "context": parse_json(row["context"])}
            for row in self.rows("ledger_copy")
        }

    @cached_property
    def intents(self) -> list[Mapping[str, Any]]:
        """Deletion intents with parsed contexts."""
        return [{**row, "context": parse_json(row["context"])} for row in self.rows("pending_deletion")]

    @cached_property
    def states(self) -> dict[str, Mapping[str, Any]]:
        """Rows of transactions by id."""
        return {f"{row['tc_id']}:{row['sequence']}": row for row in self.rows("transaction")}

    def visible(self, topic_id: int) -> list[tuple[EntryPosition, str]]:
        """Return entries that consumers may see once no transaction is open, by objects and rows of transactions."""
        return [
            (position, entry.payload)
            for position, entry in sorted(self.entries.get(topic_id, {}).items())
            if entry.marker is None and (entry.txn is None or self.is_committed(entry.txn))
        ]

    def is_committed(self, txn: str) -> bool:
        row = self.states.get(txn)
        return row is not None and row["state"] in {"COMMITTING", "COMMITTED"}

    def operations_of_kind(self, *kinds: str) -> Iterator[ClientOperation]:
        return (op for op in self.ops if op.kind in kinds)

    def acknowledgements(self, topic: str, subscription: str, since_s: float = 0.0) -> Iterator[ClientOperation]:
        """Yield acknowledgements of a subscription that were requested since then."""
        for op in self.operations_of_kind("acknowledge"):
            target = (op.asked["topic"], op.asked.get("subscription", CONSUMING_SUBSCRIPTION))
            if target == (topic, subscription) and op.requested_s >= since_s:
                yield op

    def is_acknowledged(self, topic_id: int, subscription: str, position: EntryPosition) -> bool:
        mark, acknowledged_beyond = self.acknowledged[topic_id, subscription]
        return position <= mark or position in acknowledged_beyond


def parse_json(value: Any) -> Any:
    """Return a column of JSON, which one database gives as text and the other one as a mapping."""
    return json.loads(value) if isinstance(value, str) else value


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def ledger_prefix(ledger_id: int) -> str:
    return f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"
