"""What writers feel of a raid: latencies of appends that come at a fixed rate, with a raid beside them and without.

A raid runs in a process of its own, as workers do, over many tombstones of which half stay. Latencies are counted from
the moment at which the append was due, so that one long lock is felt by each append that it holds up.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import text

from logstore.catalog import Catalog, Database, migrate_catalog, open_catalog
from logstore.deletion.retention import RetentionPolicy
from logstore.log.entries import ProducerSequenceRange
from logstore.ports.catalog.log import RegisterSegmentResult, RegisterSegmentWrite
from logstore.records.manifest import IdCeilings
from logstore.records.record_kinds import RecordKind
from logstore.records.services.manifest_publication import publish_manifest, read_settled_head
from logstore.records.services.record_log import RecordLog
from logstore.records.services.tombstone_raids import Raider
from tests.benchmarks.graves import Numbers, versions
from tests.fakes.object_store import FakeObjectStore
from tests.postgres import PostgresServer

_TOMBSTONES: Final = 50_000
_EVERY_S: Final = 0.02
_QUIET_S: Final = 15.0
_ROUNDS: Final = 2
_AGE_S: Final = 86_400.0
_FIRST: Final = 50_000_000
"""The first id of the ledgers whose tombstones are raided: above all that the catalog gives."""


def beside_writers() -> dict[str, Any]:
    """Appends on SQLite and on PostgreSQL, quiet and beside a raid."""
    found = {}
    server = PostgresServer()
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, server.database() as name:
            for database, url in (("sqlite", f"sqlite:///{folder}/catalog.db"), ("postgresql", server.url(name))):
                found[database] = _measure(url)
    finally:
        server.stop()
    return found


def _measure(url: str) -> dict[str, Any]:
    prepared = Database(url)
    migrate_catalog(prepared)
    prepared.close()
    quiet: list[float] = []
    raided: list[float] = []
    raid_s = 0.0
    with open_catalog(url) as catalog:
        append = _appending(catalog)
        for _ in range(_ROUNDS):
            quiet += _latencies(append, lambda began: time.perf_counter() - began > _QUIET_S)
            with _raid(url) as raid:
                began = time.perf_counter()
                raided += _latencies(append, lambda _, raid=raid: raid.poll() is not None)  # type: ignore[misc]
                raid_s += time.perf_counter() - began
            if raid.returncode:
                raise RuntimeError("the raid failed")
    at = (50, 99, 100)
    before, beside = np.percentile(quiet, at) * 1_000, np.percentile(raided, at) * 1_000
    return {
        "tombstones": _TOMBSTONES,
        "raid_s": round(raid_s / _ROUNDS, 1),
        "quiet_ms": {str(p): round(ms, 2) for p, ms in zip(at, before, strict=True)},
        "raid_ms": {str(p): round(ms, 2) for p, ms in zip(at, beside, strict=True)},
        "p99_ratio": round(beside[1] / before[1], 2),
    }


def _latencies(append: Callable[[], None], ended: Callable[[float], bool]) -> list[float]:
    """Seconds from when each append was due until it was answered."""
    found, began = [], time.perf_counter()
    due = began
    while not ended(began):
        due += _EVERY_S
        time.sleep(max(0.0, due - time.perf_counter()))
        append()
        found.append(time.perf_counter() - due)
    return found


def _appending(catalog: Catalog) -> Callable[[], None]:
    topic = catalog.topics.create_topic("persistent://a/b/foreground", RetentionPolicy())
    ledger = catalog.ledgers.create_ledger(topic.topic_id, application="bench").ledger_id
    catalog.ledgers.attach_ledger(ledger, after=None)
    numbers = iter(range(10**9))

    def append() -> None:
        number = next(numbers)
        write = RegisterSegmentWrite(
            topic_id=topic.topic_id,
            ledger_id=ledger,
            epoch=1,
            number=number,
            entries=10,
            size_bytes=1_000,
            producers=(ProducerSequenceRange(producer="p", first=number, last=number),),
        )
        (answer,) = catalog.commits.commit_writes([write])
        assert isinstance(answer, RegisterSegmentResult), answer

    return append


@contextmanager
def _raid(url: str) -> Iterator[subprocess.Popen[str]]:
    """A raid in a process of its own; it has begun when the block does."""
    command = (sys.executable, "-m", "tests.benchmarks.raid_foreground", url)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the raid did not begin")
        yield process


def _raid_once(url: str) -> None:
    """Bury, say that all is ready, raid."""
    with open_catalog(url) as catalog:
        state = catalog.records.read_state()
        objects = FakeObjectStore(now_us=state.now_us)
        log = RecordLog(objects)
        ids = np.arange(_FIRST, _FIRST + _TOMBSTONES)
        _bury(catalog.database, ids, state.now_us - 2 * round(_AGE_S) * 1_000_000)
        catalog.database.write(lambda connection: connection.execute(text("UPDATE record_log SET manifest = 0")))
        blocks = [
            *log.put_blocks(RecordKind.LEDGER, versions(ids, version=1, tombstone=True)),
            *log.put_blocks(RecordKind.LEDGER, versions(ids[::2], version=0, tombstone=False)),
        ]
        found = read_settled_head(catalog.records, log)
        assert publish_manifest(
            catalog.records, log, found, blocks=blocks, ceilings=IdCeilings(), flushed_us=state.now_us, next_ids=None
        )
        raider = Raider(catalog.records, catalog.tombstones, log, FakeObjectStore(), eligible_age_s=_AGE_S)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        done = raider.raid_tombstones("bench")
    assert (done.candidates, done.removed) == (_TOMBSTONES, _TOMBSTONES // 2), done


def _bury(database: Database, ids: Numbers, at_us: int) -> None:
    rows = [{"id": one, "at_us": at_us} for one in ids.tolist()]
    bury = text(
        "INSERT INTO tombstone (kind, id, topic_id, list_id, component, generation, epoch, at_us) "
        "VALUES ('ledger', :id, 1, 1, 'MANAGED_LEDGER', 1, 1, :at_us)"
    )

    def work(connection: Any) -> None:
        connection.execute(text("DELETE FROM tombstone"))
        connection.execute(bury, rows)
        connection.execute(text("DELETE FROM record_outbox"))

    database.write(work)


if __name__ == "__main__":
    if sys.argv[1:]:
        _raid_once(sys.argv[1])
    else:
        print(json.dumps(beside_writers(), indent=1))  # noqa: T201
