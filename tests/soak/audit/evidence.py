"""What the auditor knows: rows by plain SQL, objects by plain boto3, and what clients were told."""

import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import pyarrow.parquet as pq

from tests.faults.auditor import unpacked

TABLES: Final = (
    "topic", "ledger_list", "ledger", "ledger_copy", "segment", "cursor", "schema_version", "pending_deletion",
    "tombstone", "transaction", "transaction_participant", "transaction_snapshot", "delayed_index", "delayed_bucket",
    "record_outbox", "catalog",
)  # fmt: skip
"""What is read of the catalog."""

PRIMARY, TIERED, RECORDS = "primary", "tiered", "records"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The three buckets, by a client of the auditor's own."""

    client: Any  # of boto3
    buckets: Mapping[str, str]  # names by role

    def sizes(self, role: str) -> dict[str, int]:
        """Every object of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.buckets[role])
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}

    def get(self, role: str, key: str) -> bytes:
        """One object."""
        body: bytes = self.client.get_object(Bucket=self.buckets[role], Key=key)["Body"].read()
        return body

    def put(self, role: str, key: str, body: bytes) -> None:
        """Plant one."""
        self.client.put_object(Bucket=self.buckets[role], Key=key, Body=body)

    def uploads(self) -> list[str]:
        """Keys with unfinished uploads."""
        found = self.client.list_multipart_uploads(Bucket=self.buckets[TIERED])
        return [one["Key"] for one in found.get("Uploads", ())]


def prefix(ledger_id: int) -> str:
    """Of a ledger's objects in the primary bucket."""
    return f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"


class Reading:
    """Reads what ledgers hold, by the formats' descriptions."""

    def __init__(self, tables: Mapping[str, Sequence[Mapping[str, Any]]], store: Store) -> None:
        """Of these rows and these buckets."""
        self._rows, self._store = tables, store
        self._copies = {(row["ledger_id"], row["kind"]): loaded(row["context"]) for row in tables["ledger_copy"]}
        self._segments: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for row in sorted(tables["segment"], key=lambda row: (row["ledger_id"], row["number"])):
            self._segments[row["ledger_id"]].append(row)

    def entries(self) -> dict[int, dict[At, Entry]]:
        """Of all listed data ledgers, by topic id; what cannot be read is missing, and `promises` says so."""
        lists = {row["list_id"]: row for row in self._rows["ledger_list"] if row["component"] == "MANAGED_LEDGER"}
        wanted = [row for row in self._rows["ledger"] if row["list_id"] in lists and row["place"] is not None]
        with ThreadPoolExecutor(8) as pool:
            read = pool.map(lambda row: self._ledger(row["ledger_id"]), wanted)
            found: dict[int, dict[At, Entry]] = defaultdict(dict)
            for row, entries in zip(wanted, read, strict=True):
                found[lists[row["list_id"]]["topic_id"]] |= entries
        return found

    def _ledger(self, ledger_id: int) -> dict[At, Entry]:
        columns = ["payload", "deliver_at_ms", "txn_tc", "txn_seq", "marker"]
        found: dict[At, Entry] = {}
        for first, body in self._bodies(ledger_id):
            for offset, row in enumerate(pq.read_table(io.BytesIO(body), columns=columns).to_pylist()):
                found[ledger_id, first + offset] = Entry(
                    payload=(row["payload"] or b"").decode("latin-1"),
                    deliver_at_ms=row["deliver_at_ms"],
                    txn=None if row["txn_tc"] is None else f"{row['txn_tc']}:{row['txn_seq']}",
                    marker=row["marker"],
                )
        return found

    def _bodies(self, ledger_id: int) -> Iterator[tuple[int, bytes]]:
        """Of each segment, or of the tiered copy as a whole, with its first entry."""
        if (ledger_id, "LEDGER") in self._copies:
            for row in self._segments[ledger_id]:
                yield from self._body(row["first_entry"], PRIMARY, f"{prefix(ledger_id)}{row['number']:08d}.parquet")
        elif (ledger_id, "OFFLOADED_LEDGER") in self._copies:
            uuid = self._copies[ledger_id, "OFFLOADED_LEDGER"]["uuid"]
            yield from self._body(0, TIERED, f"{uuid}-ledger-{ledger_id}")

    def _body(self, first: int, role: str, key: str) -> Iterator[tuple[int, bytes]]:
        try:
            yield first, self._store.get(role, key)
        except self._store.client.exceptions.NoSuchKey:
            return

    def content(self, ledger_id: int) -> bytes:
        """The one payload of a component's ledger."""
        for _, body in self._bodies(ledger_id):
            (payload,) = pq.read_table(io.BytesIO(body), columns=["payload"]).column("payload").to_pylist()
            return bytes(payload)
        return b""

    def buckets(self) -> dict[int, list[At]]:
        """Rows of each snapshot of delayed messages."""
        found = {}
        for row in self._rows["delayed_bucket"]:
            columns = ["ledger_id", "entry_id"]
            tables = [pq.read_table(io.BytesIO(body), columns=columns) for _, body in self._bodies(row["ledger_id"])]
            rows = [one for table in tables for one in table.to_pylist()]
            found[row["ledger_id"]] = [(one["ledger_id"], one["entry_id"]) for one in rows]
        return found

    def acknowledged(self) -> dict[tuple[int, str], tuple[At, frozenset[At]]]:
        """What each cursor says."""
        found = {}
        for row in self._rows["cursor"]:
            parts = [bytes(row["acknowledged"])]
            parts += [] if row["snapshot_ledger"] is None else [self.content(row["snapshot_ledger"])]
            beyond = frozenset(at for part in parts for at in unpacked(part))
            found[row["topic_id"], row["name"]] = ((row["mark_ledger"], row["mark_entry"]), beyond)
        return found

    def schemas(self) -> dict[int, str]:
        """Digests of what the ledgers of schemas hold."""
        return {row["ledger_id"]: digest(self.content(row["ledger_id"])) for row in self._rows["schema_version"]}


def recorded(store: Store, say: Callable[[str], None] = lambda _: None) -> dict[tuple[str, int], bool]:
    """Of each topic and ledger in the blocks of the newest manifest: whether its newest version is no tombstone."""
    keys = sorted(key for key in store.sizes(RECORDS) if key.startswith("records/manifest/"))
    if not keys:
        say("there is no manifest")
        return {}
    newest: dict[tuple[str, int], tuple[int, int, bool]] = {}
    for block in json.loads(store.get(RECORDS, keys[-1]))["blocks"]:
        if block["kind"] in {"topic", "ledger"}:
            body = store.get(RECORDS, f"records/blocks/{block['block_id']}.parquet")
            table = pq.read_table(io.BytesIO(body), columns=["id", "epoch", "version", "tombstone"])
            for row in table.to_pylist():
                name, version = (block["kind"], row["id"]), (row["epoch"], row["version"], not row["tombstone"])
                newest[name] = max(newest.get(name, version), version)
    return {name: lives for name, (_, _, lives) in newest.items()}
