"""Contents of ledgers and of the record log, read by plain boto3 and by the formats' descriptions."""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from tests.faults.auditor import unpack_acknowledged_entries
from tests.soak.audit.evidence import (
    PRIMARY,
    RECORDS,
    TIERED,
    EntryPosition,
    LogEntry,
    digest,
    ledger_prefix,
    parse_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStore:
    """Buckets by role, through the auditor's own client."""

    client: Any  # of boto3
    buckets: Mapping[str, str]  # names by role

    def sizes(self, role: str) -> dict[str, int]:
        """Return the size of each object of a bucket, by key."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.buckets[role])
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}

    def get(self, role: str, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.buckets[role], Key=key)["Body"].read()
        return body

    def read(self, role: str, key: str) -> bytes | None:
        """Return one object, or `None` if it is lost."""
        try:
            return self.get(role, key)
        except self.client.exceptions.NoSuchKey:
            return None

    def put(self, role: str, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.buckets[role], Key=key, Body=body)

    def uploads(self) -> list[str]:
        """Return the keys with unfinished uploads in the tiered bucket."""
        response = self.client.list_multipart_uploads(Bucket=self.buckets[TIERED])
        return [upload["Key"] for upload in response.get("Uploads", ())]


class StoredContent:
    """Reader of ledgers."""

    def __init__(self, tables: Mapping[str, Sequence[Mapping[str, Any]]], store: BucketStore) -> None:
        self._rows, self._store = tables, store
        self._copies = {(row["ledger_id"], row["kind"]): parse_json(row["context"]) for row in tables["ledger_copy"]}
        self._segments: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for row in sorted(tables["segment"], key=lambda row: (row["ledger_id"], row["number"])):
            self._segments[row["ledger_id"]].append(row)

    def entries(self) -> dict[int, dict[EntryPosition, LogEntry]]:
        """Return the entries of all listed data ledgers, by topic id. Unreadable ones are missing, as checks report."""
        lists = {row["list_id"]: row for row in self._rows["ledger_list"] if row["component"] == "MANAGED_LEDGER"}
        listed = [row for row in self._rows["ledger"] if row["list_id"] in lists and row["place"] is not None]
        with ThreadPoolExecutor(8) as pool:
            read = pool.map(lambda row: self._read_entries(row["ledger_id"]), listed)
            entries_by_topic: dict[int, dict[EntryPosition, LogEntry]] = defaultdict(dict)
            for row, entries in zip(listed, read, strict=True):
                entries_by_topic[lists[row["list_id"]]["topic_id"]] |= entries
        return entries_by_topic

    def _read_entries(self, ledger_id: int) -> dict[EntryPosition, LogEntry]:
        columns = ["payload", "deliver_at_ms", "txn_tc", "txn_seq", "marker"]
        entries: dict[EntryPosition, LogEntry] = {}
        for first_entry, body in self._iterate_bodies(ledger_id):
            for offset, row in enumerate(pq.read_table(io.BytesIO(body), columns=columns).to_pylist()):
                entries[ledger_id, first_entry + offset] = LogEntry(
                    payload=(row["payload"] or b"").decode("latin-1"),
                    deliver_at_ms=row["deliver_at_ms"],
                    txn=None if row["txn_tc"] is None else f"{row['txn_tc']}:{row['txn_seq']}",
                    marker=row["marker"],
                )
        return entries

    def _iterate_bodies(self, ledger_id: int) -> Iterator[tuple[int, bytes]]:
        """Yield each segment, or the whole tiered copy, with its first entry."""
        if (ledger_id, "LEDGER") in self._copies:
            for row in self._segments[ledger_id]:
                yield from self._read_body(
                    row["first_entry"], PRIMARY, f"{ledger_prefix(ledger_id)}{row['number']:08d}.parquet"
                )
        elif (ledger_id, "OFFLOADED_LEDGER") in self._copies:
            uuid = self._copies[ledger_id, "OFFLOADED_LEDGER"]["uuid"]
            yield from self._read_body(0, TIERED, f"{uuid}-ledger-{ledger_id}")

    def _read_body(self, first_entry: int, role: str, key: str) -> Iterator[tuple[int, bytes]]:
        body = self._store.read(role, key)
        if body is not None:
            yield first_entry, body

    def content(self, ledger_id: int) -> bytes:
        """Return the one payload of a component's ledger, or nothing if it is lost."""
        for _, body in self._iterate_bodies(ledger_id):
            (payload,) = pq.read_table(io.BytesIO(body), columns=["payload"]).column("payload").to_pylist()
            return bytes(payload)
        return b""

    def buckets(self) -> dict[int, list[EntryPosition]]:
        """Return the positions in each snapshot of delayed messages."""
        positions = {}
        for row in self._rows["delayed_bucket"]:
            columns = ["ledger_id", "entry_id"]
            tables = [
                pq.read_table(io.BytesIO(body), columns=columns) for _, body in self._iterate_bodies(row["ledger_id"])
            ]
            messages = [message for table in tables for message in table.to_pylist()]
            positions[row["ledger_id"]] = [(message["ledger_id"], message["entry_id"]) for message in messages]
        return positions

    def acknowledged(self) -> dict[tuple[int, str], tuple[EntryPosition, frozenset[EntryPosition]]]:
        """Return mark and later acknowledgements of each cursor."""
        acknowledged = {}
        for row in self._rows["cursor"]:
            parts = [bytes(row["acknowledged"])]
            parts += [] if row["snapshot_ledger"] is None else [self.content(row["snapshot_ledger"])]
            beyond = frozenset(position for part in parts for position in unpack_acknowledged_entries(part))
            acknowledged[row["topic_id"], row["name"]] = ((row["mark_ledger"], row["mark_entry"]), beyond)
        return acknowledged

    def schemas(self) -> dict[int, str]:
        """Return the digests of the schemas, by ledger."""
        return {row["ledger_id"]: digest(self.content(row["ledger_id"])) for row in self._rows["schema_version"]}


def read_newest_records(store: BucketStore, role: str = RECORDS) -> dict[tuple[str, int], bool]:
    """Return whether the newest version of each topic and ledger in the newest manifest is no tombstone.

    Records of a lost block are missing, as checks report.
    """
    keys = sorted(key for key in store.sizes(role) if key.startswith("records/manifest/"))
    if not keys:
        return {}
    newest: dict[tuple[str, int], tuple[int, int, bool]] = {}
    for block in json.loads(store.get(role, keys[-1]))["blocks"]:
        if block["kind"] in {"topic", "ledger"}:
            body = store.read(role, f"records/blocks/{block['block_id']}.parquet")
            if body is None:
                continue
            table = pq.read_table(io.BytesIO(body), columns=["id", "epoch", "version", "tombstone"])
            for row in table.to_pylist():
                name, version = (block["kind"], row["id"]), (row["epoch"], row["version"], not row["tombstone"])
                newest[name] = max(newest.get(name, version), version)
    return {name: lives for name, (_, _, lives) in newest.items()}
