"""Delayed messages on a real stack: how soon the first one comes after a restart, and how fast indexes are built."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from logstore.delayed.index_buckets import find_pair_to_merge
from logstore.delayed.index_build_job import BuildDelayedIndexJob
from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.log import Topic
from spark.job_mains import catalog_job_mains
from spark.job_runner import SparkBulkJobs
from spark.published_output import PublishedOutputs
from spark.warm_session import SparkSettings, WarmSession
from tests.benchmarks.stage import Stage
from workers.assembly.log_store_from_settings import executor_catalog_and_bucket_addresses, open_log_store

_SEGMENT: Final = 2_000  # entries
_DAY_MS: Final = 86_400_000
_DUE_MS: Final = 3_600_000
_RANDOM_BYTES: Final = 64 << 20
_ROUNDS: Final = 3


def recovery(on: Stage, pending: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The first delivery by a process that has just begun, beside reading every message; 1 KiB each."""
    topic = _produced(on, "recovery", pending, 1_024, tell)
    sealed = on.log.delayed.sealer.drop_buckets_and_seal(topic.topic_id, force=True)
    tell(f"recovery: {sealed.messages:,} messages were sealed into {sealed.buckets} buckets")
    buckets = _merged(on, topic)
    if sealed.messages != pending:
        raise RuntimeError(f"expected {pending} messages to be sealed, found {sealed.messages}")
    first = sorted(_first(on, topic) for _ in range(_ROUNDS))[_ROUNDS // 2]
    began = time.perf_counter()
    count = sum(1 for _ in on.log.topic_logs.scan(topic))
    whole = time.perf_counter() - began
    if count != pending:
        raise RuntimeError(f"expected {pending} entries, found {count}")
    tell(f"recovery: first delivery after {first:.2f} s, every message read in {whole:.1f} s")
    return {
        "messages": pending,
        "buckets": buckets,
        "first_delivery_s": round(first, 3),
        "every_message_s": round(whole, 2),
        "ratio": round(first / whole, 4),
        "extrapolated": False,
    }


def _merged(on: Stage, topic: Topic) -> int:
    """Merge until there are no more buckets than there may be, as workers do; how many are left."""
    while len(listed := on.log.catalog.delayed.get_bucket_list(topic.topic_id).buckets) > on.settings.delayed_buckets:
        pair = find_pair_to_merge(listed)
        assert pair
        on.log.delayed.merger.merge_pair(topic.topic_id, (pair[0].bucket_id, pair[1].bucket_id))
    return len(listed)


def _first(on: Stage, topic: Topic) -> float:
    """Until a process that is connected and knows nothing has its first message.

    Messages of an hour may come early, so that there are some.
    """
    settings = on.settings.model_copy(update={"delayed_tolerance": _DUE_MS / 1_000})
    with open_log_store(settings) as log:
        log.objects.require_ownership_once()
        began = time.perf_counter()
        with log.delivery.create_consumer(topic) as consumer:
            found = consumer.receive(1)
        took = time.perf_counter() - began
    if len(found) != 1 or found[0].deliver_at_ms is None or len(found[0].payload or b"") != 1_024:
        raise RuntimeError(f"expected a delayed message of 1 KiB, found {found}")
    return took


def building(on: Stage, entries: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Rows a second and core of a bulk build that is warm, beside a bare scan of the same column of these objects."""
    topic = _produced(on, "building", entries, 100, tell)
    keys = [
        segment_key(segment.ledger_id, segment.number)
        for ledger in on.log.catalog.ledgers.list_ledgers(topic.topic_id)
        for segment in on.log.catalog.ledgers.list_segments(ledger.ledger_id)
    ]
    found: dict[str, Any] = {"entries": entries, "segments": len(keys)}
    for cores in (1, 2):
        with TemporaryDirectory() as folder:
            ours = _built(on, topic, entries, cores, Path(folder))
        bare = min(_scanned(on, keys, entries, cores) for _ in range(_ROUNDS))
        rows = {"ours": entries / ours / cores, "bare": entries / bare / cores}
        found[f"{cores} cores"] = {f"{name}_rows_s_core": round(rate) for name, rate in rows.items()}
        found[f"{cores} cores"]["ratio"] = round(bare / ours, 2)
        tell(f"build: {cores} cores: {rows['ours']:,.0f} rows/s and core, bare scan {rows['bare']:,.0f}")
    return found


def _built(on: Stage, topic: Topic, entries: int, cores: int, folder: Path) -> float:
    session = WarmSession(SparkSettings(scratch=folder / "spark", master=f"local[{cores}]"))
    jobs = SparkBulkJobs(
        session,
        PublishedOutputs(folder / "bulk"),
        lambda: catalog_job_mains(executor_catalog_and_bucket_addresses(on.settings)),
    )
    times = []
    try:
        for number in range(_ROUNDS + 1):  # the first one starts Spark and its processes
            began = time.perf_counter()
            job = BuildDelayedIndexJob(run_id=f"build-{number}", topics=(topic.topic_id,))
            done = jobs.run_job(job, lambda _: None)
            times.append(time.perf_counter() - began)
            if done.counts["messages"] != entries:
                raise RuntimeError(f"expected {entries} messages, found {done.counts}")
    finally:
        session.close()
    return min(times[1:])


def _scanned(on: Stage, keys: list[str], entries: int, cores: int) -> float:
    at = urlsplit(on.settings.s3_endpoint)
    store = pa_fs.S3FileSystem(
        access_key=on.settings.s3_access_key.get_secret_value(),
        secret_key=on.settings.s3_secret_key.get_secret_value(),
        endpoint_override=at.netloc,
        scheme=at.scheme,
        region=on.settings.s3_region or "us-east-1",
    )
    began = time.perf_counter()
    with ThreadPoolExecutor(cores) as threads:
        rows = sum(threads.map(partial(_rows_of, store, on.settings.primary_bucket), keys))
    took = time.perf_counter() - began
    if rows != entries:
        raise RuntimeError(f"expected {entries} rows, found {rows}")
    return took


def _rows_of(store: pa_fs.S3FileSystem, bucket: str, key: str) -> int:
    with store.open_input_file(f"{bucket}/{key}") as file:
        return int(pq.read_table(file, columns=["deliver_at_ms"], use_threads=False).num_rows)


def _produced(on: Stage, name: str, count: int, payload: int, tell: Callable[[str], None]) -> Topic:
    """A topic of so many messages that are due within a day, and not before some minutes; no payload repeats."""
    topic = on.log.catalog.topics.create_topic(f"persistent://bench/delayed/{name}", RetentionPolicy())
    began, now_ms = time.perf_counter(), on.log.catalog.delayed.now_ms() + 600_000
    for entries in _segments(count, payload, now_ms):
        on.log.topic_logs.append(topic, ProducedEntries(entries=entries))
    tell(f"{name}: {count:,} messages appended in {time.perf_counter() - began:.0f} s")
    return topic


def _segments(count: int, payload: int, now_ms: int) -> Iterator[list[NewEntry]]:
    random, content = Random(1), os.urandom(_RANDOM_BYTES)
    for first in range(0, count, _SEGMENT):
        length = min(_SEGMENT, count - first)
        start = random.randrange(_RANDOM_BYTES - length * payload)
        yield [
            NewEntry(
                payload=content[start + number * payload : start + (number + 1) * payload],
                deliver_at_ms=now_ms + random.randrange(_DAY_MS),
            )
            for number in range(length)
        ]
