"""An auditor that trusts no code of Sexton's: it asks S3 with plain boto3 and the catalog with plain SQL."""

import io
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import boto3
import pyarrow.parquet as pq
from botocore.config import Config

from workers.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Objects of one bucket by key, with their ETags, which change with their content."""

    etags: dict[str, str]

    def of_ledger(self, ledger_id: int) -> list[str]:
        """Keys that stand under a ledger's prefix."""
        prefix = f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"
        return sorted(key for key in self.etags if key.startswith(prefix))


class Auditor:
    """Reads what the stack of `settings` really holds."""

    def __init__(self, settings: Settings) -> None:
        """Make a client of its own."""
        self._bucket, self._tiered = settings.primary_bucket, settings.tiered_bucket
        self._path = unquote(settings.database_url.removeprefix("sqlite:///"))
        self._s3 = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint,
            region_name=settings.s3_region,
            aws_access_key_id=settings.s3_access_key.get_secret_value(),
            aws_secret_access_key=settings.s3_secret_key.get_secret_value(),
            config=Config(s3={"addressing_style": "path"}),
        )

    def plant(self, key: str, body: bytes) -> None:
        """Put an object that is not Sexton's."""
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=body)

    def copy(self, source: str, key: str, *, stating: Mapping[str, str] | None = None, tiered: bool = False) -> None:
        """Put a copy of a primary object under another key, with some of its metadata changed."""
        metadata = self._s3.head_object(Bucket=self._bucket, Key=source)["Metadata"]
        body = self._s3.get_object(Bucket=self._bucket, Key=source)["Body"].read()
        bucket = self._tiered if tiered else self._bucket
        self._s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={**metadata, **(stating or {})})

    @contextmanager
    def flipped(self, key: str, part: float) -> Iterator[None]:
        """Turn one bit of a stored object around, at a part from 0 to 1 of its length, until the block ends."""
        found = self._s3.get_object(Bucket=self._bucket, Key=key)
        body, metadata = found["Body"].read(), found["Metadata"]
        damaged = bytearray(body)
        damaged[int(len(body) * part)] ^= 1
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=bytes(damaged), Metadata=metadata)
        try:
            yield
        finally:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=body, Metadata=metadata)

    def stored(self, *, tiered: bool = False) -> Stored:
        """Everything in the primary bucket, or in the tiered one."""
        bucket = self._tiered if tiered else self._bucket
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return Stored(etags={item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", ())})

    def payloads(self, ledger_id: int) -> list[bytes]:
        """Payloads of a ledger's registered segments, in order, read from S3."""
        query = "SELECT number, ledger_id FROM segment WHERE ledger_id = ? ORDER BY first_entry"
        numbers = [number for number, *_ in self._rows(query, ledger_id)]
        return [row["payload"] for number in numbers for row in self._read(ledger_id, number, ["payload"])]

    def transactions(self) -> dict[str, str]:
        """The state of each transaction, by its id."""
        return {f"{tc}:{at}": state for tc, at, state in self._rows('SELECT tc_id, sequence, state FROM "transaction"')}

    def markers(self, topic_id: int) -> dict[str, set[str]]:
        """How each transaction ended, by its id, as the objects of a topic's log say."""
        found: dict[str, set[str]] = {}
        for row in self._entries(topic_id, "txn_tc", "txn_seq", "marker").values():
            if row["marker"] is not None:
                found.setdefault(f"{row['txn_tc']}:{row['txn_seq']}", set()).add(row["marker"])
        return found

    def delivery_times(self, topic_id: int) -> dict[tuple[int, int], int | None]:
        """When each entry of a topic's log is due, by ledger and entry, in milliseconds since 1970; None: at once."""
        entries = self._entries(topic_id, "deliver_at_ms")
        return {position: row["deliver_at_ms"] for position, row in entries.items()}

    def buckets(self, topic_id: int) -> dict[int, list[tuple[int, int]]]:
        """Of each bucket of a topic's delayed messages, by its ledger, which entries its snapshot holds."""
        found = {}
        for (bucket,) in self._rows("SELECT ledger_id FROM delayed_bucket WHERE topic_id = ?", topic_id):
            held = self._read(bucket, 0, ["ledger_id", "entry_id"])
            found[bucket] = [(row["ledger_id"], row["entry_id"]) for row in held]
        return found

    def retired_buckets(self, topic_id: int) -> set[int]:
        """Ledgers of snapshots of a topic's delayed messages that have a deletion intent."""
        query = "SELECT ledger_id FROM pending_deletion WHERE topic_id = ? AND component = 'DELAYED_INDEX'"
        return {row[0] for row in self._rows(query, topic_id)}

    def created_us(self, ledger_id: int) -> int:
        """When a ledger was created whose deletion has ended."""
        query = "SELECT ledger_created_us, row_id FROM pending_deletion WHERE ledger_id = ?"
        return int(self._rows(query, ledger_id)[0][0])

    def ledgers(self) -> set[int]:
        """Ledgers of the catalog."""
        return {row[0] for row in self._rows("SELECT ledger_id FROM ledger")}

    def tombstones(self) -> set[int]:
        """Ledgers that a tombstone stands for."""
        return {row[0] for row in self._rows("SELECT id FROM tombstone WHERE kind = 'ledger'")}

    def entries(self, topic_id: int) -> dict[tuple[int, int], bytes]:
        """The payload of each registered entry of a topic's log, by ledger and entry, read from S3."""
        return {position: row["payload"] for position, row in self._entries(topic_id, "payload").items()}

    def _entries(self, topic_id: int, *columns: str) -> dict[tuple[int, int], dict[str, Any]]:
        """Columns of each registered entry of a topic's log, by ledger and entry, read from S3."""
        query = (
            "SELECT s.ledger_id, s.number, s.first_entry FROM segment s JOIN ledger l ON l.ledger_id = s.ledger_id"
            " JOIN ledger_list ll ON ll.list_id = l.list_id WHERE ll.topic_id = ? AND ll.component = 'MANAGED_LEDGER'"
        )
        return {
            (ledger_id, first + at): row
            for ledger_id, number, first in self._rows(query, topic_id)
            for at, row in enumerate(self._read(ledger_id, number, list(columns)))
        }

    def _read(self, ledger_id: int, number: int, columns: list[str]) -> list[dict[str, Any]]:
        key = f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/{number:08d}.parquet"
        body = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(body), columns=columns).to_pylist()
        return rows

    def listed(self, topic_id: int) -> set[int]:
        """Ledgers that the catalog lists for the topic."""
        query = (
            "SELECT l.ledger_id FROM ledger l JOIN ledger_list ll ON ll.list_id = l.list_id"
            " WHERE ll.topic_id = ? AND l.place IS NOT NULL"
        )
        return {row[0] for row in self._rows(query, topic_id)}

    def intents(self) -> dict[int, tuple[str, str | None]]:
        """State and outcome of every deletion intent, by ledger."""
        rows = self._rows("SELECT ledger_id, state, outcome FROM pending_deletion")
        return {row[0]: (row[1], row[2]) for row in rows}

    def fences(self) -> dict[int, tuple[int, str]]:
        """Of every bundle that was ever acquired, how often, and by which worker last."""
        rows = self._rows("SELECT bundle, counter, worker_id FROM bundle_fence")
        return {row[0]: (row[1], row[2]) for row in rows}

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, timeout=10)) as connection:
            return connection.execute(query, values).fetchall()
