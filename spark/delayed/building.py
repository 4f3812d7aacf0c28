"""`build-delayed-index`: buckets of delayed messages of many topics, from the delivery times in their logs.

Each topic's log is cut into stretches, one a bucket, and each stretch is read by one task, which asks the store for one
column of the segments that have delayed entries and writes a snapshot file as a seal would. All stretches of a topic
agree on what consumers may see and on the time, so that together they are the index of that moment.

Source: PIP-195, where an index is rebuilt by one reader of the whole log.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from infra.catalog import SqlCatalog, open_catalog
from infra.catalog.delayed.due import delayed_sizes
from logstore.delayed.jobs import MAX_PARTS_PER_JOB, BuildIndexes, BuiltIndex, IndexFiles, LogRange, cut_log
from logstore.delayed.sealing import merge_ranges
from logstore.delayed.services.delayed_log import DelayedFilter, DelayedLog, last_position
from logstore.delayed.snapshot_file import SnapshotWriter
from logstore.errors import CorruptData, MissingData
from logstore.ports.catalog import Claim
from logstore.positions import EARLIEST, Position, TopicId
from logstore.reconciliation.jobs import BulkSummary
from logstore.whole_files import replacing
from spark.runner import JobRun
from spark.sources.logs import WAVES, by_size, dealt, is_active, left_out, log_stores
from spark.sources.objects import NativeAddresses


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The part of one topic's log that is to be read."""

    built: BuiltIndex  # without its files
    now_ms: int
    stretches: tuple[LogRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One bucket."""

    topic_id: TopicId
    number: int  # of the topic's stretches
    stretch: LogRange
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The outcome of a piece."""

    topic_id: TopicId
    number: int
    messages: int = 0  # none: all of them are due, and there is no file
    why: str = ""  # it could not be read


def build_indexes(addresses: NativeAddresses, run: JobRun, job: BuildIndexes) -> BulkSummary:
    """The main of the job.

    Raises:
        StoreUnavailable: Storage or database did not answer.
    """
    cores = run.spark.sparkContext.defaultParallelism
    (topics,) = run.spread("look at topics", [job.topics], partial(by_size, addresses.database_url, delayed_sizes))
    planned = run.spread("cut logs into buckets", dealt(topics, WAVES * cores), partial(_plan, addresses, job))
    plans = [plan for some in planned for plan in some if plan is not None]
    pieces = sorted((piece for plan in plans for piece in _pieces(plan)), key=lambda one: -one.stretch.entries)
    tasks = dealt(pieces, WAVES * cores)
    written = run.spread("read delivery times", tasks, partial(_write, addresses, run.folder))
    return _concluded(run.folder, len(topics), plans, [one for some in written for one in some])


def _plan(addresses: NativeAddresses, job: BuildIndexes, topics: list[int]) -> list[_Plan | None]:
    """In an executor: what is to be read of topics; None of one that is deleted, or about to be."""
    with open_catalog(addresses.database_url) as catalog:
        log = _log(addresses, catalog)
        return [_planned(catalog, log, job, TopicId(topic_id)) for topic_id in topics]


def _log(addresses: NativeAddresses, catalog: SqlCatalog) -> DelayedLog:
    primary, tiered = log_stores(addresses, catalog)
    return DelayedLog(ledgers=catalog.ledgers, objects=primary, tiered=tiered)


def _planned(catalog: SqlCatalog, log: DelayedLog, job: BuildIndexes, topic_id: TopicId) -> _Plan | None:
    if not is_active(catalog, topic_id):
        return None
    if job.workflow_id:
        catalog.delayed.claim(topic_id, Claim(workflow_id=job.workflow_id, run_id=job.workflow_run, ttl_s=job.claim_s))
    listed, frontier = catalog.delayed.listed(topic_id), catalog.transactions.frontier(topic_id, from_ledger=0)
    now_ms = catalog.delayed.now_ms()
    found = [segment for _, segment in log.segments(topic_id, behind=EARLIEST, last=frontier.last or EARLIEST)]
    delayed = [segment.entries if segment.delayed is None else segment.delayed for segment in found]
    ends = [(Position(one.ledger_id, one.first_entry), last_position(one)) for one in found]
    segments = ((first, last, entries) for (first, last), entries in zip(ends, delayed, strict=True))
    stretches = cut_log(segments, total=sum(delayed), messages=job.messages, buckets=job.buckets)
    built = BuiltIndex(
        topic_id=topic_id,
        expected_version=listed.version,
        removed=tuple(one.bucket_id for one in listed.buckets),
        sealed_to=max([listed.sealed_to, *(last for _, last in ends[-1:])]),
        files=(),
    )
    return _Plan(built=built, now_ms=now_ms, stretches=tuple(stretches))


def _pieces(plan: _Plan) -> Iterator[_Piece]:
    for number, stretch in enumerate(plan.stretches):
        yield _Piece(topic_id=plan.built.topic_id, number=number, stretch=stretch, now_ms=plan.now_ms)


def _write(addresses: NativeAddresses, folder: Path, pieces: list[_Piece]) -> list[_Written]:
    """In an executor: pieces, each into one file. A task may run twice."""
    with open_catalog(addresses.database_url) as catalog:
        log = _log(addresses, catalog)
        return [_written(catalog, log, folder, piece) for piece in pieces]


def _written(catalog: SqlCatalog, log: DelayedLog, folder: Path, piece: _Piece) -> _Written:
    topic_id, stretch = piece.topic_id, piece.stretch
    frontier = catalog.transactions.frontier(topic_id, from_ledger=stretch.first.ledger_id)
    wanted = DelayedFilter(topic_id=topic_id, hidden=frontier.hidden, now_ms=piece.now_ms)
    behind = Position(stretch.first.ledger_id, stretch.first.entry_id - 1)
    try:
        segments = log.segments(topic_id, behind=behind, last=stretch.last)
        rows = merge_ranges([rows for _, rows in log.rows(segments, wanted) if len(rows)])
    except (MissingData, CorruptData) as lost:  # no other topic waits for a person
        return _Written(topic_id=topic_id, number=piece.number, why=str(lost))
    if len(rows):
        with replacing(IndexFiles(folder).snapshot_path(_name(topic_id, piece.number))) as new:
            writer = SnapshotWriter(new, topic_id, stretch.first, stretch.last)
            writer.add(rows)
            writer.close()
    return _Written(topic_id=topic_id, number=piece.number, messages=len(rows))


def _name(topic_id: TopicId, number: int) -> str:
    return f"bucket-{topic_id}-{number:05d}.parquet"


def _concluded(folder: Path, topics: int, plans: list[_Plan], written: list[_Written]) -> BulkSummary:
    """Lists of the topics whose buckets are all there, and what the job came to."""
    whys = {one.topic_id: one.why for one in written if one.why}
    kept = [one for one in written if one.messages and one.topic_id not in whys]
    numbers: dict[TopicId, list[int]] = defaultdict(list)
    for one in kept:
        numbers[one.topic_id].append(one.number)
    readable = [plan.built for plan in plans if plan.built.topic_id not in whys]
    built = [
        replace(one, files=tuple(_name(one.topic_id, number) for number in sorted(numbers[one.topic_id])))
        for one in readable
        if one.removed or numbers[one.topic_id]
    ]
    parts = dealt(built, MAX_PARTS_PER_JOB)
    for number, part in enumerate(parts):
        IndexFiles(folder).write_part(number, part)
    counts = {
        "topics": topics,
        "buckets": len(kept),
        "messages": sum(one.messages for one in kept),
        "empty": len(readable) - len(built),
        "gone": topics - len(plans),
        "unreadable": len(whys),
        "parts": len(parts),
    }
    return BulkSummary(counts=counts, facts=left_out(whys))
