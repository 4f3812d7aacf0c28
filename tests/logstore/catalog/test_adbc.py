"""Bulk reads: they change nothing, and what is not the catalog's fault is said in one clear sentence."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import URL, Select, func, literal_column, select

from logstore.catalog import Database
from logstore.catalog import tables as t
from logstore.catalog.engine import arrow_bulk
from logstore.catalog.engine.arrow_bulk import compile_sql, open_arrow_reader
from logstore.catalog.reconciliation import bulk_queries
from logstore.errors import (
    CatalogBusy,
    CorruptData,
    InvalidInput,
    PreconditionFailed,
    ServiceFailed,
    SextonError,
    StoreUnavailable,
)
from tests.migrated_catalogs import create_migrated_sqlite, migrate_or_copy_catalog
from tests.postgres import PostgresServer

Connect = Callable[..., Database]

_LISTS = bulk_queries.select_ledger_lists()
_LOCKS = """
import sqlite3, sys
one = sqlite3.connect(sys.argv[1], isolation_level=None)
one.execute("PRAGMA journal_mode=DELETE")  # in which a writer locks readers out
one.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
"""


def _reads(url: str, query: Select[tuple[object, ...]] = _LISTS) -> int:
    with open_arrow_reader(url) as reader:
        return int(reader.table(query).num_rows)


def _fails(url: str, kind: type[SextonError]) -> str:
    with pytest.raises(kind) as caught:
        _reads(url)
    said = str(caught.value)
    assert "\n" not in said
    assert "hunter2" not in said
    return said


def test_connection_reads_and_writes_nothing(url: str, connect: Connect) -> None:
    """A bulk job that is wrong cannot harm the catalog: the database itself refuses its write."""
    migrate_or_copy_catalog(database := connect(url))
    database.close()
    assert _reads(url) == 0
    refused = pytest.raises(Exception, match=r"readonly database|read-only transaction")
    with open_arrow_reader(url) as reader, reader._connection.cursor() as cursor, refused:  # there is no way to write
        cursor.execute("UPDATE catalog SET next_ledger_id = 5")
    assert _reads(url, select(t.catalog.c.next_ledger_id).where(t.catalog.c.next_ledger_id == 0)) == 1


def test_path_with_odd_characters_is_the_same_file(tmp_path: Path) -> None:
    """A file's name becomes part of a URI, in which some characters mean something else."""
    folder = tmp_path / "a b#c%41d"
    folder.mkdir()
    url = create_migrated_sqlite(folder / "catalog.db").replace("%", "%25")
    assert _reads(url, bulk_queries.select_ledger_and_intent_bounds()) == 1


def test_sqlite_file_that_is_absent_is_not_made(tmp_path: Path) -> None:
    """A wrong path makes no empty catalog, whose rows would be an empty reference set."""
    said = _fails(f"sqlite:///{tmp_path / 'none.db'}", StoreUnavailable)
    assert said == (
        f"database: {tmp_path / 'none.db'} cannot be opened: it does not exist;"
        " correct SEXTON_DATABASE_URL, or its permissions"
    )
    assert list(tmp_path.iterdir()) == []
    assert "it is a folder" in _fails(f"sqlite:///{tmp_path}", StoreUnavailable)


def test_sqlite_file_that_is_none_or_damaged_is_said_so(tmp_path: Path) -> None:
    """Asking again cannot help."""
    (tmp_path / "text.db").write_text("no database" * 500)
    assert "is no SQLite database" in _fails(f"sqlite:///{tmp_path / 'text.db'}", ServiceFailed)
    url = create_migrated_sqlite(tmp_path / "catalog.db")
    content = bytearray((tmp_path / "catalog.db").read_bytes())
    content[4096:] = b"\xee" * (len(content) - 4096)
    (tmp_path / "catalog.db").write_bytes(content)
    assert "malformed" in _fails(url, CorruptData)


def test_sqlite_file_that_somebody_locks_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contention is told from a fault: it is worth asking again."""
    monkeypatch.setattr(arrow_bulk, "_READER_PRAGMAS", ("busy_timeout=1",))
    url = create_migrated_sqlite(tmp_path / "catalog.db")
    with subprocess.Popen(
        [sys.executable, "-c", _LOCKS, tmp_path / "catalog.db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == b"locked\n"
        assert "locked" in _fails(url, CatalogBusy)
        other.communicate(b"\n", timeout=60)
    assert _reads(url) == 0


def test_sqlite_file_is_opened_by_one_library_at_a_time(tmp_path: Path, connect: Connect) -> None:
    """POSIX frees a process's locks on a file when any part of it closes the file: two libraries lose each other's."""
    database = connect(url := create_migrated_sqlite(tmp_path / "catalog.db"))
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "catalog.db")
    database.read(lambda connection: connection.execute(bulk_queries.select_ledger_and_intent_bounds()).all())
    for path in (url, f"sqlite:///{link}"):
        assert "found it open by Python's as well" in _fails(path, PreconditionFailed)
    with database.open_read_only() as twin:
        database.close()
        twin.read(lambda connection: connection.execute(bulk_queries.select_ledger_and_intent_bounds()).all())
        assert "found it open by Python's as well" in _fails(url, PreconditionFailed)
    with open_arrow_reader(url):
        assert _reads(url, bulk_queries.select_ledger_and_intent_bounds()) == 1
        with pytest.raises(PreconditionFailed, match="found it open by Arrow's as well"):
            database.read(lambda connection: connection.execute(bulk_queries.select_ledger_and_intent_bounds()).all())
    assert (
        len(database.read(lambda connection: connection.execute(bulk_queries.select_ledger_and_intent_bounds()).all()))
        == 1
    )


def test_url_of_another_database_is_invalid_input() -> None:
    """As for the catalog itself, and no password is shown."""
    assert "hunter2" not in _fails("mysql://me:hunter2@db/x", InvalidInput)


@pytest.mark.external_service
def test_postgresql_that_cannot_be_used_is_said_why(postgres: PostgresServer) -> None:
    """No such database, no such user, no server: the sentence names what to correct."""
    assert "there is no database nowhere at" in _fails(postgres.url("nowhere"), StoreUnavailable)
    nobody = postgres.url("postgres").replace("postgres@", "nobody:hunter2@")
    assert "refuses the user nobody" in _fails(nobody, StoreUnavailable)
    closed = URL.create("postgresql+psycopg", "me", "hunter2", "127.0.0.1", 1, "x").render_as_string(False)
    assert "no PostgreSQL answers at 127.0.0.1:1" in _fails(closed, StoreUnavailable)


@pytest.mark.external_service
def test_postgresql_whose_connection_is_lost_is_unavailable(postgres_url: str, connect: Connect) -> None:
    """A server that goes away in mid-read ends the read with an error, never as if it were whole."""
    migrate_or_copy_catalog(connect(postgres_url))
    end_me = select(func.pg_terminate_backend(func.pg_backend_pid()).label("gone"))
    with open_arrow_reader(postgres_url) as reader, pytest.raises(StoreUnavailable, match="was lost"):
        list(reader.batches(end_me))


@pytest.mark.external_service
def test_postgresql_keeps_the_options_of_its_url(postgres_url: str) -> None:
    """What an operator sets for the catalog's connections holds for those of bulk reads as well."""
    url = postgres_url + "&options=-c%20application_name%3Dmine&connect_timeout=3"
    with open_arrow_reader(url) as reader:
        shown = reader.table(
            select(
                func.current_setting("application_name").label("name"),
                func.current_setting("default_transaction_read_only").label("reads"),
            )
        )
    assert shown.to_pylist() == [{"name": "mine", "reads": "on"}]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_text_of_a_statement_holds_its_values(dialect: str) -> None:
    """No parameter is left, and a value that looks like one, or like SQL, is what it was."""
    odd = "100% :of it's ?"
    text = compile_sql(
        select(literal_column("1").label("one")).where(t.topic.c.name == odd, t.topic.c.topic_id > 7), dialect
    )
    assert "'100% :of it''s ?'" in text
    assert text.endswith("topic.topic_id > 7")
