"""`build-transaction-snapshots`: the buffers of many topics, each rebuilt from its whole log by one task.

A topic's log is read in order, so a task has whole topics; those with most segments are spread first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from infra.catalog import SqlCatalog, open_catalog
from infra.catalog.engine.adbc import adbc_connect
from infra.catalog.reconciliation import facts as sql
from logstore.errors import CorruptData, MissingData, UnknownObject
from logstore.log.services.component_ledgers import ComponentLedgers
from logstore.ports.catalog import TopicState
from logstore.positions import TopicId
from logstore.reconciliation.jobs import LEFT_OUT, BulkSummary
from logstore.transactions.buffer import Buffer
from logstore.transactions.jobs import MOST_PARTS, BufferFiles, BuildBuffers
from logstore.transactions.services.rebuilding import Rebuilder
from logstore.transactions.services.snapshots import BufferSnapshots
from spark.runner import JobRun, Main
from spark.sources.objects import NativeAddresses
from spark.sources.stores import log_stores

_WAVES: Final = 4  # tasks for each that can run at once: enough to even out
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class _Task:
    part: int
    topics: tuple[int, ...]


@dataclass(slots=True)
class _Done:
    """What one task came to."""

    buffers: int = 0
    empty: int = 0
    gone: int = 0
    unreadable: int = 0
    why: dict[str, str] = field(default_factory=dict)


def transaction_mains(addresses: NativeAddresses) -> Mapping[str, Main]:
    """The jobs of transactions by name, over the catalog in SQL and buckets of S3."""
    return {BuildBuffers.name: partial(build_buffers, addresses)}


def build_buffers(addresses: NativeAddresses, run: JobRun, job: BuildBuffers) -> BulkSummary:
    """The main of the job.

    Raises:
        StoreUnavailable: Storage or database did not answer.
    """
    (topics,) = run.spread("look at topics", [job.topics], partial(_by_size, addresses.database_url))
    count = min(len(topics), _WAVES * run.spark.sparkContext.defaultParallelism, MOST_PARTS)
    tasks = [_Task(part, tuple(topics[part::count])) for part in range(count)]
    done = run.spread("read the logs of topics", tasks, partial(_build, addresses, run.folder))
    counts = {name: sum(getattr(one, name) for one in done) for name in ("buffers", "empty", "gone", "unreadable")}
    whys = sorted(item for one in done for item in one.why.items())
    return BulkSummary(
        counts={"topics": len(topics), "parts": len(tasks), **counts},
        facts={f"{LEFT_OUT}{topic}": why for topic, why in whys[:_SHOWN]},
    )


def _by_size(database_url: str, topics: tuple[int, ...]) -> list[int]:
    """In an executor: the topics asked for, or every one that is not being deleted, those with most segments first."""
    with adbc_connect(database_url) as connection:
        rows = connection.table(sql.topic_sizes()).to_pylist()
    sizes = {row["topic_id"]: row["segments"] for row in rows}
    return sorted(set(topics) or sizes, key=lambda topic_id: (-sizes.get(topic_id, 0), topic_id))


def _build(addresses: NativeAddresses, folder: Path, task: _Task) -> _Done:
    """In an executor: some topics into one file. A task may run twice."""
    done = _Done()
    with open_catalog(addresses.database_url) as catalog:
        done.buffers = BufferFiles(folder).write(task.part, _buffers(addresses, catalog, task, done))
    return done


def _buffers(
    addresses: NativeAddresses, catalog: SqlCatalog, task: _Task, done: _Done
) -> Iterator[tuple[TopicId, Buffer]]:
    objects, tiered = log_stores(addresses, catalog)
    contents = ComponentLedgers(
        components=catalog.components, ledgers=catalog.ledgers, objects=objects, application=addresses.application
    )
    rebuilder = Rebuilder(
        ledgers=catalog.ledgers,
        transactions=catalog.transactions,
        objects=objects,
        tiered=tiered,
        snapshots=BufferSnapshots(snapshots=catalog.transaction_snapshots, contents=contents),
        whole=True,
    )
    for topic_id in map(TopicId, task.topics):
        try:
            if catalog.topics.by_id(topic_id).state is not TopicState.ACTIVE:
                done.gone += 1
                continue
            found = rebuilder.rebuild(topic_id)
        except UnknownObject:
            done.gone += 1
        except (MissingData, CorruptData) as lost:  # no other topic waits for a person
            done.unreadable += 1
            done.why[f"topic {topic_id}"] = str(lost)
        else:
            if found.hidden or found.open or catalog.transaction_snapshots.current(topic_id).ledger_id is not None:
                yield topic_id, found
            else:
                done.empty += 1
