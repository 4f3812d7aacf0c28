"""A cold start beside Spark's own group-by and a bare load: `python -m tests.benchmarks.cold_start_speed [records]`.

Blocks of ledgers, segments, topics, lists, cursors and producers are put into a bucket of a real store; every second
ledger has two versions. Ours finds the winners in a warm session of two tasks at a time, and loads them into SQLite,
with triggers and indexes. The bare thing reads copies of the same blocks from this disk, takes the newest version of
each record by `groupBy` and `max_by`, and loads the result as it is into tables without keys. About eight minutes on
two cores at the default of 5,000,000 records; it needs 6 GB of disk.
"""

import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from adbc_driver_sqlite import dbapi
from pyroaring import BitMap64
from pyspark.sql import functions as sql

from logstore.catalog.records.rebuild_loading import RebuildDatabase
from logstore.identity.bucket_markers import BucketRole
from logstore.ports.catalog.records import RebuiltCatalogStart
from logstore.records.manifest import Block, IdCeilings, Manifest
from logstore.records.rebuild_job import RebuildId, RowFilesFolder, WriteCatalogRowsJob
from logstore.records.record_kinds import RecordKind, block_schema
from logstore.records.services.record_log import RecordLog
from spark.job_mains import record_log_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import SparkSettings, WarmSession
from tests.benchmarks.reconciliation_speed import peak_memory
from tests.benchmarks.stage import Stage, stage
from workers.assembly.log_store_from_settings import executor_bucket_address
from workers.settings import load_settings

_ROUNDS: Final = 3
_K: Final = RecordKind
_SHARES: Final = {_K.LEDGER: 0.16, _K.SEGMENT: 0.72, _K.TOPIC: 0.02, _K.LIST: 0.03, _K.CURSOR: 0.04, _K.PRODUCER: 0.03}
_NOW_US: Final = 1_750_000_000_000_000


def beside_bare(on: Stage, records: int, folder: Path) -> dict[str, Any]:
    """Seconds of both, their ratio, and the peak of memory of all our processes."""
    _tell(f"writing the blocks of {records:,} records")
    manifest = _put(on, records, folder / "copies")
    session = WarmSession(SparkSettings(scratch=folder / "spark", master="local[2]"))
    try:
        mains = record_log_job_mains(
            executor_bucket_address(on.settings, BucketRole.RECORDS, on.settings.records_bucket)
        )
        jobs = SparkBulkJobs(session, PublishedOutputs(folder / "bulk"), lambda: mains)
        with peak_memory() as peak:  # in a round of its own: to look at the pages of all processes takes time from them
            found = _ours(jobs, manifest, folder, "warm-up")
        rounds = [
            (_ours(jobs, manifest, folder, f"round-{number}"), _bare(session, folder)) for number in range(_ROUNDS)
        ]
    finally:
        session.close()
    if found["records"] != records or any(bare["records"] != records for _, bare in rounds):
        raise RuntimeError(f"expected {records} records, found {found}")
    told = {
        f"{who}_{what}": round(statistics.median(each[at][what] for each in rounds), 2)
        for at, who in enumerate(("ours", "bare"))
        for what in ("find_s", "load_s")
    }
    ratio = statistics.median(_seconds(ours) / _seconds(bare) for ours, bare in rounds)
    return {"records": records, **told, "ratio": round(ratio, 2), "peak_mib": peak()}


def _seconds(found: dict[str, float]) -> float:
    return found["find_s"] + found["load_s"]


def _ours(jobs: SparkBulkJobs, manifest: Manifest, folder: Path, run_id: str) -> dict[str, float]:
    url = f"sqlite:///{folder}/{run_id}.db"
    job = WriteCatalogRowsJob(run_id=run_id, catalog_id=manifest.catalog_id, manifest=manifest.number)
    began = time.perf_counter()
    done = jobs.run_job(job, lambda progress: None)
    found = time.perf_counter()
    load = RebuiltCatalogStart(
        rebuild=str(RebuildId.for_command(manifest.catalog_id, 1, database_url=url, skip_unreadable=False)),
        manifest=manifest,
        epoch=2,
        highest_version=done.counts["version"],
        stamp=uuid4().hex,
        markers=(),
        now_us=_NOW_US,
    )
    RebuildDatabase(url).load_rows(load, RowFilesFolder(Path(done.folder)), lambda: None)
    loaded = time.perf_counter()
    jobs.remove_run(run_id)
    (folder / f"{run_id}.db").unlink()
    took = {"find_s": found - began, "load_s": loaded - found, "records": done.counts["records"]}
    _tell(f"{run_id}: {took}")
    return took


def _bare(session: WarmSession, folder: Path) -> dict[str, float]:
    spark, records = session.get_or_restart_session(), 0
    out, database = folder / "grouped", folder / "bare.db"
    began = time.perf_counter()
    for kind in _SHARES:
        found = spark.read.parquet(str(folder / "copies" / kind.value))
        rest = [name for name in found.columns if name not in {"id", "sub"}]
        newest = sql.max_by(sql.struct(*rest), sql.struct("epoch", "version")).alias("newest")
        grouped = found.groupBy("id", "sub").agg(newest).select("id", "sub", "newest.*")
        grouped.write.mode("overwrite").parquet(str(out / kind.value))
    written = time.perf_counter()
    with closing(dbapi.connect(f"file:{database}")) as connection, connection.cursor() as cursor:
        for kind in _SHARES:
            for part in (out / kind.value).glob("*.parquet"):
                with pq.ParquetFile(part) as file:
                    batches = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
                    records += cursor.adbc_ingest(kind.value, batches, mode="create_append")
        connection.commit()
    took = {"find_s": written - began, "load_s": time.perf_counter() - written, "records": records}
    _tell(f"bare: {took}")
    database.unlink()
    return took


def _put(on: Stage, records: int, copies: Path) -> Manifest:
    """Blocks in the bucket, their files once more on this disk, and the manifest that names them."""
    log, blocks = RecordLog(on.log.record_objects), list[Block]()
    for kind, versions in _versions(records):
        for block in log.put_blocks(kind, versions):
            blocks.append(block)
            (copies / kind.value).mkdir(parents=True, exist_ok=True)
            stored = on.log.record_objects.get(block.key)
            (copies / kind.value / f"{block.block_id}.parquet").write_bytes(stored.body if stored else b"")
    before = log.read_newest_manifest()
    manifest = Manifest(
        number=1 + (before.number if before else 0),
        catalog_id=on.log.catalog.identities.catalog_id(),
        epoch=1,
        bundles=64,
        stamp=uuid4().hex,
        flushed_us=_NOW_US,
        ceilings=IdCeilings(ledger=records, topic=records, transaction=records),
        blocks=tuple(blocks),
    )
    log.put_manifest(manifest)
    return manifest


def _versions(records: int) -> Iterator[tuple[RecordKind, pa.Table]]:
    counts = {kind: int(share * records) for kind, share in _SHARES.items()}
    counts[_K.SEGMENT] += records - sum(counts.values())
    for kind, count in counts.items():
        for first in range(0, count, 500_000):
            yield kind, _some(kind, np.arange(first, min(first + 500_000, count)), counts)
    ledgers = np.arange(0, counts[_K.LEDGER], 2)
    yield _K.LEDGER, _some(_K.LEDGER, ledgers, counts, version=2)


def _some(kind: RecordKind, at: Any, counts: dict[RecordKind, int], version: int = 1) -> pa.Table:
    """Versions of the records of a kind with these numbers."""
    count = len(at)

    def text(prefix: str, values: Any = at) -> pa.Array:
        return pc.binary_join_element_wise(prefix, pa.array(values).cast(pa.string()), "")

    def same(value: Any, of: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, of), count)

    topics = at * max(1, counts[_K.TOPIC]) // max(1, int(at[-1]) + 1) % counts[_K.TOPIC]
    found: dict[str, Any] = {
        "id": at,
        "sub": same("", pa.string()),
        "epoch": same(1, pa.int64()),
        "version": same(version, pa.int64()),
        "generation": same(0, pa.int64()),
        "at_us": same(_NOW_US, pa.int64()),
        "tombstone": same(False, pa.bool_()),
    }
    if kind is _K.SEGMENT:
        found["id"] = at * counts[_K.LEDGER] // counts[_K.SEGMENT]
        found["sub"] = pa.array(at - np.searchsorted(found["id"], found["id"])).cast(pa.string())
        found |= {"first_entry": at, "entries": same(10, pa.int64()), "sha256": text("0123456789abcdef" * 3)}
        found |= {"size_bytes": at % 100_000, "delayed": same(0, pa.int64())}
    elif kind is _K.LEDGER:
        lists = at * counts[_K.LIST] // counts[_K.LEDGER]
        context = same(
            '{"bucket":"tiered","driver":"aws-s3","uuid":"00000000-0000-4000-8000-000000000000"}', pa.string()
        )
        found |= {"list_id": lists, "topic_id": lists % counts[_K.TOPIC], "topic": text("persistent://a/b/", topics)}
        found |= {"component": same("MANAGED_LEDGER", pa.string()), "owner": same("{}", pa.string()), "place": at}
        found |= {"application": same("sexton", pa.string()), "state": same("CLOSED", pa.string())}
        found |= {"last_segment": same(3, pa.int64()), "ledger_epoch": same(1, pa.int64()), "created_us": at + _NOW_US}
        found |= {"closed_us": at + _NOW_US, "primary_state": same("LIVE", pa.string())}
        found |= {"primary_context": same("{}", pa.string()), "tiered_context": context}
        found["tiered_state"] = pc.if_else(pa.array(at % 4 == 0), "LIVE", pa.scalar(None, pa.string()))
    elif kind is _K.TOPIC:
        found |= {"name": text("persistent://tenant/namespace/topic-"), "state": same("ACTIVE", pa.string())}
        found |= {"retention_s": same(0, pa.int64()), "created_us": at + _NOW_US}
    elif kind is _K.LIST:
        ledgers = np.searchsorted(
            np.arange(counts[_K.LEDGER]) * counts[_K.LIST] // counts[_K.LEDGER], np.append(at, at[-1] + 1)
        )
        named = [BitMap64(range(a, b)).serialize() for a, b in itertools.pairwise(ledgers)]
        found |= {"topic_id": at % counts[_K.TOPIC], "component": same("MANAGED_LEDGER", pa.string())}
        found |= {"owner": text('{"cursor":"c'), "list_version": same(3, pa.int64()), "ledgers": pa.array(named)}
    elif kind is _K.CURSOR:
        found |= {"topic_id": at % counts[_K.TOPIC], "name": text("subscription-"), "mark_ledger": at}
        found |= {"mark_entry": at, "acknowledged": same(b"", pa.binary()), "seeks": same(0, pa.int64())}
        found |= {"created_us": at + _NOW_US}
    elif kind is _K.PRODUCER:
        found["id"] = np.sort(at % counts[_K.TOPIC])
        found |= {"sub": text("producer-"), "sequence_id": at}
    wanted = block_schema(kind)
    columns = [found.get(one.name, pa.nulls(count, one.type)) for one in wanted]
    table = pa.table([pa.array(one) if not isinstance(one, pa.Array) else one for one in columns], wanted.names)
    return table.cast(wanted).sort_by([("id", "ascending"), ("sub", "ascending")])


def _tell(line: str) -> None:
    """Say how far it is; stdout has the one document."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


@contextmanager
def _stage() -> Iterator[Stage]:
    with stage(load_settings({}, os.environ, Path.cwd()).settings, workers=0) as on:
        yield on


def main(records: int) -> dict[str, Any]:
    """A tenth of the records, and all of them."""
    found: dict[str, Any] = {}
    for size in (records // 10, records):
        with _stage() as on, tempfile.TemporaryDirectory(prefix="sexton-bench-") as folder:
            found[f"{size:,} records"] = beside_bare(on, size, Path(folder))
    return found


if __name__ == "__main__":
    print(json.dumps({"cold_start": main(int(sys.argv[1]) if sys.argv[1:] else 5_000_000)}, indent=1))  # noqa: T201
