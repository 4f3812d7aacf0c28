"""Many writers on one SQLite file, and the bounds of every wait (temporal#5532, #2114)."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text

from logstore.catalog import Database
from logstore.errors import CatalogBusy
from tests.migrated_catalogs import migrate_or_copy_catalog

Connect = Callable[..., Database]

_WRITERS = """
import json, sys, threading
from sqlalchemy import text
from logstore.catalog import Database
database = Database(sys.argv[1])
threads, writes, failures = int(sys.argv[2]), int(sys.argv[3]), []
def add(connection):
    seen = connection.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one()
    connection.execute(text("UPDATE catalog SET next_ledger_id = :new"), {"new": seen + 1})
def run():
    for _ in range(writes):
        try:
            database.write(add)
        except Exception as error:
            failures.append(repr(error))
print("ready", flush=True)
sys.stdin.readline()
running = [threading.Thread(target=run) for _ in range(threads)]
[one.start() for one in running]
[one.join() for one in running]
database.close()
print(json.dumps(failures))
"""


def _add(connection: Connection) -> int:
    seen = int(connection.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one())
    connection.execute(text("UPDATE catalog SET next_ledger_id = :new"), {"new": seen + 1})
    return seen


def _count(database: Database) -> int:
    return int(
        database.read(lambda connection: connection.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one())
    )


def test_sqlite_writers_of_four_processes_and_sixteen_threads_all_write(sqlite_url: str, connect: Connect) -> None:
    """Every write is done once, and "database is locked" reaches nobody (temporal#5532)."""
    database = connect(sqlite_url)
    migrate_or_copy_catalog(database)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITERS, sqlite_url, "4", "25"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("\n")
        run.stdin.flush()
    answers = [json.loads(run.communicate(timeout=90)[0]) for run in runs]
    assert answers == [[]] * 4
    assert _count(database) == 400


def test_sqlite_write_that_waits_asks_again_and_again_after_the_same_short_while(
    sqlite_url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None starves: SQLite's own busy handler waits ever longer, and one writer among sixteen waited for 6 s."""
    holder, database = connect(sqlite_url), connect(sqlite_url)
    migrate_or_copy_catalog(holder)
    pauses: list[float] = []
    with holder.engine.connect() as connection, connection.begin() as transaction:
        _add(connection)

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 50:
                transaction.commit()

        monkeypatch.setattr("logstore.catalog.engine.database.time.sleep", sleep)
        database.write(_add)
    assert len(pauses) == 50
    assert max(pauses) <= 0.003
    assert len(set(pauses)) > 1, "writers that pause alike meet again"
    with database.engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 0
    assert _count(database) == 2


def test_sqlite_reader_sees_one_moment_and_holds_up_no_writer(sqlite_url: str, connect: Connect) -> None:
    """A long reader and writers pass each other."""
    database = connect(sqlite_url)
    migrate_or_copy_catalog(database)

    def look(connection: Connection) -> tuple[int, int]:
        before = connection.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(database.write, _add).result(timeout=20)
        return before, connection.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one()

    assert database.read(look) == (0, 0)
    assert _count(database) == 1


def test_read_sees_one_moment_whatever_is_committed_meanwhile(url: str, connect: Connect) -> None:
    """Two statements of one read agree, also on PostgreSQL, whose default is a moment a statement."""
    database = connect(url)
    migrate_or_copy_catalog(database)

    def look(connection: Connection) -> list[int]:
        seen = []
        for _ in range(2):
            seen.append(connection.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one())
            with ThreadPoolExecutor(1) as pool:
                pool.submit(database.write, _add).result(timeout=20)
        return seen

    assert database.read(look) == [0, 0]
    assert _count(database) == 2


def test_write_that_reads_first_never_meets_a_snapshot_error(url: str, connect: Connect) -> None:
    """Read, then write, from many threads: no update is lost on SQLite, and a locked read loses none on PostgreSQL."""
    database = connect(url)
    migrate_or_copy_catalog(database)
    lock = "" if database.is_sqlite else " FOR UPDATE"

    def add(connection: Connection) -> None:
        seen = connection.execute(text(f"SELECT next_ledger_id FROM catalog{lock}")).scalar_one()
        connection.execute(text("UPDATE catalog SET next_ledger_id = :new"), {"new": seen + 1})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: database.write(add), range(40)))
    assert _count(database) == 40


def test_sqlite_write_holds_the_write_lock_before_it_reads(sqlite_url: str, connect: Connect) -> None:
    """BEGIN IMMEDIATE: what a writing transaction has read cannot change before it writes, so it runs once."""
    database, other = connect(sqlite_url), connect(sqlite_url, patience_s=0.05)
    migrate_or_copy_catalog(database)
    runs: list[int] = []

    def work(connection: Connection) -> None:
        runs.append(connection.execute(text("SELECT next_ledger_id FROM catalog")).scalar_one())
        with pytest.raises(CatalogBusy):
            other.write(_add)
        _add(connection)

    database.write(work)
    assert (runs, _count(database)) == ([0], 1)


def test_write_contended_beyond_patience_is_catalog_busy(url: str, connect: Connect) -> None:
    """No wait is endless: somebody who holds a lock for ever costs a clear error, and later calls work."""
    holder, database = connect(url), connect(url, patience_s=0.2)
    migrate_or_copy_catalog(holder)
    with holder.engine.connect() as connection, connection.begin():
        _add(connection)
        with pytest.raises(CatalogBusy, match=r"contended for 0\.2 s"):
            database.write(lambda other: other.execute(text("UPDATE catalog SET epoch = 2")))
    database.write(_add)


def test_more_threads_than_connections_wait_and_then_are_told(url: str, connect: Connect) -> None:
    """A pool that stays empty is CatalogBusy and no error of the pool's own."""
    database = connect(url, pool_size=1, patience_s=0.2)
    migrate_or_copy_catalog(database)
    taken, told = threading.Event(), threading.Event()

    def occupy(connection: Connection) -> None:
        taken.set()
        assert told.wait(20)

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(database.read, occupy)
        assert taken.wait(20)
        with pytest.raises(CatalogBusy, match=r"no connection was free within 0\.2 s"):
            database.read(_count_rows)
        told.set()
        busy.result(timeout=20)
    assert database.read(_count_rows) == 1


def _count_rows(connection: Connection) -> int:
    return int(connection.execute(text("SELECT count(*) FROM catalog")).scalar_one())


@pytest.mark.external_service
def test_postgres_deadlock_is_retried_whole(postgres_url: str, connect: Connect) -> None:
    """Two transactions that lock in opposite orders both end."""
    database = connect(postgres_url)
    migrate_or_copy_catalog(database)
    database.write(lambda c: c.execute(text("INSERT INTO catalog (id, epoch, next_ledger_id) VALUES (2, 1, 0)")))
    met = threading.Barrier(2)
    tries: list[int] = []

    def cross(first: int, second: int) -> None:
        def work(connection: Connection) -> None:
            tries.append(first)
            connection.execute(text(f"UPDATE catalog SET next_ledger_id = next_ledger_id + 1 WHERE id = {first}"))
            if len(tries) <= 2:
                met.wait(20)
            connection.execute(text(f"UPDATE catalog SET next_ledger_id = next_ledger_id + 1 WHERE id = {second}"))

        database.write(work)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(cross, 1, 2), pool.submit(cross, 2, 1)]:
            done.result(timeout=60)
    assert len(tries) > 2  # one was the victim, perhaps more than once: who tries again may meet the other again
    counts = database.read(lambda c: c.execute(text("SELECT next_ledger_id FROM catalog")).scalars().all())
    assert counts == [2, 2]
