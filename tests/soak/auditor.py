"""Collects the evidence of a soak: the auditor's own connections, and what journals say."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import boto3
from botocore.config import Config
from kazoo.client import KazooClient

from tests.soak.audit.delivered import missing_after_seek
from tests.soak.audit.evidence import (
    PRIMARY,
    RECORDS,
    SHIPPED,
    TABLES,
    TIERED,
    Evidence,
    Operation,
    digest,
    join_operations,
    ledger_prefix,
)
from tests.soak.audit.reading import Reading, Store, read_recorded
from tests.soak.ground import query
from tests.soak.scene import CONSUMED, DELAYED, PLAIN, REPLICA_BUCKET, SOUGHT
from workers.settings import Settings

_OWNED_WITHIN_S: Final = 60.0
_FOREIGN: Final = {
    (PRIMARY, "ledgers/0a/notes.txt"): b"somebody else's",
    (PRIMARY, "backups/2026/ledger-7.parquet"): b"of another application",
    (PRIMARY, "ledgers/40/0000000000000040/x/y.parquet"): b"where our ledger 64 will be",  # whose deletion is refused
    (TIERED, "readme.md"): b"somebody else's too",
    (TIERED, "archive/7-of-9"): b"of another application",
    (RECORDS, "other/blocks/1.parquet"): b"not a block",
}


@dataclass(kw_only=True)
class Auditor:
    """Reads storage, database and ZooKeeper of a soak, and the journals of its clients."""

    settings: Settings  # with the address of S3 itself, not of a wire
    store: Store
    planted: dict[tuple[str, str], str] = field(default_factory=dict)
    fences: list[tuple[float, int, int, str]] = field(default_factory=list)
    check_count: int = 0  # calls of `check_registered_segments`
    lost_segments: list[str] = field(default_factory=list)  # sentences of these calls

    @classmethod
    def of(cls, settings: Settings) -> "Auditor":
        client = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint,
            region_name=settings.s3_region,
            aws_access_key_id=settings.s3_access_key.get_secret_value(),
            aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
            config=Config(s3={"addressing_style": "path"}, max_pool_connections=16),
        )
        buckets = {
            PRIMARY: settings.primary_bucket,
            TIERED: settings.tiered_bucket,
            RECORDS: settings.records_bucket,
            SHIPPED: REPLICA_BUCKET,
        }
        return cls(settings=settings, store=Store(client=client, buckets=buckets))

    def plant(self) -> None:
        """Put foreign objects into all buckets. Nobody may touch these or what was there before."""
        for (role, key), body in _FOREIGN.items():
            self.store.put(role, key, body)
        for role in (PRIMARY, TIERED, RECORDS):
            for key in self.store.sizes(role):
                self.planted[role, key] = digest(self.store.get(role, key))

    def _rows(self, table: str, url: str = "") -> list[dict[str, Any]]:
        return query(url or self.settings.database_url, f'SELECT * FROM "{table}"')

    def tables(self, url: str = "") -> dict[str, list[dict[str, Any]]]:
        """Return all rows of a database, by default the catalog."""
        return {name: self._rows(name, url) for name in TABLES}

    def sample_fences(self) -> None:
        """Record the present fences of all bundles."""
        now = time.time()
        self.fences += [(now, row["bundle"], row["counter"], row["worker_id"]) for row in self._rows("bundle_fence")]

    def check_registered_segments(self) -> None:
        """Check, while all are at work, that a listing has what is registered before and after it."""
        before = self._registered()
        stored = self.store.sizes(PRIMARY)
        after = self._registered()
        self.check_count += 1
        for (ledger_id, number), size in sorted(before & after):
            stored_size = stored.get(f"{ledger_prefix(ledger_id)}{number:08d}.parquet")
            if stored_size != size:
                self.lost_segments.append(
                    f"ledger {ledger_id}: segment {number} of {size} bytes was {stored_size} while all were at work"
                )

    def _registered(self) -> Any:
        rows = query(
            self.settings.database_url,
            "SELECT s.ledger_id, s.number, s.size_bytes FROM segment s JOIN ledger_copy c ON c.ledger_id = s.ledger_id"
            " JOIN ledger l ON l.ledger_id = s.ledger_id WHERE c.kind = 'LEDGER' AND c.state = 'LIVE'"
            " AND l.place IS NOT NULL",
        )
        return {((row["ledger_id"], row["number"]), row["size_bytes"]) for row in rows}

    def owners(self) -> dict[int, str]:
        """Return the owners by ZooKeeper's nodes. A node's name begins with the lowest hash of its bundle."""
        client = KazooClient(hosts=self.settings.zookeeper, timeout=10)
        client.start(timeout=20)
        try:
            worker_by_bundle = {}
            bundles = self.settings.bundles
            for name in client.get_children("/owners"):
                lower = int(name.partition("_")[0], 16)
                body, _ = client.get(f"/owners/{name}")
                worker_by_bundle[-(-lower * bundles >> 32)] = str(json.loads(body)["worker_id"])
            return worker_by_bundle
        finally:
            client.stop()
            client.close()

    def wait_for_settled_owners(self) -> dict[int, str]:
        """Return the owners once each has its bundle's fence, or after a timeout."""
        deadline_s = time.monotonic() + _OWNED_WITHIN_S
        while True:
            worker_by_bundle = self.owners()
            self.sample_fences()
            last = {bundle: worker for _, bundle, _, worker in self.fences}
            is_settled = all(last.get(bundle) == worker for bundle, worker in worker_by_bundle.items())
            if is_settled or time.monotonic() > deadline_s:
                return worker_by_bundle
            time.sleep(0.5)

    def list_unsettled(self, said: Sequence[Mapping[str, Any]], *, flushed: bool) -> list[str]:
        """Return a sentence on each deletion, transaction and message that has not come to rest."""
        pending = query(self.settings.database_url, "SELECT * FROM pending_deletion WHERE state = 'PENDING'")
        sentences = [
            f"deletion of ledger {row['ledger_id']} ({row['copy']}, attempt {row['attempts']}): {row['last_error']}"
            for row in pending
        ]
        undecided = "SELECT * FROM \"transaction\" WHERE state NOT IN ('COMMITTED', 'ABORTED')"
        sentences += [
            f"transaction {row['tc_id']}:{row['sequence']} is {row['state']}: {row['last_error']}"
            for row in query(self.settings.database_url, undecided)
        ]
        if flushed:
            count = len(self._rows("record_outbox"))
            sentences += [f"{count} changes are not flushed"] if count else []
        return sentences + list_undelivered(said) + self._list_missing_after_seek(said)

    def _list_missing_after_seek(self, said: Sequence[Mapping[str, Any]]) -> list[str]:
        listed = query(self.settings.database_url, "SELECT ledger_id FROM ledger WHERE place IS NOT NULL")
        ids, ops = {row["ledger_id"] for row in listed}, join_operations(said)
        received = [entry for entry in said if entry["what"] == "received"]
        missing = {name: missing_after_seek(name, ops, received, ids, time.time() * 1_000) for name in DELAYED}
        return [f"{name}: {SOUGHT} has not received {len(lost)}" for name, lost in missing.items() if lost]

    def collect(self, said: Sequence[Mapping[str, Any]], **more: Any) -> Evidence:
        """Return all evidence. Only servers may run."""
        tables = self.tables()
        reading = Reading(tables, self.store)
        return Evidence(
            tables=tables,
            objects={role: self.store.sizes(role) for role in (PRIMARY, TIERED, RECORDS)},
            planted=self.planted,
            planted_now={(role, key): self._digest(role, key) for role, key in self.planted},
            uploads=self.store.uploads(),
            entries=reading.entries(),
            buckets=reading.buckets(),
            acknowledged=reading.acknowledged(),
            contents=reading.schemas(),
            recorded=read_recorded(self.store),
            shipped=read_recorded(self.store, SHIPPED),
            ops=join_operations(said),
            received=[
                {**entry, "client": int(entry["by"].split("-")[1])} for entry in said if entry["what"] == "received"
            ],
            reads=[entry for entry in said if entry["what"] == "read"],
            faults=[entry["text"] for entry in said if entry["what"] == "fault"],
            fences=self.fences,
            **more,
        )

    def collect_after_loss(
        self, before: Evidence, url: str, said: Sequence[Mapping[str, Any]], seen: Mapping[int, Any]
    ) -> Evidence:
        """Return the evidence of a catalog that was rebuilt into a database. `seen` is what readers see by it."""
        tables = self.tables(url)
        reading = Reading(tables, self.store)
        return replace(
            before,
            tables=tables,
            objects={role: self.store.sizes(role) for role in (PRIMARY, TIERED, RECORDS)},
            entries=reading.entries(),
            buckets=reading.buckets(),
            acknowledged=reading.acknowledged(),
            contents=reading.schemas(),
            ops=join_operations(said),
            seen=seen,
            is_rebuilt=True,
        )

    def _digest(self, role: str, key: str) -> str:
        try:
            return digest(self.store.get(role, key))
        except self.store.client.exceptions.NoSuchKey:
            return "gone"


def list_undelivered(said: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return how many answered messages of each topic nobody has received, without those due in over 10 minutes."""
    said = list(said)
    far_ms = (time.time() + 600) * 1_000
    missing: dict[str, set[tuple[int, int]]] = {name: set() for name in (*PLAIN, *DELAYED)}
    for op in join_operations(said):
        if op.kind == "append" and op.asked["topic"] in missing:
            missing[op.asked["topic"]].update(_due_positions(op, far_ms))
    for entry in said:
        if entry["what"] == "received" and entry["subscription"] == CONSUMED:
            missing[entry["topic"]].difference_update((at[0], at[1]) for at in entry["positions"])
    return [
        f"{name}: {CONSUMED} has not received {len(positions)}, {min(positions)} first"
        for name, positions in missing.items()
        if positions
    ]


def _due_positions(op: Operation, far_ms: float) -> Iterable[tuple[int, int]]:
    times = op.asked.get("deliver_at_ms") or [None] * len(op.asked["payloads"])
    for (at, _), time_ms in zip(op.stored, times[op.answer.get("duplicates", 0) :], strict=False):
        if time_ms is None or time_ms < far_ms:
            yield at
