"""Bulk reads: a statement's rows as Arrow batches, by a connection that can only read; and bulk loads.

A row costs about a tenth of what it costs as a Python object. Source: Arrow Database Connectivity (ADBC).
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
from sqlalchemy import URL, BigInteger, Column, Integer, LargeBinary, Select

from infra.catalog.engine import faults
from infra.catalog.engine.connections import ARROWS, CONNECT_S, held, parsed_url
from logstore.errors import CatalogBusy, CorruptData, ServiceFailed, SextonError, StoreUnavailable

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

_BATCH_ROWS: Final = 65_536
_PATIENT: Final = ("busy_timeout=5000",)
_UNSAFE: Final = ("locking_mode=EXCLUSIVE", "journal_mode=OFF", "synchronous=OFF", "cache_size=-131072")
_CONTENDED: Final = re.compile(r"database (table )?is locked|SQLSTATE: (40001|40P01|55P03)")
_DAMAGED: Final = re.compile(r"malformed|Type mismatch|Invalid UTF8|Failed to parse|SQLSTATE: XX00[12]")
_LOST: Final = re.compile(r"SQLSTATE: (57P0|08|53)|\[libpq\] (Failed to connect|Execution error)|terminat|unexpectedly")
_DISK: Final = re.compile(r"^IO: |I/O error|unable to open|Failed to step query")


def sql_text(query: Select[Any], dialect: str) -> str:
    """The statement as text without parameters, for `sqlite` or `postgresql`: numbers and texts stand in it."""
    made = import_module(f"sqlalchemy.dialects.{dialect}").dialect(paramstyle="named")  # another one doubles each "%"
    return str(query.compile(dialect=made, compile_kwargs={"literal_binds": True}))


def schema_of(query: Select[Any]) -> pa.Schema:
    """The columns of a statement's rows: 64-bit integers and texts."""
    kinds = ((name, column.type) for name, column in query.selected_columns.items())
    return pa.schema([(name, pa.int64() if isinstance(kind, Integer) else pa.string()) for name, kind in kinds])


def arrow_type(column: Column[Any]) -> pa.DataType:
    """The type that a bulk load hands to a column: PostgreSQL takes numbers of the very width alone."""
    if isinstance(column.type, BigInteger):
        return pa.int64()
    if isinstance(column.type, Integer):
        return pa.int32()
    return pa.binary() if isinstance(column.type, LargeBinary) else pa.string()


class ArrowReader:
    """One connection of one thread."""

    def __init__(self, connection: "Connection", url: URL) -> None:
        """Read by an open connection to the database of that URL."""
        self._connection, self._url = connection, url
        self.dialect = url.get_backend_name()

    def batches(self, query: Select[Any]) -> Iterator[pa.RecordBatch]:
        """The rows, in batches of `schema_of(query)`; none without a row. They are fetched as they are drawn.

        The text columns of a query hold no NULL. SQLite's rows say of what kind they are one by one, and its driver
        takes the kind of a column from the first batch: where these were all NULL, a text behind them fails.

        Raises:
            StoreUnavailable: The database does not answer, or no longer.
            CatalogBusy: Contention.
            CorruptData: A row holds what its column cannot.
            ServiceFailed: What stands there is no database.
        """
        schema = schema_of(query)
        with _told(self._url), self._connection.cursor() as cursor:
            if self.dialect == "sqlite":
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            cursor.execute(sql_text(query, self.dialect))
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    yield _as(batch, schema)

    def table(self, query: Select[Any]) -> pa.Table:
        """All rows at once; raises as `batches`."""
        return pa.Table.from_batches(self.batches(query), schema_of(query))


@contextmanager
def adbc_connect(database_url: str) -> Iterator[ArrowReader]:
    """A connection that can only read, to the database of the setting `database_url`, for as long as the block.

    Raises:
        InvalidInput: The URL is of neither database.
        PreconditionFailed: This process has the SQLite file open as a `Database`: two libraries on one file harm it.
        StoreUnavailable: It does not answer, or there is no such file.
        ServiceFailed: What stands there is no database.
    """
    url = parsed_url(database_url)
    with ExitStack() as stack:
        with _told(url):
            connection = stack.enter_context(_connected(url))
        yield ArrowReader(connection, url)


@contextmanager
def adbc_writing(database_url: str) -> Iterator["ArrowWriter"]:
    """A connection with one open transaction, which is committed when the block ends, and undone when it raises.

    A SQLite file is written without a journal, and without waiting for the disk: it is of no use unless the block ends
    well, and the caller sees to it that no process takes it for a database before.

    Raises:
        As `adbc_connect`.
    """
    url = parsed_url(database_url)
    with ExitStack() as stack:
        with _told(url):
            connection = stack.enter_context(_connected(url, writes=True))
        writer = ArrowWriter(connection, url)
        yield writer
        with _told(url):
            connection.commit()


class ArrowWriter:
    """One connection of one thread, in a transaction."""

    def __init__(self, connection: "Connection", url: URL) -> None:
        """Write by an open connection to the database of that URL."""
        self._connection, self._url = connection, url
        self.dialect = url.get_backend_name()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement without parameters; its rows."""
        with _told(self._url), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def ingest(self, table: str, rows: pa.RecordBatchReader) -> None:
        """Append rows to a table; columns that they lack get their default."""
        with _told(self._url), self._connection.cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="append")


def _connected(url: URL, *, writes: bool = False) -> AbstractContextManager["Connection"]:
    return (_sqlite if url.get_backend_name() == "sqlite" else _postgresql)(url, writes=writes)


@contextmanager
def _sqlite(url: URL, *, writes: bool) -> Iterator["Connection"]:
    from adbc_driver_sqlite import dbapi  # noqa: PLC0415 - bulk jobs alone need it

    path, mode = str(url.database), "rw" if writes else "ro"
    with held(path, ARROWS), dbapi.connect(f"file:{quote(path)}?mode={mode}", autocommit=not writes) as connection:
        if writes:
            connection.adbc_connection.set_autocommit(True)  # pragmas take no effect in a transaction
        with connection.cursor() as cursor:
            for pragma in _UNSAFE if writes else _PATIENT:
                cursor.execute(f"PRAGMA {pragma}")
                cursor.fetchall()
        if writes:
            connection.adbc_connection.set_autocommit(False)
        yield connection


def _postgresql(url: URL, *, writes: bool) -> AbstractContextManager["Connection"]:
    """The words of the URL that psycopg gives to libpq are given to it here as well."""
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    _, words = url.get_dialect()().create_connect_args(url)
    words.setdefault("connect_timeout", CONNECT_S)
    if not writes:
        words["options"] = f"{words.get('options', '')} -c default_transaction_read_only=on".strip()
    connection: Connection = dbapi.connect(make_conninfo(**words), autocommit=not writes)
    return connection


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    cast = batch.rename_columns(schema.names).cast(schema)
    cast.validate(full=True)  # that texts are UTF-8, for one
    return cast


@contextmanager
def _told(url: URL) -> Iterator[None]:
    """Faults of the world become errors of ours; a bug stays as it is."""
    try:
        yield
    except SextonError:
        raise
    except Exception as error:
        known = _translated(error, url)
        if known is None:
            raise
        raise known from error


def _translated(error: Exception, url: URL) -> SextonError | None:
    """As `faults.translated`, of what this driver says in words alone."""
    said = " ".join(str(error).split())
    is_sqlite = url.get_backend_name() == "sqlite"
    if isinstance(error, pa.ArrowInvalid) or _DAMAGED.search(said):
        return CorruptData(f"database: a row holds what its column cannot: {said}")
    if _CONTENDED.search(said):
        return CatalogBusy(f"catalog: contended: {said}")
    if is_sqlite and "file is not a database" in said:
        return ServiceFailed("database", f"{url.database} is no SQLite database", advice=faults.CORRECT)
    if is_sqlite and _DISK.search(said):
        return StoreUnavailable(faults.unopened(url, reading=True))
    if not is_sqlite and _LOST.search(said):
        return StoreUnavailable(f"database: {faults.missed(said, url, lost='Failed to connect' not in said)}")
    return None
