"""Collects the evidence of a soak: the auditor's own connections, and what journals say."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import boto3
from botocore.config import Config
from kazoo.client import KazooClient

from tests.soak.audit.delivery_checks import find_missing_after_seek
from tests.soak.audit.evidence import (
    PRIMARY,
    RECORDS,
    SHIPPED,
    TABLES,
    TIERED,
    ClientOperation,
    Evidence,
    digest,
    join_operations,
    ledger_prefix,
)
from tests.soak.audit.stored_content import BucketStore, StoredContent, read_newest_records
from tests.soak.soak_processes import query_rows
from tests.soak.soak_setup import (
    CONSUMING_SUBSCRIPTION,
    DELAYED_TOPICS,
    PLAIN_TOPICS,
    REPLICA_BUCKET,
    SOUGHT_SUBSCRIPTION,
)
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
    store: BucketStore
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
        return cls(settings=settings, store=BucketStore(client=client, buckets=buckets))

    def plant(self) -> None:
        """Put foreign objects into all buckets. Nobody may touch these or what was there before."""
        for (role, key), body in _FOREIGN.items():
            self.store.put(role, key, body)
        for role in (PRIMARY, TIERED, RECORDS):
            for key in self.store.sizes(role):
                self.planted[role, key] = digest(self.store.get(role, key))

    def _rows(self, table: str, url: str = "") -> list[dict[str, Any]]:
        return query_rows(url or self.settings.database_url, f'SELECT * FROM "{table}"')

    def tables(self, url: str = "") -> dict[str, list[dict[str, Any]]]:
        """Return all rows of a database, by default the catalog."""
        return {name: self._rows(name, url) for name in TABLES}

    def sample_fences(self) -> None:
        """Record the present fences of all bundles."""
        sampled_s = time.time()
        self.fences += [
            (sampled_s, row["bundle"], row["counter"], row["worker_id"]) for row in self._rows("bundle_fence")
        ]

    def check_registered_segments(self) -> None:
        """Check, while all are at work, that a listing has what is registered before and after it."""
        before = self._read_registered_segments()
        stored = self.store.sizes(PRIMARY)
        after = self._read_registered_segments()
        self.check_count += 1
        for (ledger_id, number), size in sorted(before & after):
            stored_size = stored.get(f"{ledger_prefix(ledger_id)}{number:08d}.parquet")
            if stored_size != size:
                self.lost_segments.append(
                    f"ledger {ledger_id}: segment {number} of {size} bytes was {stored_size} while all were at work"
                )

    def _read_registered_segments(self) -> Any:
        rows = query_rows(
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
            worker_by_last_fence = {bundle: worker for _, bundle, _, worker in self.fences}
            is_settled = all(worker_by_last_fence.get(bundle) == worker for bundle, worker in worker_by_bundle.items())
            if is_settled or time.monotonic() > deadline_s:
                return worker_by_bundle
            time.sleep(0.5)

    def list_unsettled(self, journal_entries: Sequence[Mapping[str, Any]], *, flushed: bool) -> list[str]:
        """Return a sentence on each deletion, transaction and message that has not come to rest."""
        pending = query_rows(self.settings.database_url, "SELECT * FROM pending_deletion WHERE state = 'PENDING'")
        sentences = [
            f"deletion of ledger {row['ledger_id']} ({row['copy']}, attempt {row['attempts']}): {row['last_error']}"
            for row in pending
        ]
        undecided = "SELECT * FROM \"transaction\" WHERE state NOT IN ('COMMITTED', 'ABORTED')"
        sentences += [
            f"transaction {row['tc_id']}:{row['sequence']} is {row['state']}: {row['last_error']}"
            for row in query_rows(self.settings.database_url, undecided)
        ]
        if flushed:
            count = len(self._rows("record_outbox"))
            sentences += [f"{count} changes are not flushed"] if count else []
        return sentences + list_undelivered_messages(journal_entries) + self._list_missing_after_seek(journal_entries)

    def _list_missing_after_seek(self, journal_entries: Sequence[Mapping[str, Any]]) -> list[str]:
        listed = query_rows(self.settings.database_url, "SELECT ledger_id FROM ledger WHERE place IS NOT NULL")
        ids, ops = {row["ledger_id"] for row in listed}, join_operations(journal_entries)
        received = [entry for entry in journal_entries if entry["what"] == "received"]
        missing = {
            name: find_missing_after_seek(name, ops, received, ids, time.time() * 1_000) for name in DELAYED_TOPICS
        }
        return [f"{name}: {SOUGHT_SUBSCRIPTION} has not received {len(lost)}" for name, lost in missing.items() if lost]

    def collect(self, journal_entries: Sequence[Mapping[str, Any]], **other_evidence: Any) -> Evidence:
        """Return all evidence. Only servers may run."""
        tables = self.tables()
        reading = StoredContent(tables, self.store)
        return Evidence(
            tables=tables,
            objects={role: self.store.sizes(role) for role in (PRIMARY, TIERED, RECORDS)},
            planted=self.planted,
            foreign_digests_at_end={(role, key): self._digest(role, key) for role, key in self.planted},
            uploads=self.store.uploads(),
            entries=reading.entries(),
            buckets=reading.buckets(),
            acknowledged=reading.acknowledged(),
            contents=reading.schemas(),
            recorded=read_newest_records(self.store),
            shipped=read_newest_records(self.store, SHIPPED),
            ops=join_operations(journal_entries),
            received=[
                {**entry, "client": int(entry["by"].split("-")[1])}
                for entry in journal_entries
                if entry["what"] == "received"
            ],
            reads=[entry for entry in journal_entries if entry["what"] == "read"],
            faults=[entry["text"] for entry in journal_entries if entry["what"] == "fault"],
            fences=self.fences,
            **other_evidence,
        )

    def collect_after_loss(
        self,
        evidence_before: Evidence,
        url: str,
        journal_entries: Sequence[Mapping[str, Any]],
        visible_to_readers: Mapping[int, Any],
    ) -> Evidence:
        """Return the evidence of a catalog that was rebuilt into a database.

        `visible_to_readers` is what readers see by it.
        """
        tables = self.tables(url)
        reading = StoredContent(tables, self.store)
        return replace(
            evidence_before,
            tables=tables,
            objects={role: self.store.sizes(role) for role in (PRIMARY, TIERED, RECORDS)},
            entries=reading.entries(),
            buckets=reading.buckets(),
            acknowledged=reading.acknowledged(),
            contents=reading.schemas(),
            ops=join_operations(journal_entries),
            seen=visible_to_readers,
            is_rebuilt=True,
        )

    def _digest(self, role: str, key: str) -> str:
        try:
            return digest(self.store.get(role, key))
        except self.store.client.exceptions.NoSuchKey:
            return "gone"


def list_undelivered_messages(journal_entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return how many answered messages of each topic nobody has received, without those due in over 10 minutes."""
    journal_entries = list(journal_entries)
    latest_due_ms = (time.time() + 600) * 1_000
    missing: dict[str, set[tuple[int, int]]] = {name: set() for name in (*PLAIN_TOPICS, *DELAYED_TOPICS)}
    for op in join_operations(journal_entries):
        if op.kind == "append" and op.asked["topic"] in missing:
            missing[op.asked["topic"]].update(_due_positions(op, latest_due_ms))
    for entry in journal_entries:
        if entry["what"] == "received" and entry["subscription"] == CONSUMING_SUBSCRIPTION:
            missing[entry["topic"]].difference_update((pair[0], pair[1]) for pair in entry["positions"])
    return [
        f"{name}: {CONSUMING_SUBSCRIPTION} has not received {len(positions)}, {min(positions)} first"
        for name, positions in missing.items()
        if positions
    ]


def _due_positions(op: ClientOperation, latest_due_ms: float) -> Iterable[tuple[int, int]]:
    times = op.asked.get("deliver_at_ms") or [None] * len(op.asked["payloads"])
    for (position, _), time_ms in zip(op.stored, times[op.answer.get("duplicates", 0) :], strict=False):
        if time_ms is None or time_ms < latest_due_ms:
            yield position
