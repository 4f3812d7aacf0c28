"""`rebuild-records`: write files of table rows, from the newest record versions in a manifest. A later step loads them.

Topics and lists come first, because other records depend on topics and lists. A task reads the blocks of one range of
ids, so that its memory is bounded. If names of a kind are unique, one task reads all records of the kind. If a name was
used again after a deletion that was not durable, the newer record is written.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.objects.s3_store import BucketAddress
from logstore.atomic_files import replace_atomically
from logstore.catalog.records.version_application import (
    Ids,
    TableRows,
    apply_versions,
    build_ledger_and_copy_rows,
    build_rows,
    build_tombstone_rows,
    read_id_column,
    unpack_listed_ledger_ids,
)
from logstore.errors import CorruptData, MissingData
from logstore.identity.bucket_markers import BucketRole, NamedBucket
from logstore.identity.services.marker_checked_buckets import LostCatalogIdentity
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.records.manifest import Block
from logstore.records.newest_versions import SplitNewestVersions, overlapping_blocks, split_into_id_ranges
from logstore.records.rebuild_job import SKIPPED_BLOCK_PREFIX, RowFilesFolder, WriteCatalogRowsJob
from logstore.records.record_kinds import RecordKind, block_schema
from logstore.records.services.rebuild_manifests import RebuildManifests
from logstore.records.services.record_log import RecordLog
from spark.job_runner import JobContext

_K = RecordKind
_HIDING_KINDS: Final = frozenset({_K.TRANSACTION, _K.HIDDEN})
"""Kinds that hide messages from readers. Without such records, messages of aborted transactions look committed."""
_KINDS_OF_LEDGERS: Final = (_K.LEDGER, _K.SEGMENT, _K.HIDDEN)
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
    kinds: tuple[RecordKind, ...]  # parents before their children
    ranges: tuple[_IdRangeWithBlocks, ...]  # several only if the task reads all records of its kinds


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
    files = RowFilesFolder(context.folder)
    if not files.topics_path().exists():  # no topics and no lists
        _save_ids(files, np.zeros(0, np.int64), np.zeros(0, np.int64))
    ledger_ranges = _split_into_id_ranges(blocks, *_KINDS_OF_LEDGERS, min_ranges=cores)
    tasks = [_WriteTask(_KINDS_OF_LEDGERS, (id_range,)) for id_range in ledger_ranges]
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
    result = _RebuildTaskResult()
    versions = _VersionReader(_open_log(records, job), result, skip_unreadable=job.skip_unreadable)
    sink = _RowFiles(RowFilesFolder(folder), result.counts, first_part=task.ranges[0].number)
    for kind in task.kinds:
        apply_versions(kind, versions.iterate_versions(kind, task.ranges), sink)
    sink.finish()
    return result


class _VersionReader:
    def __init__(self, log: RecordLog, result: _RebuildTaskResult, *, skip_unreadable: bool) -> None:
        self._log, self._result, self._skip_unreadable = log, result, skip_unreadable

    def iterate_versions(self, kind: RecordKind, id_ranges: Iterable[_IdRangeWithBlocks]) -> Iterator[pa.Table]:
        for id_range in id_ranges:
            tables = [block_schema(kind).empty_table()]
            for block in id_range.blocks:
                if block.kind is kind:
                    tables += self._read_block(block, id_range.ids)
            versions = pa.concat_tables(tables)
            if versions.num_rows:
                self._result.version = max(self._result.version, pc.max(versions.column("version")).as_py())
                yield versions

    def _read_block(self, block: Block, ids: tuple[int, int]) -> list[pa.Table]:
        try:
            return [self._log.read_block(block, ids=ids)]
        except (CorruptData, MissingData) as error:
            if not self._skip_unreadable:
                raise
            if block.kind in _HIDING_KINDS:
                raise type(error)(
                    f"{error}; a block of kind {block.kind} is never left out: consumers would get messages of open and"
                    " aborted transactions. Restore the object from a version of the bucket or from a replica."
                ) from error
            self._result.error_by_block[block.key] = str(error)
            return []


class _RowFiles:
    """Sink that writes the rows of one task to files. `counts` gets the numbers of records and of rows by table.

    The files of a table get the numbers from `first_part` on. So a repeated task replaces its files. `finish` must be
    called after the last kind.
    """

    def __init__(self, files: RowFilesFolder, counts: Counter[str], *, first_part: int) -> None:
        self._files, self._counts = files, counts
        self._next_tombstone_part = first_part
        self._part = first_part
        self._ledgers, self._segments = (block_schema(kind).empty_table() for kind in (_K.LEDGER, _K.SEGMENT))
        self._listed_ledger_ids: Ids | None = None  # set by the task that writes lists

    @cached_property
    def _topic_ids(self) -> Ids:
        topic_ids: Ids = np.load(self._files.topics_path())
        return topic_ids

    def find_parent_ids(self, parent: RecordKind, ids: Ids) -> Ids:
        del ids  # all parents are in memory
        return self._topic_ids if parent is _K.TOPIC else read_id_column(self._ledgers)

    def write_tombstones(self, kind: RecordKind, newest: SplitNewestVersions) -> None:
        part = 2 * self._next_tombstone_part + (kind is _K.LEDGER)  # two kinds share the table of tombstones
        self._write(part, [build_tombstone_rows(newest.tombstones, newest.covered, kind)])
        self._next_tombstone_part += 1

    def write_records(self, kind: RecordKind, live: pa.Table) -> None:
        self._counts["records"] += live.num_rows
        if kind is _K.LEDGER:
            self._ledgers = live  # their rows need the totals of segments
            return
        if kind is _K.TOPIC:
            self._topic_ids = read_id_column(live)
        elif kind is _K.LIST:
            self._listed_ledger_ids = unpack_listed_ledger_ids(live)
        elif kind is _K.SEGMENT:
            self._segments = live
        self._write(self._part, build_rows(kind, live))

    def finish(self) -> None:
        """Write the rows of ledgers. Save the ids of topics and of listed ledgers for the tasks that follow."""
        if self._ledgers.num_rows:
            ids, all_listed = read_id_column(self._ledgers), np.load(self._files.listed_ledgers_path(), mmap_mode="r")
            start, stop = np.searchsorted(all_listed, [ids[0], ids[-1] + 1])
            listed = np.asarray(all_listed[start:stop])
            self._write(self._part, build_ledger_and_copy_rows(self._ledgers, self._segments, listed))
        if self._listed_ledger_ids is not None:
            _save_ids(self._files, self._topic_ids, self._listed_ledger_ids)

    def _write(self, part: int, tables: Iterable[TableRows]) -> None:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for table, rows in tables:
            self._counts[table.name] += rows.num_rows
            if rows.num_rows:
                with (
                    replace_atomically(self._files.part_path(table.name, part)) as new,
                    pa.ipc.new_file(new, rows.schema, options=options) as writer,
                ):
                    writer.write_table(rows, max_chunksize=65_536)


def _save_ids(files: RowFilesFolder, topic_ids: Ids, listed_ledger_ids: Ids) -> None:
    """Save the ids. The file with ids of topics is last, because its existence means that both files exist."""
    for path, ids in ((files.listed_ledgers_path(), listed_ledger_ids), (files.topics_path(), topic_ids)):
        with replace_atomically(path) as new, new.open("wb") as file:
            np.save(file, ids)
