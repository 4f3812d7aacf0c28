"""`rebuild-records`: the winning version of every record of a manifest, as rows of the catalog's tables.

First topics and lists, which other records hang on, beside what hangs on nothing; then the rest. Each task reads the
blocks that hold versions of a range of ids, and no version is sent to another task. The memory of a task grows with
its range, which is bounded, and with the number of topics, lists and cursors, which some tasks hold as a whole: their
names are unique, and where a name was used again after a plain delete, the newer record counts.

Source: Aerospike's cold start, which reads every block and keeps of each record the newest version.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from infra.catalog.records.version_rows import (
    UNIQUE,
    Ids,
    Rows,
    ids_of,
    index_rows,
    ledger_rows,
    listed_by,
    newest_of_each,
    rows_of,
    tombstone_rows,
    transaction_rows,
    with_parent,
)
from logstore.errors import CorruptData, MissingData
from logstore.identity.markers import NamedBucket, Role
from logstore.identity.services.lost_catalogs import LostCatalog
from logstore.reconciliation.jobs import BulkSummary
from logstore.records.kinds import PARENTS, TOMBSTONED, RecordKind, schema
from logstore.records.manifest import Block
from logstore.records.rebuilding import SKIPPED, LoadFiles, RebuildRecords
from logstore.records.services.cold_start import ColdStart
from logstore.records.services.record_log import RecordLog
from logstore.records.winners import overlapping, parted, ranges
from logstore.whole_files import replacing
from spark.runner import JobRun
from spark.sources.objects import StoreAddress

_K = RecordKind
_OF_TOPICS: Final = (_K.SCHEMA, _K.PRODUCER, _K.INDEX, _K.SNAPSHOT)
_VERSIONS: Final = 500_000  # in one range: some 300 MB while they are sorted
_MOST_TOLD: Final = 1_000  # blocks that were skipped


@dataclass(frozen=True, slots=True)
class _Range:
    """Records with ids from the first to the last of two, both inclusive, and the blocks that hold versions of them."""

    part: int  # its number among the ranges of its kinds
    ids: tuple[int, int]
    blocks: tuple[Block, ...]

    def of(self, kind: RecordKind) -> list[Block]:
        """Those of the blocks that are of a kind."""
        return [block for block in self.blocks if block.kind is kind]


@dataclass(frozen=True, slots=True)
class _Task:
    """The work of one task: a range of ids of some kinds, or all ids of kinds whose names are unique."""

    kinds: tuple[RecordKind, ...]
    ranges: tuple[_Range, ...]


@dataclass(slots=True)
class _Done:
    """The outcome of a task."""

    counts: Counter[str] = field(default_factory=Counter)
    version: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


def rebuild_records(records: StoreAddress, run: JobRun, job: RebuildRecords) -> BulkSummary:
    """The main of the job.

    Raises:
        CorruptData: A block is not what the manifest says, or gone, and such are not to be skipped.
        Unsupported: A block is of a newer format, which is never skipped.
        StoreUnavailable: Storage did not answer.
    """
    blocks = ColdStart(_log(records, job)).manifest(job.manifest).blocks
    cores = run.spark.sparkContext.defaultParallelism
    work = partial(_work, records, run.folder, job)
    first = [_whole(blocks, _K.TOPIC, _K.LIST), *_ranged(blocks, _K.DELETION), *_ranged(blocks, _K.TRANSACTION)]
    done = run.spread("find topics and lists", [one for one in first if one.ranges], work)
    if not LoadFiles(run.folder).topics().exists():  # there is neither a topic nor a list
        _keep(LoadFiles(run.folder), np.zeros(0, np.int64), np.zeros(0, np.int64))
    of_ledgers = _cut(blocks, _K.LEDGER, _K.SEGMENT, _K.HIDDEN, least=cores)
    rest = [_Task((_K.LEDGER,), (one,)) for one in of_ledgers]
    rest += [_whole(blocks, _K.CURSOR), *(task for kind in _OF_TOPICS for task in _ranged(blocks, kind))]
    done += run.spread("find ledgers and segments", [one for one in rest if one.ranges], work)
    return _concluded(done)


def _cut(blocks: Iterable[Block], *kinds: RecordKind, least: int = 1) -> list[_Range]:
    """Ranges of the ids that the kinds have in common, about as many versions in each: at least `least` ranges."""
    mine = [block for block in blocks if block.kind in kinds]
    versions = -(-sum(block.records for block in mine) // least)
    found = ranges(mine, versions=max(1, min(_VERSIONS, versions)))
    return [_Range(part, ids, tuple(overlapping(mine, ids))) for part, ids in enumerate(found)]


def _whole(blocks: Iterable[Block], *kinds: RecordKind) -> _Task:
    return _Task(kinds, tuple(one for kind in kinds for one in _cut(blocks, kind)))


def _ranged(blocks: Iterable[Block], kind: RecordKind) -> list[_Task]:
    return [_Task((kind,), (one,)) for one in _cut(blocks, kind)]


def _concluded(done: list[_Done]) -> BulkSummary:
    counts = Counter[str]()
    for one in done:
        counts.update(one.counts)
    counts["version"] = max((one.version for one in done), default=0)
    skipped = {key: why for one in done for key, why in one.skipped.items()}
    counts["skipped"] = len(skipped)
    facts = {f"{SKIPPED}{key}": skipped[key] for key in sorted(skipped)[:_MOST_TOLD]}
    return BulkSummary(counts=dict(counts), facts=facts)


def _log(records: StoreAddress, job: RebuildRecords) -> RecordLog:
    named = NamedBucket(role=Role(records.role), bucket=records.bucket, address=records.endpoint)
    return RecordLog(LostCatalog(job.catalog_id).own(named, records.store()))


def _work(records: StoreAddress, folder: Path, job: RebuildRecords, task: _Task) -> _Done:
    """In an executor: one task, which may run twice and at once."""
    part = _Part(_log(records, job), LoadFiles(folder), job.skip_unreadable)
    _WORK.get(task.kinds[0], _one_kind)(part, task)
    return part.done


class _Part:
    """Reads versions and writes rows, and counts both."""

    def __init__(self, log: RecordLog, files: LoadFiles, skip: bool) -> None:
        self._log, self.files, self._skip = log, files, skip
        self.done = _Done()

    def live(self, kind: RecordKind, of: _Range) -> pa.Table:
        """The winning versions of records of the range that live, ascending by id; tombstones are written."""
        versions = self._versions(kind, of)
        if not versions.num_rows:
            return versions
        self.done.version = max(self.done.version, pc.max(versions.column("version")).as_py())
        found = parted(versions)
        if kind in TOMBSTONED:
            part = 2 * of.part + (kind is _K.LEDGER)  # both kinds are in one table
            self.write(part, [tombstone_rows(found.ended, found.covered, kind)])
        return found.live

    def _versions(self, kind: RecordKind, of: _Range) -> pa.Table:
        parts = []
        for block in of.of(kind):
            try:
                parts.append(self._log.read_block(block, ids=of.ids))
            except (CorruptData, MissingData) as error:
                if not self._skip:
                    raise
                self.done.skipped[block.key] = str(error)
        return pa.concat_tables(parts) if parts else schema(kind).empty_table()

    def write(self, part: int, rows: Iterable[Rows]) -> None:
        """Write rows of tables under the number of a part."""
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        for table, found in rows:
            self.done.counts[table.name] += found.num_rows
            if found.num_rows:
                with (
                    replacing(self.files.path(table.name, part)) as new,
                    pa.ipc.new_file(new, found.schema, options=options) as writer,
                ):
                    writer.write_table(found, max_chunksize=65_536)

    def count(self, live: pa.Table) -> None:
        """Count records that come back."""
        self.done.counts["records"] += live.num_rows


def _topics_and_lists(part: _Part, task: _Task) -> None:
    topics = _named(part, task, _K.TOPIC)
    known = ids_of(topics)
    part.write(0, [rows_of(_K.TOPIC, topics)])
    lists = _named(part, task, _K.LIST, known)
    part.write(0, [rows_of(_K.LIST, lists)])
    _keep(part.files, known, listed_by(lists))


def _cursors(part: _Part, task: _Task) -> None:
    cursors = _named(part, task, _K.CURSOR, np.load(part.files.topics()))
    part.write(0, [rows_of(_K.CURSOR, cursors)])


def _named(part: _Part, task: _Task, kind: RecordKind, topics: Ids | None = None) -> pa.Table:
    """All records of a kind whose names are unique, ascending by id."""
    parts = [schema(kind).empty_table()]
    for one in task.ranges:
        if one.of(kind):
            live = part.live(kind, one)
            parts.append(live if topics is None else with_parent(live, topics, "topic_id"))
    found = newest_of_each(pa.concat_tables(parts), UNIQUE[kind])
    part.count(found)
    return found


def _keep(files: LoadFiles, topics: Ids, listed: Ids) -> None:
    for path, ids in ((files.listed(), listed), (files.topics(), topics)):
        with replacing(path) as new, new.open("wb") as file:
            np.save(file, ids)


def _ledgers(part: _Part, task: _Task) -> None:
    (one,) = task.ranges
    ledgers = part.live(_K.LEDGER, one)
    known, listed = ids_of(ledgers), np.load(part.files.listed(), mmap_mode="r")
    mine = np.asarray(listed[np.searchsorted(listed, one.ids[0]) : np.searchsorted(listed, one.ids[1], "right")])
    segments = with_parent(part.live(_K.SEGMENT, one), known)
    part.write(one.part, ledger_rows(ledgers, segments, mine))
    part.write(one.part, [rows_of(_K.SEGMENT, segments)])
    hidden = with_parent(part.live(_K.HIDDEN, one), known)
    part.write(one.part, [rows_of(_K.HIDDEN, hidden)])
    for live in (ledgers, segments, hidden):
        part.count(live)


def _one_kind(part: _Part, task: _Task) -> None:
    """A range of a kind that is a table, or an aggregate of tables."""
    (kind,), (one,) = task.kinds, task.ranges
    live = part.live(kind, one)
    if PARENTS.get(kind) is _K.TOPIC:
        live = with_parent(live, np.load(part.files.topics()))
    part.count(live)
    part.write(one.part, _AGGREGATES.get(kind, partial(_plain, kind))(live))


def _plain(kind: RecordKind, live: pa.Table) -> Iterator[Rows]:
    yield rows_of(kind, live)


_AGGREGATES: Final[Mapping[RecordKind, Callable[[pa.Table], Iterable[Rows]]]] = {
    _K.TRANSACTION: transaction_rows,
    _K.INDEX: index_rows,
}
_WORK: Final[Mapping[RecordKind, Callable[[_Part, _Task], None]]] = {
    _K.TOPIC: _topics_and_lists,
    _K.CURSOR: _cursors,
    _K.LEDGER: _ledgers,
}
