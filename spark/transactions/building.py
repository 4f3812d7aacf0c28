"""`build-transaction-snapshots`: the buffers of many topics, each rebuilt from its whole log by one task.

A topic's log is read in order, so a task has whole topics; those with most segments are spread first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from infra.catalog import SqlCatalog, open_catalog
from infra.catalog.reconciliation.facts import topic_sizes
from logstore.errors import CorruptData, MissingData, UnknownObject
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.positions import TopicId
from logstore.reconciliation.jobs import BulkSummary
from logstore.transactions.buffer import Buffer
from logstore.transactions.services.snapshots import BufferRebuilder, BufferSnapshots
from logstore.transactions.snapshots import MAX_PARTS_PER_JOB, BufferFiles, BuildBuffers
from spark.runner import JobRun
from spark.sources.logs import WAVES, by_size, dealt, is_active, left_out, log_stores
from spark.sources.objects import NativeAddresses


@dataclass(frozen=True, slots=True)
class _Task:
    part: int
    topics: tuple[int, ...]


@dataclass(slots=True)
class _Done:
    """The outcome of one task."""

    buffers: int = 0
    empty: int = 0
    gone: int = 0
    unreadable: int = 0
    why: dict[TopicId, str] = field(default_factory=dict)


def build_buffers(addresses: NativeAddresses, run: JobRun, job: BuildBuffers) -> BulkSummary:
    """The main of the job.

    Raises:
        StoreUnavailable: Storage or database did not answer.
    """
    (topics,) = run.spread(
        "look at topics", [job.topics], partial(by_size, addresses.database_url, lambda: [topic_sizes()])
    )
    parts = dealt(topics, min(WAVES * run.spark.sparkContext.defaultParallelism, MAX_PARTS_PER_JOB))
    tasks = [_Task(part, tuple(some)) for part, some in enumerate(parts)]
    done = run.spread("read the logs of topics", tasks, partial(_build, addresses, run.folder))
    counts = {name: sum(getattr(one, name) for one in done) for name in ("buffers", "empty", "gone", "unreadable")}
    whys = {topic_id: why for one in done for topic_id, why in one.why.items()}
    return BulkSummary(counts={"topics": len(topics), "parts": len(tasks), **counts}, facts=left_out(whys))


def _build(addresses: NativeAddresses, folder: Path, task: _Task) -> _Done:
    """In an executor: some topics into one file. A task may run twice."""
    done = _Done()
    with open_catalog(addresses.database_url) as catalog:
        done.buffers = BufferFiles(folder).write_part(task.part, _buffers(addresses, catalog, task, done))
    return done


def _buffers(
    addresses: NativeAddresses, catalog: SqlCatalog, task: _Task, done: _Done
) -> Iterator[tuple[TopicId, Buffer]]:
    objects, tiered = log_stores(addresses, catalog)
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
        if not is_active(catalog, topic_id):
            done.gone += 1
            continue
        try:
            found = rebuilder.rebuild(topic_id)
        except UnknownObject:
            done.gone += 1
        except (MissingData, CorruptData) as lost:  # no other topic waits for a person
            done.unreadable += 1
            done.why[topic_id] = str(lost)
        else:
            if found.hidden or found.open or catalog.transaction_snapshots.current(topic_id).ledger_id is not None:
                yield topic_id, found
            else:
                done.empty += 1
