"""What ledgers and the record log hold, read by plain boto3 and by the formats' descriptions."""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from tests.faults.auditor import unpacked
from tests.soak.audit.evidence import PRIMARY, RECORDS, TIERED, At, Entry, digest, loaded, prefix


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

    def read(self, role: str, key: str) -> bytes | None:
        """One object; None: it is lost."""
        try:
            return self.get(role, key)
        except self.client.exceptions.NoSuchKey:
            return None

    def put(self, role: str, key: str, body: bytes) -> None:
        """Plant one."""
        self.client.put_object(Bucket=self.buckets[role], Key=key, Body=body)

    def uploads(self) -> list[str]:
        """Keys with unfinished uploads."""
        found = self.client.list_multipart_uploads(Bucket=self.buckets[TIERED])
        return [one["Key"] for one in found.get("Uploads", ())]


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
        body = self._store.read(role, key)
        if body is not None:
            yield first, body

    def content(self, ledger_id: int) -> bytes:
        """The one payload of a component's ledger."""
        for _, body in self._bodies(ledger_id):
            (payload,) = pq.read_table(io.BytesIO(body), columns=["payload"]).column("payload").to_pylist()
            return bytes(payload)
        return b""  # it is lost, and `promises` says so

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


def recorded(store: Store, role: str = RECORDS) -> dict[tuple[str, int], bool]:
    """Of each topic and ledger in the blocks of the newest manifest: whether its newest version is no tombstone.

    Of a block that is lost nothing is recorded, and `promises` says so.
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
