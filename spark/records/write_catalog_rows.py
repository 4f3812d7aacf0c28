"""`rebuild-records`: write files of table rows, from the newest record versions in a manifest. A later step loads them.

Topics and lists come first, because other records depend on topics and lists. A task reads the blocks of one range of
ids, so that its memory is bounded. If names of a kind are unique, one task reads all records of the kind. If a name was
used again after a deletion that was not durable, the newer record is written.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.objects.s3_store import BucketAddress
from logstore.atomic_files import replace_atomically
from logstore.catalog.records.rows_from_versions import (
    UNIQUE_COLUMNS,
    Ids,
    TableRows,
    build_delayed_index_and_bucket_rows,
    build_ledger_and_copy_rows,
    build_table_rows,
    build_tombstone_rows,
    build_transaction_and_part_rows,
    read_id_column,
    select_newest_by_unique_columns,
    select_with_parent,
    unpack_listed_ledger_ids,
)
from logstore.errors import CorruptData, MissingData
from logstore.identity.bucket_markers import BucketRole, NamedBucket
from logstore.identity.services.marker_checked_buckets import LostCatalogIdentity
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.records.manifest import Block
from logstore.records.newest_versions import overlapping_blocks, split_into_id_ranges, split_newest_versions
from logstore.records.rebuild_job import SKIPPED_BLOCK_PREFIX, RowFilesFolder, WriteCatalogRowsJob
from logstore.records.record_kinds import PARENT_BY_KIND, TOMBSTONED_KINDS, RecordKind, block_schema
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.record_log import RecordLog
from spark.job_runner import JobContext

_K = RecordKind
_HIDING_KINDS: Final = frozenset({_K.TRANSACTION, _K.HIDDEN})
"""Kinds that hide messages from readers. Without such records, messages of aborted transactions look committed."""
_KINDS_UNDER_TOPICS: Final = (_K.SCHEMA, _K.PRODUCER, _K.INDEX, _K.SNAPSHOT)
_MAX_VERSIONS_PER_RANGE: Final = 500_000  # about 300 MB during sorting
_MAX_SKIPPED_FACTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _IdRangeWithBlocks:
    """Range of ids, both ends inclusive, with the blocks that may hold record versions of the range."""

    number: int  # index among the ranges of the same kinds
    ids: tuple[int, int]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _WriteTask:
    kinds: tuple[RecordKind, ...]
    ranges: tuple[_IdRangeWithBlocks, ...]


@dataclass(slots=True)
class _RebuildTaskResult:
    counts: Counter[str] = field(default_factory=Counter)
    version: int = 0  # highest manifest number of a record version that was read
    error_by_block: dict[str, str] = field(default_factory=dict)  # errors of skipped blocks, by key


def write_catalog_rows(records: BucketAddress, context: JobContext, job: WriteCatalogRowsJob) -> BulkJobSummary:
    """Run the job on the driver. `skip_unreadable` does not skip blocks of `_HIDING_KINDS` or of a newer build."""
    blocks = RebuildManifests(_open_log(records, job)).read_manifest(job.manifest).blocks
    cores = context.spark.sparkContext.defaultParallelism
    run_task = partial(_run_rebuild_task, records, context.folder, job)
    tasks = [
        _task_of_all_ids(blocks, _K.TOPIC, _K.LIST),
        *_tasks_by_range(blocks, _K.DELETION),
        *_tasks_by_range(blocks, _K.TRANSACTION),
    ]
    results = context.run_in_executors("find topics and lists", [task for task in tasks if task.ranges], run_task)
    if not RowFilesFolder(context.folder).topics_path().exists():  # no topics and no lists
        _save_ids(RowFilesFolder(context.folder), np.zeros(0, np.int64), np.zeros(0, np.int64))
    ledger_ranges = _split_into_id_ranges(blocks, _K.LEDGER, _K.SEGMENT, _K.HIDDEN, min_ranges=cores)
    tasks = [_WriteTask((_K.LEDGER,), (id_range,)) for id_range in ledger_ranges]
    tasks += [_task_of_all_ids(blocks, _K.CURSOR)]
    tasks += [task for kind in _KINDS_UNDER_TOPICS for task in _tasks_by_range(blocks, kind)]
    results += context.run_in_executors("find ledgers and segments", [task for task in tasks if task.ranges], run_task)
    return _summarize_task_results(results)


def _split_into_id_ranges(blocks: Iterable[Block], *kinds: RecordKind, min_ranges: int = 1) -> list[_IdRangeWithBlocks]:
    """Split ids into ranges with about equal numbers of record versions. If possible, make `min_ranges` or more."""
    blocks_of_kinds = [block for block in blocks if block.kind in kinds]
    versions_per_range = math.ceil(sum(block.records for block in blocks_of_kinds) / min_ranges)
    id_ranges = split_into_id_ranges(
        blocks_of_kinds, versions_per_range=max(1, min(_MAX_VERSIONS_PER_RANGE, versions_per_range))
    )
    return [
        _IdRangeWithBlocks(number, ids, tuple(overlapping_blocks(blocks_of_kinds, ids)))
        for number, ids in enumerate(id_ranges)
    ]


def _task_of_all_ids(blocks: Iterable[Block], *kinds: RecordKind) -> _WriteTask:
    return _WriteTask(kinds, tuple(id_range for kind in kinds for id_range in _split_into_id_ranges(blocks, kind)))


def _tasks_by_range(blocks: Iterable[Block], kind: RecordKind) -> list[_WriteTask]:
    return [_WriteTask((kind,), (id_range,)) for id_range in _split_into_id_ranges(blocks, kind)]


def _summarize_task_results(results: list[_RebuildTaskResult]) -> BulkJobSummary:
    counts = Counter[str]()
    for result in results:
        counts.update(result.counts)
    counts["version"] = max((result.version for result in results), default=0)
    error_by_block = {key: error for result in results for key, error in result.error_by_block.items()}
    counts["skipped"] = len(error_by_block)
    facts = {f"{SKIPPED_BLOCK_PREFIX}{key}": error_by_block[key] for key in sorted(error_by_block)[:_MAX_SKIPPED_FACTS]}
    return BulkJobSummary(counts=dict(counts), facts=facts)


def _open_log(records: BucketAddress, job: WriteCatalogRowsJob) -> RecordLog:
    bucket = NamedBucket(role=BucketRole(records.role), bucket=records.bucket, address=records.endpoint)
    return RecordLog(LostCatalogIdentity(job.catalog_id).get_checked_bucket(bucket, records.store()))


def _run_rebuild_task(
    records: BucketAddress, folder: Path, job: WriteCatalogRowsJob, task: _WriteTask
) -> _RebuildTaskResult:
    """Run one task in an executor. A task may run twice, even at the same time."""
    rebuilder = _CatalogRowWriter(_open_log(records, job), RowFilesFolder(folder), skip_unreadable=job.skip_unreadable)
    if task.kinds[0] is _K.TOPIC:
        rebuilder.write_topic_and_list_rows(task)
    elif task.kinds[0] is _K.CURSOR:
        rebuilder.write_cursor_rows(task)
    elif task.kinds[0] is _K.LEDGER:
        rebuilder.write_ledger_rows(task)
    else:
        rebuilder.write_rows_of_kind_in_range(task)
    return rebuilder.result


class _CatalogRowWriter:
    def __init__(self, log: RecordLog, files: RowFilesFolder, *, skip_unreadable: bool) -> None:
        self._log, self._files, self._skip_unreadable = log, files, skip_unreadable
        self.result = _RebuildTaskResult()

    def write_topic_and_list_rows(self, task: _WriteTask) -> None:
        """Write all topics and lists. Save the ids of topics and of listed ledgers for the tasks that follow."""
        topics = self._read_unique_and_write_tombstones(task, _K.TOPIC)
        topic_ids = read_id_column(topics)
        self._write_rows(0, [build_table_rows(_K.TOPIC, topics)])
        lists = self._read_unique_and_write_tombstones(task, _K.LIST, topic_ids)
        self._write_rows(0, [build_table_rows(_K.LIST, lists)])
        _save_ids(self._files, topic_ids, unpack_listed_ledger_ids(lists))

    def write_cursor_rows(self, task: _WriteTask) -> None:
        cursors = self._read_unique_and_write_tombstones(task, _K.CURSOR, np.load(self._files.topics_path()))
        self._write_rows(0, [build_table_rows(_K.CURSOR, cursors)])

    def write_ledger_rows(self, task: _WriteTask) -> None:
        (id_range,) = task.ranges
        ledgers = self._read_live_and_write_tombstones(_K.LEDGER, id_range)
        ledger_ids, all_listed = read_id_column(ledgers), np.load(self._files.listed_ledgers_path(), mmap_mode="r")
        first, last = id_range.ids
        listed = np.asarray(all_listed[np.searchsorted(all_listed, first) : np.searchsorted(all_listed, last, "right")])
        segments = select_with_parent(self._read_live_and_write_tombstones(_K.SEGMENT, id_range), ledger_ids)
        self._write_rows(id_range.number, build_ledger_and_copy_rows(ledgers, segments, listed))
        self._write_rows(id_range.number, [build_table_rows(_K.SEGMENT, segments)])
        hidden = select_with_parent(self._read_live_and_write_tombstones(_K.HIDDEN, id_range), ledger_ids)
        self._write_rows(id_range.number, [build_table_rows(_K.HIDDEN, hidden)])
        self._count_records(ledgers, segments, hidden)

    def write_rows_of_kind_in_range(self, task: _WriteTask) -> None:
        (kind,), (id_range,) = task.kinds, task.ranges
        live = self._read_live_and_write_tombstones(kind, id_range)
        if PARENT_BY_KIND.get(kind) is _K.TOPIC:
            live = select_with_parent(live, np.load(self._files.topics_path()))
        self._count_records(live)
        if kind is _K.TRANSACTION:
            self._write_rows(id_range.number, build_transaction_and_part_rows(live))
        elif kind is _K.INDEX:
            self._write_rows(id_range.number, build_delayed_index_and_bucket_rows(live))
        else:
            self._write_rows(id_range.number, [build_table_rows(kind, live)])

    def _read_unique_and_write_tombstones(
        self, task: _WriteTask, kind: RecordKind, topic_ids: Ids | None = None
    ) -> pa.Table:
        """Return the records of a kind with unique names, ascending by id. With `topic_ids`, only of these topics."""
        tables = [block_schema(kind).empty_table()]
        for id_range in task.ranges:
            if any(block.kind is kind for block in id_range.blocks):
                live = self._read_live_and_write_tombstones(kind, id_range)
                tables.append(live if topic_ids is None else select_with_parent(live, topic_ids, "topic_id"))
        unique = select_newest_by_unique_columns(pa.concat_tables(tables), UNIQUE_COLUMNS[kind])
        self._count_records(unique)
        return unique

    def _read_live_and_write_tombstones(self, kind: RecordKind, id_range: _IdRangeWithBlocks) -> pa.Table:
        """Return the newest record versions of live records in the range, ascending by id. Write the tombstones."""
        versions = self._read_versions(kind, id_range)
        if not versions.num_rows:
            return versions
        self.result.version = max(self.result.version, pc.max(versions.column("version")).as_py())
        winners = split_newest_versions(versions)
        if kind in TOMBSTONED_KINDS:
            number = 2 * id_range.number + (kind is _K.LEDGER)  # two kinds share the table of tombstones
            self._write_rows(number, [build_tombstone_rows(winners.tombstones, winners.covered, kind)])
        return winners.live

    def _read_versions(self, kind: RecordKind, id_range: _IdRangeWithBlocks) -> pa.Table:
        tables = []
        for block in id_range.blocks:
            if block.kind is not kind:
                continue
            try:
                tables.append(self._log.read_block(block, ids=id_range.ids))
            except (CorruptData, MissingData) as error:
                if not self._skip_unreadable:
                    raise
                if kind in _HIDING_KINDS:
                    raise type(error)(
                        f"{error}; a block of kind {kind} is never left out: consumers would get messages of open and"
                        " aborted transactions. Restore the object from a version of the bucket or from a replica."
                    ) from error
                self.result.error_by_block[block.key] = str(error)
        return pa.concat_tables(tables) if tables else block_schema(kind).empty_table()

    def _write_rows(self, number: int, tables: Iterable[TableRows]) -> None:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for table, rows in tables:
            self.result.counts[table.name] += rows.num_rows
            if rows.num_rows:
                with (
                    replace_atomically(self._files.part_path(table.name, number)) as new,
                    pa.ipc.new_file(new, rows.schema, options=options) as writer,
                ):
                    writer.write_table(rows, max_chunksize=65_536)

    def _count_records(self, *tables: pa.Table) -> None:
        self.result.counts["records"] += sum(table.num_rows for table in tables)


def _save_ids(files: RowFilesFolder, topic_ids: Ids, listed_ledger_ids: Ids) -> None:
    """Save the ids. The file with ids of topics is last, because its existence means that both files exist."""
    for path, ids in ((files.listed_ledgers_path(), listed_ledger_ids), (files.topics_path(), topic_ids)):
        with replace_atomically(path) as new, new.open("wb") as file:
            np.save(file, ids)
