"""`list-offloads`: write a fact about each object and each unfinished upload of offloads in the bucket of a cluster.

The listing comes before the first scan. Pulsar writes the uuid of an offload into ZooKeeper before the upload, so an
object that was listed and has no reference in a later scan never gets one.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.ledger_scan import count_ledgers, list_leaf_folders
from infra.pulsar.offload_store import OffloadStore, open_offload_store
from logstore.pulsar.offload_objects import OFFLOAD_KEY
from logstore.pulsar.plan_jobs import LISTED, ListOffloadsJob
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from spark.job_runner import JobContext
from spark.pulsar.cluster_facts import MAX_LEDGERS_PER_GROUP
from spark.reconciliation.fact_files import (
    TIERED_OBJECTS,
    GroupedFactFiles,
    choose_group_count,
    iterate_upload_facts,
    split_tiered_objects,
)
from spark.sources.bucket_listings import TIERED_RANGES, KeyRange, to_record_batches

OFFLOADED_OBJECTS: Final = "offloaded_objects"
"""Stem of the files, in the schema `TIERED_OBJECTS`."""


@dataclass(frozen=True, slots=True)
class _ListingTask:
    number: int
    key_range: KeyRange


def list_offloads(cluster: PulsarCluster, context: JobContext, job: ListOffloadsJob) -> BulkJobSummary:
    """List in executors. A listing that is not complete raises an error, and nothing is published."""
    del job
    store = open_offload_store(cluster.offloads)
    listed_us = store.read_clock_us()
    with cluster.open_reader(parallel_sessions=1) as reader:
        ledgers = count_ledgers(reader, list_leaf_folders(reader, cluster.ledgers_root))
    groups = choose_group_count(ledgers, max_ledgers_per_group=MAX_LEDGERS_PER_GROUP)
    tasks = [_ListingTask(number, key_range) for number, key_range in enumerate(TIERED_RANGES)]
    write = partial(_write_facts, cluster=cluster, folder=context.folder, groups=groups)
    counts = sum(context.run_in_executors("list offloads", tasks, write), Counter[str]())
    names = ("objects", "uploads", "foreign")
    return BulkJobSummary(
        counts={"groups": groups} | {name: counts[name] for name in names}, facts={LISTED: str(listed_us)}
    )


def _write_facts(task: _ListingTask, *, cluster: PulsarCluster, folder: Path, groups: int) -> Counter[str]:
    """Write the facts of one range of keys, in an executor. Two runs of a task may overlap."""
    store = open_offload_store(cluster.offloads)
    files = GroupedFactFiles(folder, OFFLOADED_OBJECTS, task.number, TIERED_OBJECTS, groups)
    foreign = _write_objects(store, task.key_range, files)
    objects = files.rows
    if task.key_range.prefix:  # keys of offloads begin with a hexadecimal digit
        for batch in iterate_upload_facts(store.list_uploads(task.key_range.prefix), store.bucket, OFFLOAD_KEY):
            files.write(batch)
    return Counter(objects=objects, uploads=files.close() - objects, foreign=foreign)


def _write_objects(store: OffloadStore, key_range: KeyRange, files: GroupedFactFiles) -> int:
    """Write the objects of offloads, and return the number of other objects."""
    foreign = 0
    for batch in to_record_batches(key_range.list_objects(store.objects)):
        objects, others = split_tiered_objects(batch, store.bucket, OFFLOAD_KEY)
        files.write(objects)
        foreign += others.num_rows
    return foreign
