"""Access to the demo's store without Sexton's code. It reads S3 with plain boto3 and the catalog with plain SQL."""

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
class BucketContents:
    """ETag of each object in a bucket, by key. The ETag changes with the content."""

    etags: dict[str, str]

    def keys_of_ledger(self, ledger_id: int) -> list[str]:
        prefix = f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/"
        return sorted(key for key in self.etags if key.startswith(prefix))


class DirectStoreAccess:
    def __init__(self, settings: Settings) -> None:
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

    def put_object(self, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=body)

    def copy_primary_object(
        self, source: str, key: str, *, changed_metadata: Mapping[str, str] | None = None, tiered: bool = False
    ) -> None:
        metadata = self._s3.head_object(Bucket=self._bucket, Key=source)["Metadata"]
        body = self._s3.get_object(Bucket=self._bucket, Key=source)["Body"].read()
        bucket = self._tiered if tiered else self._bucket
        self._s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={**metadata, **(changed_metadata or {})})

    @contextmanager
    def flip_bit(self, key: str, part: float) -> Iterator[None]:
        """Flip one bit of a stored object during the block. `part` is the bit's position as a share of the length."""
        response = self._s3.get_object(Bucket=self._bucket, Key=key)
        body, metadata = response["Body"].read(), response["Metadata"]
        damaged = bytearray(body)
        damaged[int(len(body) * part)] ^= 1
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=bytes(damaged), Metadata=metadata)
        try:
            yield
        finally:
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=body, Metadata=metadata)

    def list_objects(self, *, tiered: bool = False) -> BucketContents:
        bucket = self._tiered if tiered else self._bucket
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return BucketContents(etags={item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", ())})

    def read_payloads(self, ledger_id: int) -> list[bytes]:
        query = "SELECT number, ledger_id FROM segment WHERE ledger_id = ? ORDER BY first_entry"
        numbers = [number for number, *_ in self._query(query, ledger_id)]
        return [row["payload"] for number in numbers for row in self._read_segment(ledger_id, number, ["payload"])]

    def read_transaction_states(self) -> dict[str, str]:
        rows = self._query('SELECT tc_id, sequence, state FROM "transaction"')
        return {f"{tc_id}:{sequence}": state for tc_id, sequence, state in rows}

    def read_transaction_markers(self, topic_id: int) -> dict[str, set[str]]:
        markers_by_txn: dict[str, set[str]] = {}
        for row in self._read_entries(topic_id, "txn_tc", "txn_seq", "marker").values():
            if row["marker"] is not None:
                markers_by_txn.setdefault(f"{row['txn_tc']}:{row['txn_seq']}", set()).add(row["marker"])
        return markers_by_txn

    def read_delivery_times_ms(self, topic_id: int) -> dict[tuple[int, int], int | None]:
        """Read each entry's delivery time in milliseconds since 1970, by ledger and entry. `None` means at once."""
        entries = self._read_entries(topic_id, "deliver_at_ms")
        return {position: row["deliver_at_ms"] for position, row in entries.items()}

    def read_index_buckets(self, topic_id: int) -> dict[int, list[tuple[int, int]]]:
        entries_by_bucket = {}
        for (bucket,) in self._query("SELECT ledger_id FROM delayed_bucket WHERE topic_id = ?", topic_id):
            rows = self._read_segment(bucket, 0, ["ledger_id", "entry_id"])
            entries_by_bucket[bucket] = [(row["ledger_id"], row["entry_id"]) for row in rows]
        return entries_by_bucket

    def read_retired_buckets(self, topic_id: int) -> set[int]:
        query = "SELECT ledger_id FROM pending_deletion WHERE topic_id = ? AND component = 'DELAYED_INDEX'"
        return {row[0] for row in self._query(query, topic_id)}

    def read_created_us(self, ledger_id: int) -> int:
        query = "SELECT ledger_created_us, row_id FROM pending_deletion WHERE ledger_id = ?"
        return int(self._query(query, ledger_id)[0][0])

    def read_ledger_ids(self) -> set[int]:
        return {row[0] for row in self._query("SELECT ledger_id FROM ledger")}

    def read_tombstones(self) -> set[int]:
        return {row[0] for row in self._query("SELECT id FROM tombstone WHERE kind = 'ledger'")}

    def read_entries(self, topic_id: int) -> dict[tuple[int, int], bytes]:
        """Read the message payload of each registered entry of a topic's log from S3, by ledger and entry."""
        return {position: row["payload"] for position, row in self._read_entries(topic_id, "payload").items()}

    def _read_entries(self, topic_id: int, *columns: str) -> dict[tuple[int, int], dict[str, Any]]:
        query = (
            "SELECT s.ledger_id, s.number, s.first_entry FROM segment s JOIN ledger l ON l.ledger_id = s.ledger_id"
            " JOIN ledger_list ll ON ll.list_id = l.list_id WHERE ll.topic_id = ? AND ll.component = 'MANAGED_LEDGER'"
        )
        return {
            (ledger_id, first_entry + offset): row
            for ledger_id, number, first_entry in self._query(query, topic_id)
            for offset, row in enumerate(self._read_segment(ledger_id, number, list(columns)))
        }

    def _read_segment(self, ledger_id: int, number: int, columns: list[str]) -> list[dict[str, Any]]:
        key = f"ledgers/{ledger_id % 256:02x}/{ledger_id:016x}/{number:08d}.parquet"
        body = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(body), columns=columns).to_pylist()
        return rows

    def read_listed_ledgers(self, topic_id: int) -> set[int]:
        query = (
            "SELECT l.ledger_id FROM ledger l JOIN ledger_list ll ON ll.list_id = l.list_id"
            " WHERE ll.topic_id = ? AND l.place IS NOT NULL"
        )
        return {row[0] for row in self._query(query, topic_id)}

    def read_intents(self) -> dict[int, tuple[str, str | None]]:
        rows = self._query("SELECT ledger_id, state, outcome FROM pending_deletion")
        return {row[0]: (row[1], row[2]) for row in rows}

    def read_fences(self) -> dict[int, tuple[int, str]]:
        """Read, by bundle, the number of acquisitions and the worker that acquired the bundle last."""
        rows = self._query("SELECT bundle, counter, worker_id FROM bundle_fence")
        return {row[0]: (row[1], row[2]) for row in rows}

    def _query(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, timeout=10)) as connection:
            return connection.execute(query, values).fetchall()
