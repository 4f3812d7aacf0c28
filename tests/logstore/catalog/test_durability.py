"""A commit on SQLite outlasts the machine: as a plain `Database` opens it, which other tests do not for their speed."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from logstore.catalog import Database

_FULL = 2  # SQLite's number of it


def test_every_connection_to_sqlite_waits_for_the_disk_at_each_commit(
    tmp_path: Path, connect: Callable[..., Database]
) -> None:
    """`synchronous=FULL` with a write-ahead log, on connections that are in use at once, and on one lent out again."""
    database = connect(f"sqlite:///{tmp_path / 'catalog.db'}", pool_size=3)
    database.write(lambda connection: connection.exec_driver_sql("CREATE TABLE one (id INTEGER)"))
    for _ in range(2):
        with ExitStack() as stack:
            reader = database.engine.execution_options(sexton_reads=True)
            lent = [stack.enter_context(reader.connect()) for _ in range(3)]
            for pragma, expected in (("synchronous", _FULL), ("journal_mode", "wal")):
                found = [connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() for connection in lent]
                assert found == [expected] * 3
