"""Collects the evidence of a soak: the auditor's own connections, and what journals say."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import boto3
from botocore.config import Config
from kazoo.client import KazooClient

from tests.soak.audit.delivered import unsought
from tests.soak.audit.evidence import PRIMARY, RECORDS, SHIPPED, TABLES, TIERED, Evidence, Op, digest, ops_of, prefix
from tests.soak.audit.reading import Reading, Store, recorded
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
    """Looks at a soak from outside."""

    settings: Settings  # with the address of S3 itself, not of a wire
    store: Store
    planted: dict[tuple[str, str], str] = field(default_factory=dict)
    fences: list[tuple[float, int, int, str]] = field(default_factory=list)
    moments: int = 0  # looks while all were at work
    lost: list[str] = field(default_factory=list)  # what such a look found

    @classmethod
    def of(cls, settings: Settings) -> "Auditor":
        """With connections of its own."""
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
        """Put objects of others everywhere; these, and what stands there already, nobody may touch."""
        for (role, key), body in _FOREIGN.items():
            self.store.put(role, key, body)
        for role in (PRIMARY, TIERED, RECORDS):
            for key in self.store.sizes(role):
                self.planted[role, key] = digest(self.store.get(role, key))

    def _rows(self, table: str, url: str = "") -> list[dict[str, Any]]:
        return query(url or self.settings.database_url, f'SELECT * FROM "{table}"')

    def tables(self, url: str = "") -> dict[str, list[dict[str, Any]]]:
        """All rows of a database; by default of the catalog."""
        return {name: self._rows(name, url) for name in TABLES}

    def sample(self) -> None:
        """Who has which bundle, now."""
        now = time.time()
        self.fences += [(now, row["bundle"], row["counter"], row["worker_id"]) for row in self._rows("bundle_fence")]

    def look(self) -> None:
        """While all are at work: what is registered before and after a listing is in it."""
        before = self._registered()
        stored = self.store.sizes(PRIMARY)
        after = self._registered()
        self.moments += 1
        for (ledger_id, number), size in sorted(before & after):
            found = stored.get(f"{prefix(ledger_id)}{number:08d}.parquet")
            if found != size:
                self.lost.append(
                    f"ledger {ledger_id}: segment {number} of {size} bytes was {found} while all were at work"
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
        """What ZooKeeper's nodes say: a node's name begins with the lower bound of the bundle's hashes."""
        client = KazooClient(hosts=self.settings.zookeeper, timeout=10)
        client.start(timeout=20)
        try:
            found = {}
            bundles = self.settings.bundles
            for name in client.get_children("/owners"):
                lower = int(name.partition("_")[0], 16)
                body, _ = client.get(f"/owners/{name}")
                found[-(-lower * bundles >> 32)] = str(json.loads(body)["worker_id"])
            return found
        finally:
            client.stop()
            client.close()

    def owners_at_rest(self) -> dict[int, str]:
        """Owners once each fence is of its owner; what is found when the time is over else."""
        give_up = time.monotonic() + _OWNED_WITHIN_S
        while True:
            found = self.owners()
            self.sample()
            last = {bundle: worker for _, bundle, _, worker in self.fences}
            if time.monotonic() > give_up or all(last.get(bundle) == worker for bundle, worker in found.items()):
                return found
            time.sleep(0.5)

    def unrest(self, said: Sequence[Mapping[str, Any]], *, flushed: bool) -> list[str]:
        """What is not over yet, by rows and by what consumers were handed."""
        pending = query(self.settings.database_url, "SELECT * FROM pending_deletion WHERE state = 'PENDING'")
        found = [
            f"deletion of ledger {row['ledger_id']} ({row['copy']}, attempt {row['attempts']}): {row['last_error']}"
            for row in pending
        ]
        undecided = "SELECT * FROM \"transaction\" WHERE state NOT IN ('COMMITTED', 'ABORTED')"
        found += [
            f"transaction {row['tc_id']}:{row['sequence']} is {row['state']}: {row['last_error']}"
            for row in query(self.settings.database_url, undecided)
        ]
        if flushed:
            count = len(self._rows("record_outbox"))
            found += [f"{count} changes are not flushed"] if count else []
        return found + undelivered(said) + self._unsought(said)

    def _unsought(self, said: Sequence[Mapping[str, Any]]) -> list[str]:
        listed = query(self.settings.database_url, "SELECT ledger_id FROM ledger WHERE place IS NOT NULL")
        ids, ops = {row["ledger_id"] for row in listed}, ops_of(said)
        received = [one for one in said if one["what"] == "received"]
        found = {name: unsought(name, ops, received, ids, time.time() * 1_000) for name in DELAYED}
        return [f"{name}: {SOUGHT} has not received {len(left)}" for name, left in found.items() if left]

    def collect(self, said: Sequence[Mapping[str, Any]], **more: Any) -> Evidence:
        """Everything, while nothing runs but servers."""
        tables = self.tables()
        reading = Reading(tables, self.store)
        return Evidence(
            tables=tables,
            objects={role: self.store.sizes(role) for role in (PRIMARY, TIERED, RECORDS)},
            planted=self.planted,
            planted_now={where: self._digest(*where) for where in self.planted},
            uploads=self.store.uploads(),
            entries=reading.entries(),
            buckets=reading.buckets(),
            acknowledged=reading.acknowledged(),
            contents=reading.schemas(),
            recorded=recorded(self.store),
            shipped=recorded(self.store, SHIPPED),
            ops=ops_of(said),
            received=[{**one, "client": int(one["by"].split("-")[1])} for one in said if one["what"] == "received"],
            reads=[one for one in said if one["what"] == "read"],
            faults=[one["text"] for one in said if one["what"] == "fault"],
            fences=self.fences,
            **more,
        )

    def after_loss(
        self, before: Evidence, url: str, said: Sequence[Mapping[str, Any]], seen: Mapping[int, Any]
    ) -> Evidence:
        """The same by a catalog that was rebuilt into a database; `seen` is what readers see by it."""
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
            ops=ops_of(said),
            seen=seen,
            is_rebuilt=True,
        )

    def _digest(self, role: str, key: str) -> str:
        try:
            return digest(self.store.get(role, key))
        except self.store.client.exceptions.NoSuchKey:
            return "gone"


def undelivered(said: Iterable[Mapping[str, Any]]) -> list[str]:
    """How many messages that were answered nobody has received, of each topic, those that are far off left out."""
    said = list(said)
    far_ms = (time.time() + 600) * 1_000
    wanted: dict[str, set[tuple[int, int]]] = {name: set() for name in (*PLAIN, *DELAYED)}
    for op in ops_of(said):
        if op.kind == "append" and op.asked["topic"] in wanted:
            wanted[op.asked["topic"]].update(_near(op, far_ms))
    for one in said:
        if one["what"] == "received" and one["subscription"] == CONSUMED:
            wanted[one["topic"]].difference_update((at[0], at[1]) for at in one["positions"])
    return [
        f"{name}: {CONSUMED} has not received {len(left)}, {min(left)} first" for name, left in wanted.items() if left
    ]


def _near(op: Op, far_ms: float) -> Iterable[tuple[int, int]]:
    times = op.asked.get("deliver_at_ms") or [None] * len(op.asked["payloads"])
    for (at, _), time_ms in zip(op.stored, times[op.answer.get("duplicates", 0) :], strict=False):
        if time_ms is None or time_ms < far_ms:
            yield at
