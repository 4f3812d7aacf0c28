"""`build-delayed-index`: build the index buckets of many topics from the delivery times in their logs.

Each topic's log up to the frontier is cut into ranges, one for each index bucket. Each range is read by one task. All
ranges of a topic use the same time to decide which messages are due. Source: PIP-195.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from logstore.atomic_files import replace_atomically
from logstore.catalog import Catalog, open_catalog
from logstore.catalog.delayed.delayed_index import build_delayed_and_bucket_topic_queries
from logstore.delayed.delayed_rows import merge_row_ranges
from logstore.delayed.index_build_job import (
    MAX_PARTS_PER_JOB,
    BuildDelayedIndexJob,
    BuiltIndexFiles,
    BuiltTopicIndex,
    PlannedBucketRange,
    split_log_into_bucket_ranges,
)
from logstore.delayed.services.log_sealer import DeliveryTimeReader, WaitingMessageFilter, last_position
from logstore.delayed.snapshot_file import IndexSnapshotWriter
from logstore.errors import CorruptData, MissingData
from logstore.ports.catalog.deletion import Claim
from logstore.positions import EARLIEST, Position, TopicId
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from spark.job_runner import JobContext
from spark.sources.store_addresses import CatalogAddresses
from spark.sources.topic_logs import (
    TASKS_PER_CORE,
    deal_round_robin,
    is_active_topic,
    open_log_stores,
    order_topics_by_size,
    unreadable_topic_facts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutTopicLog:
    built: BuiltTopicIndex  # index without files, which are not written yet
    now_ms: int
    ranges: tuple[PlannedBucketRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SnapshotTask:
    topic_id: TopicId
    number: int  # index of the range among the topic's ranges
    log_range: PlannedBucketRange
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _SnapshotResult:
    topic_id: TopicId
    number: int
    messages: int = 0  # 0 means that all messages were due and there is no file
    error: str = ""  # why the range could not be read


def build_indexes(addresses: CatalogAddresses, context: JobContext, job: BuildDelayedIndexJob) -> BulkJobSummary:
    cores = context.spark.sparkContext.defaultParallelism
    (topics,) = context.run_in_executors(
        "look at topics",
        [job.topics],
        partial(order_topics_by_size, addresses.database_url, build_delayed_and_bucket_topic_queries),
    )
    planned = context.run_in_executors(
        "cut logs into buckets",
        deal_round_robin(topics, TASKS_PER_CORE * cores),
        partial(_claim_and_cut_topic_logs, addresses, job),
    )
    plans = [plan for task_plans in planned for plan in task_plans if plan is not None]
    ranges = sorted(
        (range_task for plan in plans for range_task in _make_snapshot_tasks(plan)),
        key=lambda task: -task.log_range.entries,
    )
    tasks = deal_round_robin(ranges, TASKS_PER_CORE * cores)
    written = context.run_in_executors(
        "read delivery times", tasks, partial(_write_snapshot_files, addresses, context.folder)
    )
    results = [result for task_results in written for result in task_results]
    return _write_built_indexes(context.folder, len(topics), plans, results)


def _claim_and_cut_topic_logs(
    addresses: CatalogAddresses, job: BuildDelayedIndexJob, topics: list[int]
) -> list[_CutTopicLog | None]:
    """Claim topics and cut their logs, in an executor. Return `None` for a topic that is deleted or being deleted."""
    with open_catalog(addresses.database_url) as catalog:
        log = _open_log(addresses, catalog)
        return [_claim_and_cut_topic_log(catalog, log, job, TopicId(topic_id)) for topic_id in topics]


def _open_log(addresses: CatalogAddresses, catalog: Catalog) -> DeliveryTimeReader:
    primary, tiered = open_log_stores(addresses, catalog)
    return DeliveryTimeReader(ledgers=catalog.ledgers, objects=primary, tiered=tiered)


def _claim_and_cut_topic_log(
    catalog: Catalog, log: DeliveryTimeReader, job: BuildDelayedIndexJob, topic_id: TopicId
) -> _CutTopicLog | None:
    if not is_active_topic(catalog, topic_id):
        return None
    if job.workflow_id:
        catalog.delayed.claim_bucket_list(
            topic_id, Claim(workflow_id=job.workflow_id, run_id=job.workflow_run, ttl_s=job.claim_s)
        )
    listed, frontier = (
        catalog.delayed.get_bucket_list(topic_id),
        catalog.transactions.read_frontier(topic_id, from_ledger=0),
    )
    now_ms = catalog.delayed.now_ms()
    segments = [
        segment for _, segment in log.iterate_segments(topic_id, behind=EARLIEST, last=frontier.last or EARLIEST)
    ]
    delayed = [segment.delayed for segment in segments]
    bounds = [(Position(segment.ledger_id, segment.first_entry), last_position(segment)) for segment in segments]
    sized = ((first, last, entries) for (first, last), entries in zip(bounds, delayed, strict=True))
    ranges = split_log_into_bucket_ranges(
        sized, total_messages=sum(delayed), min_messages=job.messages, max_buckets=job.buckets
    )
    built = BuiltTopicIndex(
        topic_id=topic_id,
        expected_version=listed.version,
        removed=tuple(bucket.bucket_id for bucket in listed.buckets),
        sealed_to=max([listed.sealed_to, *(last for _, last in bounds[-1:])]),
        files=(),
    )
    return _CutTopicLog(built=built, now_ms=now_ms, ranges=tuple(ranges))


def _make_snapshot_tasks(plan: _CutTopicLog) -> Iterator[_SnapshotTask]:
    for number, log_range in enumerate(plan.ranges):
        yield _SnapshotTask(topic_id=plan.built.topic_id, number=number, log_range=log_range, now_ms=plan.now_ms)


def _write_snapshot_files(
    addresses: CatalogAddresses, folder: Path, tasks: list[_SnapshotTask]
) -> list[_SnapshotResult]:
    """Write one file per range, in an executor. A task may run twice."""
    with open_catalog(addresses.database_url) as catalog:
        log = _open_log(addresses, catalog)
        return [_write_snapshot_file(catalog, log, folder, task) for task in tasks]


def _write_snapshot_file(
    catalog: Catalog, log: DeliveryTimeReader, folder: Path, task: _SnapshotTask
) -> _SnapshotResult:
    topic_id, log_range = task.topic_id, task.log_range
    frontier = catalog.transactions.read_frontier(topic_id, from_ledger=log_range.first.ledger_id)
    delayed_filter = WaitingMessageFilter(topic_id=topic_id, hidden=frontier.hidden, now_ms=task.now_ms)
    behind = Position(log_range.first.ledger_id, log_range.first.entry_id - 1)
    try:
        segments = log.iterate_segments(topic_id, behind=behind, last=log_range.last)
        rows = merge_row_ranges([rows for _, rows in log.read_delayed_rows(segments, delayed_filter) if len(rows)])
    except (MissingData, CorruptData) as damage:  # damage of one topic must not stop the others
        return _SnapshotResult(topic_id=topic_id, number=task.number, error=str(damage))
    if len(rows):
        with replace_atomically(BuiltIndexFiles(folder).snapshot_path(_file_name(topic_id, task.number))) as new:
            writer = IndexSnapshotWriter(new, topic_id, log_range.first, log_range.last)
            writer.add_rows(rows)
            writer.close()
    return _SnapshotResult(topic_id=topic_id, number=task.number, messages=len(rows))


def _file_name(topic_id: TopicId, number: int) -> str:
    return f"bucket-{topic_id}-{number:05d}.parquet"


def _write_built_indexes(
    folder: Path, topic_count: int, plans: list[_CutTopicLog], results: list[_SnapshotResult]
) -> BulkJobSummary:
    error_by_topic = {result.topic_id: result.error for result in results if result.error}
    buckets = [result for result in results if result.messages and result.topic_id not in error_by_topic]
    numbers_by_topic: dict[TopicId, list[int]] = defaultdict(list)
    for bucket in buckets:
        numbers_by_topic[bucket.topic_id].append(bucket.number)
    readable = [plan.built for plan in plans if plan.built.topic_id not in error_by_topic]
    built_indexes = [
        replace(
            built,
            files=tuple(_file_name(built.topic_id, number) for number in sorted(numbers_by_topic[built.topic_id])),
        )
        for built in readable
        if built.removed or numbers_by_topic[built.topic_id]
    ]
    parts = deal_round_robin(built_indexes, MAX_PARTS_PER_JOB)
    for number, part in enumerate(parts):
        BuiltIndexFiles(folder).write_part(number, part)
    counts = {
        "topics": topic_count,
        "buckets": len(buckets),
        "messages": sum(bucket.messages for bucket in buckets),
        "empty": len(readable) - len(built_indexes),
        "gone": topic_count - len(plans),
        "unreadable": len(error_by_topic),
        "parts": len(parts),
    }
    return BulkJobSummary(counts=counts, facts=unreadable_topic_facts(error_by_topic))
