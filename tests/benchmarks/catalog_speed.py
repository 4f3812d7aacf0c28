"""How fast the catalog is: `python -m tests.benchmarks.catalog_speed [commits|detach]`.

Prints commits a second (one topic, one producer a write) and what a detach of many ledgers takes, on SQLite and
on PostgreSQL with their durable defaults.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sqlalchemy import insert

from logstore.catalog import Catalog, Database, migrate_catalog
from logstore.catalog import tables as t
from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import ProducerSequenceRange
from logstore.log.ledgers import LedgerState
from logstore.ports.catalog.deletion import AuditCause, Claim
from logstore.ports.catalog.log import RegisterSegmentResult, RegisterSegmentWrite, Topic
from logstore.positions import LedgerId
from tests.postgres import PostgresServer

_GROUPS = (1, 10, 50, 200)
_DETACHED = (1_000, 10_000, 100_000)
_SECONDS = 3.0


def main() -> None:
    """Measure what the command line names, or all of it."""
    if sys.argv[1:2] == ["fill"]:
        _fill(Database(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["one"]:
        _detach(Database(sys.argv[2]), int(sys.argv[3]))
    else:
        _measure_both(sys.argv[1:] or ["commits", "detach"])


def _measure_both(wanted: list[str]) -> None:
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, server.database() as name:
            for url in (f"sqlite:///{folder}/catalog.db", server.url(name)):
                _measure(url, wanted)
    finally:
        server.stop()


def _measure(url: str, wanted: list[str]) -> None:
    database = Database(url)
    migrate_catalog(database)
    print(database.engine.dialect.name)  # noqa: T201
    if "commits" in wanted:
        for size in _GROUPS:
            print(f"  groups of {size:>3}: {_commits(Catalog(database), size):>8,.0f} commits/s")  # noqa: T201
    database.close()
    for count in _DETACHED if "detach" in wanted else ():
        for step in ("fill", "one"):  # a process each, so that the peak is the detach's own
            subprocess.run([sys.executable, "-m", "tests.benchmarks.catalog_speed", step, url, str(count)], check=True)


def _commits(catalog: Catalog, size: int) -> float:
    topic = catalog.topics.create_topic(f"persistent://a/b/speed-{size}", RetentionPolicy())
    ledger = catalog.ledgers.create_ledger(topic.topic_id, application="bench").ledger_id
    catalog.ledgers.attach_ledger(ledger, after=None)
    begun, number, done = time.perf_counter(), 0, 0
    while time.perf_counter() - begun < _SECONDS:
        writes = [_write(topic, ledger, number + offset, catalog_epoch=1) for offset in range(size)]
        number += size
        done += sum(isinstance(answer, RegisterSegmentResult) for answer in catalog.commits.commit_writes(writes))
    if done != number:
        raise RuntimeError(f"{number} commits, {done} registered")
    return done / (time.perf_counter() - begun)


def _write(topic: Topic, ledger: LedgerId, number: int, *, catalog_epoch: int) -> RegisterSegmentWrite:
    producer = ProducerSequenceRange(producer=f"p{number % 200}", first=number, last=number)
    return RegisterSegmentWrite(
        topic_id=topic.topic_id,
        ledger_id=ledger,
        epoch=catalog_epoch,
        number=number,
        entries=10,
        size_bytes=1000,
        producers=(producer,),
    )


def _name(count: int) -> str:
    return f"persistent://a/b/detach-{count}"


def _fill(database: Database, count: int) -> None:
    topic = Catalog(database).topics.create_topic(_name(count), RetentionPolicy())
    _insert_ledgers(database, topic, count)


def _detach(database: Database, count: int) -> None:
    catalog = Catalog(database)
    topic = catalog.topics.get_topic(_name(count))
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    done = catalog.phase_one.detach_ledgers(
        topic.topic_id,
        None,
        force=False,
        batch_id=f"bench-{count}",
        claim=Claim(workflow_id="w", run_id="r", ttl_s=60),
        cause=AuditCause(actor="bench", reason="speed", workflow_id="w"),
    )
    took, peak = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if done.intents != count:
        raise RuntimeError(f"{count} ledgers, {done.intents} intents")
    print(f"  detach {count:>7,}: {took:6.2f} s, peak RSS {peak // 1024} MiB (+{(peak - before) // 1024})")  # noqa: T201


def _insert_ledgers(database: Database, topic: Topic, count: int) -> None:
    """Closed ledgers with three segments each, and an open last one, past what the catalog numbers."""
    base = 10_000_000 * int(topic.topic_id)
    fixed = {"application": "bench", "epoch": 1, "created_us": 1, "closed_us": 1, "segments": 3, "last_segment": 2}
    ids = range(base, base + count + 1)
    with database.engine.begin() as connection:
        list_id = connection.execute(t.ledger_list.select().where(t.ledger_list.c.topic_id == topic.topic_id)).one()[0]
        ledgers = [
            {"ledger_id": i, "list_id": list_id, "place": i, "state": LedgerState.CLOSED.value, "entries": 30, **fixed}
            for i in ids
        ]
        ledgers[-1]["state"] = LedgerState.OPEN.value
        connection.execute(insert(t.ledger).values(size_bytes=100, generation=0), ledgers)
        copies = [{"ledger_id": i, "kind": "LEDGER", "state": "LIVE", "context": {}} for i in ids]
        connection.execute(insert(t.ledger_copy), copies)
        segments = [
            {"ledger_id": i, "number": n, "first_entry": 10 * n, "entries": 10, "size_bytes": 33}
            for i in ids
            for n in range(3)
        ]
        connection.execute(insert(t.segment), segments)


if __name__ == "__main__":
    main()
