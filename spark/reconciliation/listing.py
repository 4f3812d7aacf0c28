"""`list-storage`: every object of every bucket as a fact, from listings or from inventories.

The number of groups is chosen here, from the catalog's size, and kept for all jobs of the run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from infra.objects import read_store_clock_s
from logstore.errors import InvalidInput
from logstore.identity.markers import MARKER_KEY, PROBE_PREFIX
from logstore.log.ledgers import SHARDS
from logstore.reconciliation.jobs import BulkSummary, ListStorage
from spark.reconciliation.facts import OBJECTS, STRANGE, TIERED_OBJECTS, YOUNG, GroupFiles, groups_for, put
from spark.reconciliation.references import bounds
from spark.runner import JobRun
from spark.sources.inventory import Inventory, InventoryPart, check_part, list_parts, read_manifest, read_part
from spark.sources.keys import parse_keys
from spark.sources.objects import (
    TIERED_RANGES,
    KeyRange,
    NativeAddresses,
    StoreAddress,
    list_beside_shards,
    shard_range,
    to_record_batches,
)

_WAVES: Final = 4  # tasks for each that can run at once: enough to even out, and each costs some 20 ms
_TIERED_KEY: Final = (
    r"^(?P<uuid>[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}?)-ledger-(?P<ledger>0|[1-9][0-9]{0,17})(?P<index>-index)?$"
)


@dataclass(frozen=True, slots=True)
class _Task:
    """The part of a bucket that one task lists, or reads."""

    number: int
    address: StoreAddress
    ranges: tuple[KeyRange, ...] = ()
    part: InventoryPart | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches of `LISTED`."""
        if self.part:
            yield from read_part(self.part)
            return
        store = self.address.store()
        for one in self.ranges:
            yield from to_record_batches(one.list_objects(store))


@dataclass(frozen=True, slots=True)
class _Counts:
    objects: int = 0
    strange: int = 0
    uploads: int = 0


def list_storage(addresses: NativeAddresses, run: JobRun, job: ListStorage) -> BulkSummary:
    """The main of the job.

    Raises:
        InvalidInput: An inventory that is damaged, incomplete, or of a bucket that is not the catalog's.
        StoreUnavailable: A listing could not be completed.
    """
    inventories = _inventories(addresses, job, run)
    groups = groups_for(bounds(run, addresses.database_url)["ledgers"])
    tasks = _tasks(addresses, inventories, at_once=run.spark.sparkContext.defaultParallelism)
    primary = addresses.primary.bucket
    counts = run.spread(
        "list the buckets",
        tasks,
        partial(_list, folder=run.folder, groups=groups, primary=primary),
    )
    uploads = run.spread(
        "list unfinished uploads",
        [_Task(len(tasks) + at, address, (KeyRange(),)) for at, address in enumerate(addresses.tiered)],
        partial(_list_uploads, folder=run.folder, groups=groups),
    )
    return BulkSummary(
        counts={
            "objects": sum(one.objects for one in counts),
            "strange": sum(one.strange for one in counts),
            "uploads": sum(uploads),
            "groups": groups,
        },
        facts={"inventory_us": str(min((one.created_us for one in inventories.values()), default=""))},
    )


def _inventories(addresses: NativeAddresses, job: ListStorage, run: JobRun) -> dict[str, Inventory]:
    """Checked inventories by bucket."""
    found: dict[str, Inventory] = {}
    known = {address.bucket for address in addresses.stores}
    now_us = round(read_store_clock_s(addresses.primary.store()) * 1_000_000) if job.inventories else 0
    for path in job.inventories:
        inventory = read_manifest(Path(path), now_us=now_us)
        if inventory.bucket not in known:
            raise InvalidInput("inventory: sourceBucket", expected=" or ".join(sorted(known)), found=inventory.bucket)
        if inventory.bucket in found:
            raise InvalidInput("inventory", expected="one for each bucket", found=f"two of {inventory.bucket}")
        found[inventory.bucket] = inventory
    run.spread("check inventories", [one for each in found.values() for one in each.files], check_part)
    return found


def _tasks(addresses: NativeAddresses, inventories: dict[str, Inventory], *, at_once: int) -> list[_Task]:
    work: list[tuple[StoreAddress, tuple[KeyRange, ...], InventoryPart | None]] = []
    for address in addresses.stores:
        if address.bucket in inventories:
            work += [(address, (), part) for part in list_parts(inventories[address.bucket])]
            continue
        is_primary = address == addresses.primary
        ranges = tuple(map(shard_range, range(SHARDS))) if is_primary else TIERED_RANGES
        count = min(len(ranges), _WAVES * at_once)
        work += [(address, ranges[at::count], None) for at in range(count)]
        if is_primary:
            work.append((address, (KeyRange(),), None))  # what stands beside the shards
    return [_Task(number, *one) for number, one in enumerate(work)]


def _list(task: _Task, *, folder: Path, groups: int, primary: str) -> _Counts:
    """In an executor: one part of a bucket into files of its own."""
    is_primary = task.address.bucket == primary
    stem, schema = ("objects", OBJECTS) if is_primary else ("tiered", TIERED_OBJECTS)
    files = GroupFiles(folder, stem, task.number, schema, groups)
    strange: list[pa.RecordBatch] = []
    for batch in _beside(task) if task.ranges == (KeyRange(),) and is_primary else task.batches():
        ours, others = (_primary if is_primary else _tiered)(batch, task.address.bucket)
        files.write(ours)
        if others.num_rows:
            strange.append(others)
    return _Counts(files.close(), put(folder, "strange", task.number, strange, STRANGE))


def _beside(task: _Task) -> Iterator[pa.RecordBatch]:
    """Objects of the primary bucket that are in no shard."""
    store = task.address.store()
    ranges, objects = list_beside_shards(store)
    yield from to_record_batches(iter(objects))
    for one in ranges:
        yield from to_record_batches(one.list_objects(store))


def _times(batch: pa.RecordBatch) -> pa.Array:
    return pc.fill_null(batch.column("modified_us"), YOUNG)


def _primary(batch: pa.RecordBatch, bucket: str) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Objects of ledgers, and those that are not."""
    parsed = parse_keys(batch.column("key"))
    columns = [
        pa.array(parsed.ledger_id),
        pa.array(parsed.number),
        pa.array(parsed.digest),
        batch.column("size_bytes"),
        _times(batch),
    ]
    ours = pa.record_batch(columns, schema=OBJECTS)
    if parsed.is_canonical.all():
        return ours, _strange(batch.slice(0, 0), bucket)
    mask = pa.array(parsed.is_canonical)
    return ours.filter(mask), _strange(batch.filter(pc.invert(mask)), bucket)


def _strange(batch: pa.RecordBatch, bucket: str) -> pa.RecordBatch:
    """Return the objects as strange ones, without the catalog's marker and the probes of `sexton doctor`."""
    is_own = pc.or_(pc.equal(batch.column("key"), MARKER_KEY), pc.starts_with(batch.column("key"), PROBE_PREFIX))
    batch = batch.filter(pc.invert(is_own))
    keys = pc.cast(batch.column("key"), pa.string())
    buckets = pa.repeat(pa.scalar(bucket, pa.string()), batch.num_rows)
    return pa.record_batch([buckets, keys, batch.column("size_bytes"), _times(batch)], schema=STRANGE)


def _tiered(batch: pa.RecordBatch, bucket: str) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Objects that offloads write, and those that they do not."""
    parsed = pc.extract_regex(pc.cast(batch.column("key"), pa.string()), _TIERED_KEY)
    mask = pc.is_valid(parsed)
    found, ours = parsed.filter(mask), batch.filter(mask)
    part = pc.if_else(pc.equal(pc.struct_field(found, "index"), ""), "data", "index")
    columns = [
        pc.cast(pc.struct_field(found, "ledger"), pa.int64()),
        pa.repeat(pa.scalar(bucket, pa.string()), len(found)),
        pc.struct_field(found, "uuid"),
        part,
        ours.column("size_bytes"),
        _times(ours),
    ]
    return pa.record_batch(columns, schema=TIERED_OBJECTS), _strange(batch.filter(pc.invert(mask)), bucket)


def _list_uploads(task: _Task, *, folder: Path, groups: int) -> int:
    """In an executor: uploads in parts that were never finished; parts of other writers' keys are left alone."""
    form = re.compile(_TIERED_KEY)
    rows = [
        {
            "ledger_id": int(key["ledger"]),
            "bucket": task.address.bucket,
            "uuid": key["uuid"],
            "part": "upload",
            "size_bytes": 0,
            "modified_us": YOUNG if found.started_us is None else found.started_us,
        }
        for found in task.address.store().open_uploads(task.ranges[0].prefix)
        if (key := form.fullmatch(found.key))
    ]
    files = GroupFiles(folder, "tiered", task.number, TIERED_OBJECTS, groups)
    for batch in pa.Table.from_pylist(rows, schema=TIERED_OBJECTS).to_batches():
        files.write(batch)
    return files.close()
