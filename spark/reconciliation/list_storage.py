"""`list-storage`: write a fact about every object of every bucket, from listings or from inventories."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from infra.objects.s3_store import BucketAddress, read_store_clock_s
from logstore.errors import InvalidInput
from logstore.identity.bucket_markers import MARKER_KEY, PROBE_PREFIX
from logstore.log.ledger_object_keys import SHARDS
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary, ListStorageJob
from spark.job_runner import JobContext
from spark.reconciliation.fact_files import (
    OBJECTS,
    STRANGE,
    TIERED_OBJECTS,
    GroupedFactFiles,
    choose_group_count,
    iterate_upload_facts,
    replace_unknown_times,
    split_tiered_objects,
    write_ungrouped_facts,
)
from spark.reconciliation.read_catalog_rows import read_catalog_bounds
from spark.sources.bucket_listings import (
    TIERED_RANGES,
    KeyRange,
    list_outside_shards,
    parse_ledger_keys,
    shard_key_range,
    to_record_batches,
)
from spark.sources.s3_inventory import (
    Inventory,
    InventoryTaskPart,
    check_part_checksum,
    list_inventory_parts,
    read_inventory_manifest,
    read_part,
)
from spark.sources.store_addresses import CatalogAddresses

_TASKS_PER_CORE: Final = 4  # enough to even out tasks of different lengths; each task costs some 20 ms
_TIERED_KEY: Final = (
    r"^(?P<uuid>[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}?)-ledger-(?P<ledger>0|[1-9][0-9]{0,17})(?P<index>-index)?$"
)


@dataclass(frozen=True, slots=True)
class _ListingTask:
    number: int
    address: BucketAddress
    ranges: tuple[KeyRange, ...] = ()
    part: InventoryTaskPart | None = None
    is_beside_shards: bool = False  # lists the objects of the primary bucket that are in no shard

    def read_batches(self) -> Iterator[pa.RecordBatch]:
        if self.part:
            yield from read_part(self.part)
            return
        store, ranges = self.address.store(), self.ranges
        if self.is_beside_shards:
            folders, objects = list_outside_shards(store)
            ranges = tuple(folders)
            yield from to_record_batches(iter(objects))
        for key_range in ranges:
            yield from to_record_batches(key_range.list_objects(store))


@dataclass(frozen=True, slots=True)
class _ListedObjectCounts:
    objects: int = 0
    strange: int = 0


def list_storage(addresses: CatalogAddresses, context: JobContext, job: ListStorageJob) -> BulkJobSummary:
    inventories = _read_and_check_inventories(addresses, job, context)
    groups = choose_group_count(read_catalog_bounds(context, addresses.database_url)["ledgers"])
    tasks = _make_listing_tasks(addresses, inventories, parallel_tasks=context.spark.sparkContext.defaultParallelism)
    primary = addresses.primary.bucket
    counts = context.run_in_executors(
        "list the buckets", tasks, partial(_write_object_facts, folder=context.folder, groups=groups, primary=primary)
    )
    upload_tasks = [_ListingTask(len(tasks) + index, address) for index, address in enumerate(addresses.tiered)]
    uploads = context.run_in_executors(
        "list unfinished uploads", upload_tasks, partial(_write_upload_facts, folder=context.folder, groups=groups)
    )
    return BulkJobSummary(
        counts={
            "objects": sum(task_counts.objects for task_counts in counts),
            "strange": sum(task_counts.strange for task_counts in counts),
            "uploads": sum(uploads),
            "groups": groups,
        },
        facts={"inventory_us": str(min((inventory.created_us for inventory in inventories.values()), default=""))},
    )


def _read_and_check_inventories(
    addresses: CatalogAddresses, job: ListStorageJob, context: JobContext
) -> dict[str, Inventory]:
    inventory_by_bucket: dict[str, Inventory] = {}
    buckets = {address.bucket for address in addresses.stores}
    now_us = round(read_store_clock_s(addresses.primary.store()) * 1_000_000) if job.inventories else 0
    for path in job.inventories:
        inventory = read_inventory_manifest(Path(path), now_us=now_us)
        if inventory.bucket not in buckets:
            raise InvalidInput("inventory: sourceBucket", expected=" or ".join(sorted(buckets)), found=inventory.bucket)
        if inventory.bucket in inventory_by_bucket:
            raise InvalidInput("inventory", expected="one for each bucket", found=f"two of {inventory.bucket}")
        inventory_by_bucket[inventory.bucket] = inventory
    files = [file for inventory in inventory_by_bucket.values() for file in inventory.files]
    context.run_in_executors("check inventories", files, check_part_checksum)
    return inventory_by_bucket


def _make_listing_tasks(
    addresses: CatalogAddresses, inventory_by_bucket: Mapping[str, Inventory], *, parallel_tasks: int
) -> list[_ListingTask]:
    tasks: list[_ListingTask] = []
    for address in addresses.stores:
        if inventory := inventory_by_bucket.get(address.bucket):
            tasks += [
                _ListingTask(len(tasks) + index, address, part=part)
                for index, part in enumerate(list_inventory_parts(inventory))
            ]
            continue
        is_primary = address == addresses.primary
        ranges = tuple(map(shard_key_range, range(SHARDS))) if is_primary else TIERED_RANGES
        count = min(len(ranges), _TASKS_PER_CORE * parallel_tasks)
        tasks += [_ListingTask(len(tasks) + index, address, ranges[index::count]) for index in range(count)]
        if is_primary:
            tasks.append(_ListingTask(len(tasks), address, is_beside_shards=True))
    return tasks


def _write_object_facts(task: _ListingTask, *, folder: Path, groups: int, primary: str) -> _ListedObjectCounts:
    bucket = task.address.bucket
    is_primary = bucket == primary
    stem, schema = ("objects", OBJECTS) if is_primary else ("tiered", TIERED_OBJECTS)
    files = GroupedFactFiles(folder, stem, task.number, schema, groups)
    strange: list[pa.RecordBatch] = []
    for batch in task.read_batches():
        own_batch, strange_batch = (_split_primary_objects if is_primary else _split_tiered_objects)(batch, bucket)
        files.write(own_batch)
        if strange_batch.num_rows:
            strange.append(strange_batch)
    return _ListedObjectCounts(files.close(), write_ungrouped_facts(folder, "strange", task.number, strange, STRANGE))


def _split_primary_objects(batch: pa.RecordBatch, bucket: str) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the objects of ledgers in the schema `OBJECTS`, and all other objects in the schema `STRANGE`."""
    parsed = parse_ledger_keys(batch.column("key"))
    columns = [
        pa.array(parsed.ledger_id),
        pa.array(parsed.number),
        pa.array(parsed.digest),
        batch.column("size_bytes"),
        replace_unknown_times(batch),
    ]
    objects = pa.record_batch(columns, schema=OBJECTS)
    if parsed.is_canonical.all():
        return objects, _exclude_markers_and_probes(batch.slice(0, 0), bucket)
    mask = pa.array(parsed.is_canonical)
    return objects.filter(mask), _exclude_markers_and_probes(batch.filter(pc.invert(mask)), bucket)


def _split_tiered_objects(batch: pa.RecordBatch, bucket: str) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return objects of tiered copies in the schema `TIERED_OBJECTS`, and all other objects in the schema `STRANGE`."""
    objects, others = split_tiered_objects(batch, bucket, _TIERED_KEY)
    return objects, _exclude_markers_and_probes(others, bucket)


def _exclude_markers_and_probes(batch: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Return objects in the schema `STRANGE`, without the catalog's marker and the probes of `sexton doctor`."""
    is_own = pc.or_(pc.equal(batch.column("key"), MARKER_KEY), pc.starts_with(batch.column("key"), PROBE_PREFIX))
    batch = batch.filter(pc.invert(is_own))
    keys = pc.cast(batch.column("key"), pa.string())
    buckets = pa.repeat(pa.scalar(bucket, pa.string()), batch.num_rows)
    return pa.record_batch([buckets, keys, batch.column("size_bytes"), replace_unknown_times(batch)], schema=STRANGE)


def _write_upload_facts(task: _ListingTask, *, folder: Path, groups: int) -> int:
    """Write facts about the unfinished multipart uploads of offloads, in an executor."""
    files = GroupedFactFiles(folder, "tiered", task.number, TIERED_OBJECTS, groups)
    uploads = task.address.store().list_open_uploads("")
    for batch in iterate_upload_facts(uploads, task.address.bucket, _TIERED_KEY):
        files.write(batch)
    return files.close()
