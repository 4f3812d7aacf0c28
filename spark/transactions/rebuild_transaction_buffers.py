"""`build-transaction-snapshots`: rebuild the transaction buffers of many topics. One task reads a topic's whole log."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from logstore.catalog import Catalog, open_catalog
from logstore.catalog.reconciliation.bulk_queries import select_active_topic_segment_counts
from logstore.errors import CorruptData, MissingData, UnknownObject
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.positions import TopicId
from logstore.reconciliation.bulk_job_inputs_and_results import BulkJobSummary
from logstore.transactions.buffer_serialization import MAX_PARTS_PER_JOB, BufferFiles, BuildTransactionBuffersJob
from logstore.transactions.services.buffer_snapshots import BufferRebuilder, BufferSnapshots
from logstore.transactions.transaction_buffer import TransactionBuffer
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


@dataclass(frozen=True, slots=True)
class _BufferTask:
    part: int
    topics: tuple[int, ...]


@dataclass(slots=True)
class _BufferTaskResult:
    buffers: int = 0
    empty: int = 0
    gone: int = 0
    unreadable: int = 0
    error_by_topic: dict[TopicId, str] = field(default_factory=dict)


def rebuild_transaction_buffers(
    addresses: CatalogAddresses, context: JobContext, job: BuildTransactionBuffersJob
) -> BulkJobSummary:
    (topics,) = context.run_in_executors(
        "look at topics",
        [job.topics],
        partial(order_topics_by_size, addresses.database_url, lambda: [select_active_topic_segment_counts()]),
    )
    parts = deal_round_robin(
        topics, min(TASKS_PER_CORE * context.spark.sparkContext.defaultParallelism, MAX_PARTS_PER_JOB)
    )
    tasks = [_BufferTask(part, tuple(part_topics)) for part, part_topics in enumerate(parts)]
    results = context.run_in_executors(
        "read the logs of topics", tasks, partial(_write_buffers, addresses, context.folder)
    )
    counts = {
        name: sum(getattr(result, name) for result in results) for name in ("buffers", "empty", "gone", "unreadable")
    }
    error_by_topic = {topic_id: error for result in results for topic_id, error in result.error_by_topic.items()}
    return BulkJobSummary(
        counts={"topics": len(topics), "parts": len(tasks), **counts}, facts=unreadable_topic_facts(error_by_topic)
    )


def _write_buffers(addresses: CatalogAddresses, folder: Path, task: _BufferTask) -> _BufferTaskResult:
    """Write the buffers of some topics into one file, in an executor. A task may run twice."""
    result = _BufferTaskResult()
    with open_catalog(addresses.database_url) as catalog:
        result.buffers = BufferFiles(folder).write_part(task.part, _rebuild_buffers(addresses, catalog, task, result))
    return result


def _rebuild_buffers(
    addresses: CatalogAddresses, catalog: Catalog, task: _BufferTask, result: _BufferTaskResult
) -> Iterator[tuple[TopicId, TransactionBuffer]]:
    objects, tiered = open_log_stores(addresses, catalog)
    contents = ComponentLedgers(
        components=catalog.components, ledgers=catalog.ledgers, objects=objects, application=addresses.application
    )
    rebuilder = BufferRebuilder(
        ledgers=catalog.ledgers,
        transactions=catalog.transactions,
        objects=objects,
        tiered=tiered,
        snapshots=BufferSnapshots(snapshots=catalog.transaction_snapshots, contents=contents),
        read_whole_log=True,
    )
    for topic_id in map(TopicId, task.topics):
        if not is_active_topic(catalog, topic_id):
            result.gone += 1
            continue
        try:
            buffer = rebuilder.rebuild_buffer(topic_id)
        except UnknownObject:
            result.gone += 1
        except (MissingData, CorruptData) as damage:  # damage of one topic must not stop the others
            result.unreadable += 1
            result.error_by_topic[topic_id] = str(damage)
        else:
            if (
                buffer.hidden
                or buffer.open
                or catalog.transaction_snapshots.get_snapshot(topic_id).ledger_id is not None
            ):
                yield topic_id, buffer
            else:
                result.empty += 1
