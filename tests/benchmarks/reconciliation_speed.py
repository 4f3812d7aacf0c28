"""A plan beside DuckDB's anti-join of the same facts: `python -m tests.benchmarks.reconciliation_speed [ledgers]`.

Objects come from a sorted inventory of two objects a ledger, rows from a catalog of one ledger and one copy each, in a
warm session of two tasks at a time. Storage is asked of nothing but what is found. About six minutes on two cores at
the default of 5,000,000 ledgers, most of them to write what is compared; it needs 3 GB of disk.
"""

import hashlib
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from infra.objects.s3_store import BucketAddress
from logstore.catalog.engine.catalog_version import migrate_catalog
from logstore.catalog.engine.database import Database
from logstore.log.ledgers import Component, LedgerOwner
from logstore.positions import TopicId
from logstore.reconciliation.bulk_job_inputs_and_results import (
    BulkJob,
    BulkJobSummary,
    CompareStorageWithCatalogJob,
    ListStorageJob,
    ReadLedgersAndIntentsJob,
)
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.reconciliation.compare_sides import compare_sides
from spark.reconciliation.list_storage import list_storage
from spark.reconciliation.read_catalog_rows import read_ledgers_and_intents
from spark.sources.store_addresses import CatalogAddresses
from spark.warm_session import SparkSettings, WarmSession
from tests.benchmarks.stage import Stage, make_ledgers, stage
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses
from workers.settings import load_settings

_ROUNDS: Final = 3
_LISTED: Final = 20_000  # objects
_TOPICS: Final = 1_000
_GROUP: Final = 500_000  # objects of a row group
_FUTURE: Final = 2 * 10**15  # microseconds: everything is older
_SCHEMA: Final = "optional binary key (UTF8); optional int64 size; optional int64 last_modified_date (TIMESTAMP);"
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def plan_beside_duckdb(ledgers: int, orphans: int, folder: Path) -> dict[str, Any]:
    """Seconds of both, their ratio, and the peak of memory of all our processes."""
    _tell(f"writing {ledgers:,} ledgers, {orphans:,} of them orphans")
    _write_catalog(folder / "catalog.db", ledgers, orphans)
    _write_inventory(folder, ledgers)
    with _jobs(folder) as jobs:
        with peak_memory() as peak:  # in a round of its own: to look at the pages of all processes takes time from them
            _plan(jobs, folder, ledgers, "warm-up")
        rounds = [(_plan(jobs, folder, ledgers, f"round-{number}"), _bare(folder)) for number in range(_ROUNDS)]
    ours, bare = (statistics.median(each) for each in zip(*((plan[0], other) for plan, other in rounds), strict=True))
    found = {plan[1] for plan, _ in rounds}
    if found != {orphans}:
        raise RuntimeError(f"expected {orphans} findings, found {found}")
    return {
        "objects": 2 * ledgers,
        "findings": orphans,
        "ours_s": round(ours, 2),
        "duckdb_s": round(bare, 2),
        "ratio": round(statistics.median(plan[0] / other for plan, other in rounds), 2),
        "peak_mib": peak(),
    }


def listing_beside_paginator(on: Stage) -> dict[str, Any]:
    """Objects a second of the job `list-storage` in a warm session, and of one bare paginator over the same bucket."""
    make_ledgers(on, "persistent://bench/reconciliation/listed", ledgers=_LISTED // 10, segments=9)
    folder = on.settings.home / "listing"
    folder.mkdir()
    with _jobs(folder, executor_catalog_and_bucket_addresses(on.settings)) as jobs:
        rounds = [(_listed(jobs, f"listing-{number}"), _paginated(on)) for number in range(_ROUNDS + 1)][1:]
    ours, bare = (statistics.median(each) for each in zip(*rounds, strict=True))
    return {
        "objects": _LISTED,
        "ours_objects_s": round(ours),
        "bare_objects_s": round(bare),
        "ratio": round(ours / bare, 2),
    }


def _listed(jobs: SparkBulkJobs, run_id: str) -> float:
    began = time.perf_counter()
    done = jobs.run_job(ListStorageJob(run_id=run_id), lambda progress: None)
    return done.counts["objects"] / (time.perf_counter() - began)


def _paginated(on: Stage) -> float:
    began, count = time.perf_counter(), 0
    for page in on.s3().get_paginator("list_objects_v2").paginate(Bucket=on.settings.primary_bucket):
        count += len(page.get("Contents", ()))
    return count / (time.perf_counter() - began)


@contextmanager
def _jobs(folder: Path, addresses: CatalogAddresses | None = None) -> Iterator[SparkBulkJobs]:
    addresses = addresses or CatalogAddresses(
        database_url=f"sqlite:///{folder}/catalog.db",
        primary=BucketAddress("primary", "bench"),
        tiered=(),
        application="sexton",
    )
    mains: dict[str, Callable[..., BulkJobSummary]] = {
        "list-storage": list_storage,
        "read-references": read_ledgers_and_intents,
        "compare-sides": compare_sides,
    }
    session = WarmSession(SparkSettings(scratch=folder / "spark", master="local[2]"))
    try:
        yield SparkBulkJobs(
            session,
            PublishedOutputs(folder / "bulk"),
            lambda: {name: partial(main, addresses) for name, main in mains.items()},
        )
    finally:
        session.close()


def _plan(jobs: SparkBulkJobs, folder: Path, ledgers: int, run_id: str) -> tuple[float, int]:
    """Seconds, and findings."""
    steps: list[BulkJob] = [
        ListStorageJob(run_id=run_id, inventories=(str(folder / "manifest.json"),)),
        ReadLedgersAndIntentsJob(run_id=run_id),
        CompareStorageWithCatalogJob(run_id=run_id, before_us=_FUTURE, rows_before_us=_FUTURE, next_ledger_id=ledgers),
    ]
    began = time.perf_counter()
    for step in steps:
        done = jobs.run_job(step, lambda progress: None)
    took = time.perf_counter() - began
    _tell(f"{run_id}: {took:.2f} s")
    jobs.remove_run(run_id)
    return took, done.counts["candidates"]


def _bare(folder: Path) -> float:
    """The anti-join that the same question is in SQL, of keys as they stand in the inventory."""
    objects = (
        "SELECT ('0x' || substr(key, 12, 16))::BIGINT AS ledger_id,"
        " CASE WHEN key LIKE '%.parquet' THEN substr(key, 29, 8)::INT ELSE -1 END AS number"
        f" FROM '{folder}/inventory.parquet'"
    )
    query = f"SELECT count(*) FROM ({objects}) ANTI JOIN '{folder}/rows.parquet' USING (ledger_id, number)"
    with duckdb.connect(config={"threads": 2}) as connection:
        began = time.perf_counter()
        connection.execute(query).fetchall()
        took = time.perf_counter() - began
    _tell(f"duckdb: {took:.2f} s")
    return took


@contextmanager
def peak_memory(*, excluded_pid: int | None = None, interval_s: float = 0.05) -> Iterator[Callable[[], int]]:
    """Most memory, in MiB, that this process and its children had at once; pages that they share count once each."""
    most, over = [0], threading.Event()

    def look() -> None:
        me = psutil.Process()
        while not over.wait(interval_s):
            total = 0
            for one in (me, *me.children(recursive=True)):
                if one.pid == excluded_pid:
                    continue
                try:
                    total += one.memory_full_info().uss
                except psutil.Error:
                    continue
            most[0] = max(most[0], total)

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield lambda: most[0] >> 20
    finally:
        over.set()
        watch.join()


def _write_catalog(path: Path, ledgers: int, orphans: int) -> None:
    """The rows that the log itself would leave; the last ledgers have none."""
    database = Database(f"sqlite:///{path}")
    migrate_catalog(database)
    database.close()
    ids = f"WITH RECURSIVE ids(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM ids WHERE id < {ledgers - orphans - 1})"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        topics = [(number, _topic(number), "ACTIVE", 0, 1) for number in range(1, _TOPICS + 1)]
        connection.executemany(
            "INSERT INTO topic (topic_id, name, state, retention_s, created_us) VALUES (?, ?, ?, ?, ?)", topics
        )
        lists = [(number, number, "MANAGED_LEDGER", "{}", 0) for number in range(1, _TOPICS + 1)]
        connection.executemany("INSERT INTO ledger_list VALUES (?, ?, ?, ?, ?)", lists)
        connection.execute(
            "INSERT INTO ledger (ledger_id, list_id, place, application, state, entries, size_bytes, segments,"
            f" last_segment, generation, epoch, created_us, closed_us) {ids} SELECT id, id % {_TOPICS} + 1, id,"
            " 'sexton', 'CLOSED', 10, 1000, 1, 0, 0, 1, 1000, 2000 FROM ids"
        )
        connection.execute(
            "INSERT INTO ledger_copy (ledger_id, kind, state, context)"
            f" {ids} SELECT id, 'LEDGER', 'LIVE', '{{}}' FROM ids"
        )
        connection.execute("UPDATE catalog SET next_ledger_id = ?", (ledgers,))
    rows = np.arange(ledgers - orphans, dtype=np.int64)
    numbers = np.tile(np.array([-1, 0], np.int32), len(rows))
    pq.write_table(pa.table({"ledger_id": np.repeat(rows, 2), "number": numbers}), path.parent / "rows.parquet")


def _topic(number: int) -> str:
    return f"persistent://bench/reconciliation/{number}"


def _write_inventory(folder: Path, ledgers: int) -> None:
    """One part, by keys ascending, as a store lists them."""
    owners = [
        LedgerOwner(
            application="sexton",
            component=Component.MANAGED_LEDGER,
            topic_id=TopicId(number),
            topic=_topic(number),
            keys={},
        )
        for number in range(1, _TOPICS + 1)
    ]
    digests = np.array([int(owner.digest, 16) for owner in owners], np.uint64)
    ids = np.arange(ledgers, dtype=np.int64)
    ids = ids[np.lexsort((ids, ids % 256))]
    path, writer = folder / "inventory.parquet", None
    for at in range(0, ledgers, _GROUP // 2):
        some = ids[at : at + _GROUP // 2]
        keys = _keys(some, digests[some % _TOPICS])
        times = pa.array(np.full(len(keys), 1_000, np.int64), pa.timestamp("ms"))
        table = pa.table({"key": keys, "size": np.tile([1000, 300], len(some)), "last_modified_date": times})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=_GROUP)
    if writer:
        writer.close()
    part = {"key": path.name, "size": path.stat().st_size, "MD5checksum": _md5(path)}
    manifest = {"sourceBucket": "bench", "creationTimestamp": "1700000000000", "fileFormat": "Parquet"}
    whole = {**manifest, "fileSchema": f"message s3.inventory {{ {_SCHEMA} }}", "files": [part]}
    (folder / "manifest.json").write_text(json.dumps(whole))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _keys(ids: npt.NDArray[np.int64], digests: npt.NDArray[np.uint64]) -> pa.Array:
    """Segment 0 and `meta.json` of each ledger, as one array of strings made from one buffer."""
    count = len(ids)
    prefix = [_text("ledgers/", count), _hex(ids % 256, 2), _text("/", count), _hex(ids, 16), _text("/", count)]
    rows = [*prefix, _text("00000000.parquet", count), *prefix, _hex(digests, 16), _text(".meta.json", count)]
    lengths = np.tile(np.array([44, 54], np.int64), count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = np.concatenate(rows, axis=1).tobytes()
    return pa.StringArray.from_buffers(2 * count, pa.py_buffer(offsets), pa.py_buffer(data))


def _text(text: str, count: int) -> npt.NDArray[np.uint8]:
    return np.tile(np.frombuffer(text.encode(), np.uint8), (count, 1))


def _hex(values: npt.NDArray[Any], digits: int) -> npt.NDArray[np.uint8]:
    shifts = np.arange(4 * (digits - 1), -1, -4, dtype=np.uint64)
    return _HEX[((values.astype(np.uint64)[:, None] >> shifts) & np.uint64(15)).astype(np.intp)]


def _tell(line: str) -> None:
    """Say how far it is; stdout has the one document."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


def main(ledgers: int) -> dict[str, Any]:
    """Three sizes for the growth of time, and two numbers of findings for that of memory."""
    found: dict[str, Any] = {}
    shapes = [(ledgers // 10, 0), (ledgers, 1_000), (ledgers, ledgers // 10)]
    for size, orphans in shapes:
        with tempfile.TemporaryDirectory(prefix="sexton-bench-") as folder:
            found[f"{2 * size:,} objects, {orphans:,} findings"] = plan_beside_duckdb(size, orphans, Path(folder))
    with stage(load_settings({}, os.environ, Path.cwd()).settings, workers=0) as on:
        found["listing"] = listing_beside_paginator(on)
    return found


if __name__ == "__main__":
    print(json.dumps({"plan": main(int(sys.argv[1]) if sys.argv[1:] else 5_000_000)}, indent=1))  # noqa: T201
