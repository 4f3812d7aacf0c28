"""Bulk reads and bulk loads of rows as Arrow batches, at about a tenth of the cost of Python rows."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
from sqlalchemy import URL, BigInteger, Column, Integer, LargeBinary, Select

from logstore.catalog.engine.database_connections import (
    ARROW_SQLITE,
    CONNECT_TIMEOUT_S,
    URL_ADVICE,
    describe_lost_server,
    describe_unopened_file,
    keep_sqlite_open_registered,
    parse_database_url,
)
from logstore.errors import CatalogBusy, CorruptData, ServiceFailed, SextonError, StoreUnavailable

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

_BATCH_ROWS: Final = 65_536
_READER_PRAGMAS: Final = ("busy_timeout=5000",)
_WRITER_PRAGMAS: Final = ("locking_mode=EXCLUSIVE", "journal_mode=OFF", "synchronous=OFF", "cache_size=-131072")
_CONTENTION_TEXT: Final = re.compile(r"database (table )?is locked|SQLSTATE: (40001|40P01|55P03)")
_DAMAGE_TEXT: Final = re.compile(r"malformed|Type mismatch|Invalid UTF8|Failed to parse|SQLSTATE: XX00[12]")
_CONNECTION_LOSS_TEXT: Final = re.compile(
    r"SQLSTATE: (57P0|08|53)|\[libpq\] (Failed to connect|Execution error)|terminat|unexpectedly"
)
_DISK_FAILURE_TEXT: Final = re.compile(r"^IO: |I/O error|unable to open|Failed to step query")


def compile_sql(query: Select[Any], dialect: str) -> str:
    """Compile `query` for `sqlite` or `postgresql`, with literals instead of parameters."""
    # Other parameter styles would double each "%".
    sql_dialect = import_module(f"sqlalchemy.dialects.{dialect}").dialect(paramstyle="named")
    return str(query.compile(dialect=sql_dialect, compile_kwargs={"literal_binds": True}))


def build_arrow_schema(query: Select[Any]) -> pa.Schema:
    """Return the Arrow schema of the rows of `query`. All columns are 64-bit integers or texts."""
    types = ((name, column.type) for name, column in query.selected_columns.items())
    return pa.schema([(name, pa.int64() if isinstance(kind, Integer) else pa.string()) for name, kind in types])


def to_arrow_type(column: Column[Any]) -> pa.DataType:
    """Return the Arrow type for a bulk load of the column. PostgreSQL requires integers of the column's width."""
    if isinstance(column.type, BigInteger):
        return pa.int64()
    if isinstance(column.type, Integer):
        return pa.int32()
    return pa.binary() if isinstance(column.type, LargeBinary) else pa.string()


class ArrowReader:
    """Bulk reader over one open connection. Not thread-safe."""

    def __init__(self, connection: "Connection", url: URL) -> None:
        self._connection, self._url = connection, url
        self.dialect = url.get_backend_name()

    def batches(self, query: Select[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in non-empty batches, fetched on demand. The schema is `build_arrow_schema(query)`.

        Text columns of the query must not contain NULL, because SQLite's driver takes the type of a column from the
        first batch. A text after a batch of NULLs would fail.

        Raises:
            StoreUnavailable: The database does not answer, or the connection was lost.
            CatalogBusy: Another transaction holds a lock.
            CorruptData: A stored value does not have the type of its column.
            ServiceFailed: The file is not a database.
        """
        schema = build_arrow_schema(query)
        with _translate_driver_errors(self._url), self._connection.cursor() as cursor:
            if self.dialect == "sqlite":
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            cursor.execute(compile_sql(query, self.dialect))
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    yield _cast_batch(batch, schema)

    def table(self, query: Select[Any]) -> pa.Table:
        return pa.Table.from_batches(self.batches(query), build_arrow_schema(query))


@contextmanager
def open_arrow_reader(database_url: str) -> Iterator[ArrowReader]:
    """Open a read-only connection to the database while the block runs.

    Raises:
        InvalidInput: The URL names neither SQLite nor PostgreSQL.
        PreconditionFailed: This process has the file open as a `Database`. Two SQLite libraries would damage the file.
        StoreUnavailable: The database does not answer, or the file does not exist.
        ServiceFailed: The file is not a database.
    """
    url = parse_database_url(database_url)
    with ExitStack() as stack:
        with _translate_driver_errors(url):
            connection = stack.enter_context(_open_connection(url))
        yield ArrowReader(connection, url)


@contextmanager
def open_arrow_writer(database_url: str) -> Iterator["ArrowWriter"]:
    """Open a connection with one transaction, which is committed if the block ends without an error.

    A SQLite file is written without a journal and without waiting for the disk. If the block fails, the file is
    unusable. No other process may open the file before the block ends. Errors are those of `open_arrow_reader`.
    """
    url = parse_database_url(database_url)
    with ExitStack() as stack:
        with _translate_driver_errors(url):
            connection = stack.enter_context(_open_connection(url, writes=True))
        writer = ArrowWriter(connection, url)
        yield writer
        with _translate_driver_errors(url):
            connection.commit()


class ArrowWriter:
    """Bulk writer over one open transaction. Not thread-safe."""

    def __init__(self, connection: "Connection", url: URL) -> None:
        self._connection, self._url = connection, url
        self.dialect = url.get_backend_name()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with _translate_driver_errors(self._url), self._connection.cursor() as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def append_rows(self, table: str, rows: pa.RecordBatchReader) -> None:
        """Append rows to a table. Missing columns get their default."""
        with _translate_driver_errors(self._url), self._connection.cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="append")


def _open_connection(url: URL, *, writes: bool = False) -> AbstractContextManager["Connection"]:
    return (_open_sqlite if url.get_backend_name() == "sqlite" else _open_postgresql)(url, writes=writes)


@contextmanager
def _open_sqlite(url: URL, *, writes: bool) -> Iterator["Connection"]:
    from adbc_driver_sqlite import dbapi  # noqa: PLC0415 - only bulk jobs need it

    path, mode = str(url.database), "rw" if writes else "ro"
    with (
        keep_sqlite_open_registered(path, ARROW_SQLITE),
        dbapi.connect(f"file:{quote(path)}?mode={mode}", autocommit=not writes) as connection,
    ):
        if writes:
            connection.adbc_connection.set_autocommit(True)  # pragmas have no effect in a transaction
        with connection.cursor() as cursor:
            for pragma in _WRITER_PRAGMAS if writes else _READER_PRAGMAS:
                cursor.execute(f"PRAGMA {pragma}")
                cursor.fetchall()
        if writes:
            connection.adbc_connection.set_autocommit(False)
        yield connection


def _open_postgresql(url: URL, *, writes: bool) -> AbstractContextManager["Connection"]:
    """Connect with the arguments that psycopg passes to libpq for this URL."""
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    _, arguments = url.get_dialect()().create_connect_args(url)
    arguments.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    if not writes:
        arguments["options"] = f"{arguments.get('options', '')} -c default_transaction_read_only=on".strip()
    connection: Connection = dbapi.connect(make_conninfo(**arguments), autocommit=not writes)
    return connection


def _cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    typed_batch = batch.rename_columns(schema.names).cast(schema)
    typed_batch.validate(full=True)  # also checks that texts are UTF-8
    return typed_batch


@contextmanager
def _translate_driver_errors(url: URL) -> Iterator[None]:
    try:
        yield
    except SextonError:
        raise
    except Exception as error:
        translated_error = _translate_driver_error(error, url)
        if translated_error is None:
            raise
        raise translated_error from error


def _translate_driver_error(error: Exception, url: URL) -> SextonError | None:
    """Translate the error by its message, because the driver gives no code."""
    message = " ".join(str(error).split())
    is_sqlite = url.get_backend_name() == "sqlite"
    if isinstance(error, pa.ArrowInvalid) or _DAMAGE_TEXT.search(message):
        return CorruptData(f"database: a row holds what its column cannot: {message}")
    if _CONTENTION_TEXT.search(message):
        return CatalogBusy(f"catalog: contended: {message}")
    if is_sqlite and "file is not a database" in message:
        return ServiceFailed("database", f"{url.database} is no SQLite database", advice=URL_ADVICE)
    if is_sqlite and _DISK_FAILURE_TEXT.search(message):
        return StoreUnavailable(describe_unopened_file(url, must_exist=True))
    if not is_sqlite and _CONNECTION_LOSS_TEXT.search(message):
        was_connected = "Failed to connect" not in message
        return StoreUnavailable(f"database: {describe_lost_server(message, url, was_connected=was_connected)}")
    return None
