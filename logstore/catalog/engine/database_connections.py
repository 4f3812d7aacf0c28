"""Connections to the database of the setting `database_url`, and translation of its errors.

Python's driver and Arrow's driver each contain a SQLite library. When a process closes any handle of a file, POSIX
releases all locks of the process on that file, also the locks of the other library. Another process could then reset
the write-ahead file while it is in use. A process therefore opens a file with only one library at a time.

Source: https://www.sqlite.org/howtocorrupt.html, "multiple copies of SQLite linked into the same application".
"""

import os
import re
import sqlite3
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from logstore.errors import CorruptData, InvalidInput, PreconditionFailed, ServiceFailed, StoreUnavailable

if TYPE_CHECKING:
    import psycopg


_SUPPORTED_URLS: Final = "sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE"
_PASSWORD: Final = re.compile(
    r"^([\w+.-]*:/{1,2}[^:/?]*:|[^:?]*:(?!/))[^@]*(?:@[^?@]*)*(?=@)"  # up to the last @ before libpq's arguments
    r"|((?:password|secret)=)[^&]*"
)


def mask_passwords(url: str) -> str:
    """Return the URL with `***` instead of passwords, including passwords in its arguments."""
    return _PASSWORD.sub(lambda match: f"{match[1] or match[2]}***", url)


def parse_database_url(url: str) -> URL:
    """Parse `sqlite:///PATH` or `postgresql+psycopg://…`.

    Raises:
        InvalidInput: The URL has neither form, or its SQLite path is not a regular file. `:memory:` is refused,
            because each connection would get another database.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # from None: these messages contain the password
        raise InvalidInput("database_url", expected=_SUPPORTED_URLS, found=mask_passwords(url)) from None
    if parsed.drivername == "postgresql+psycopg":
        return parsed
    path = parsed.database or ""
    is_plain_path = path and not (parsed.host or parsed.username or path.startswith((":memory:", "file:")))
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"} and is_plain_path:
        if not _can_hold_database(Path(path)):
            raise InvalidInput("database_url", expected="SQLite in a regular file", found=path)
        return parsed
    masked_url = mask_passwords(parsed.render_as_string(hide_password=True))
    raise InvalidInput("database_url", expected=_SUPPORTED_URLS, found=masked_url)


def _can_hold_database(path: Path) -> bool:
    """Return whether SQLite may try to open the path. SQLite itself refuses a folder, but reads a FIFO for ever."""
    try:
        return stat.S_IFMT(path.stat().st_mode) in {stat.S_IFREG, stat.S_IFDIR}
    except OSError:  # SQLite reports the problem when it opens the file
        return True


_WRITER_PRAGMAS = ("busy_timeout=5000", "journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "busy_timeout=0")
CONNECT_TIMEOUT_S: Final = 10

PYTHON_SQLITE: Final = "Python's"
ARROW_SQLITE: Final = "Arrow's"
_OTHER_LIBRARY: Final = {PYTHON_SQLITE: ARROW_SQLITE, ARROW_SQLITE: PYTHON_SQLITE}

_lock = threading.Lock()
_open_counts: Counter[tuple[str, str]] = Counter()


def register_sqlite_open(path: str, library: str) -> None:
    """Count a connection before `library` opens it. Raise `PreconditionFailed` if another library has the file open."""
    real_path = os.path.realpath(path)
    with _lock:
        if _open_counts[real_path, _OTHER_LIBRARY[library]]:
            raise PreconditionFailed(
                f"database: expected {path} opened by one SQLite library of this process, found it open by"
                f" {_OTHER_LIBRARY[library]} as well; close that one first, or read in another process"
            )
        _open_counts[real_path, library] += 1


@contextmanager
def keep_sqlite_open_registered(path: str, library: str) -> Iterator[None]:
    """Count a connection while the block runs. Errors are those of `register_sqlite_open`."""
    register_sqlite_open(path, library)
    try:
        yield
    finally:
        register_sqlite_close(path, library)


def register_sqlite_close(path: str, library: str) -> None:
    with _lock:
        _open_counts[os.path.realpath(path), library] -= 1


def create_postgresql_engine(url: URL, pool: dict[str, Any], patience_s: float) -> Engine:
    """Build an engine for PostgreSQL. Its statements wait at most `patience_s` for a lock."""
    arguments = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
    engine = create_engine(url, isolation_level="READ COMMITTED", hide_parameters=True, connect_args=arguments, **pool)

    def set_lock_and_idle_timeouts(connection: "psycopg.Connection[Any]", _: object) -> None:
        connection.autocommit = True
        patience_ms = int(patience_s * 1000)
        for name, value in (("lock_timeout", patience_ms), ("idle_in_transaction_session_timeout", 4 * patience_ms)):
            connection.execute(f"SET {name} = {value}".encode())
        connection.autocommit = False

    event.listen(engine, "connect", set_lock_and_idle_timeouts)
    return engine


def create_sqlite_engine(url: URL, pool: dict[str, Any]) -> Engine:
    """Build an engine for a SQLite file in WAL mode. A commit waits for the disk."""
    path = str(url.database)
    engine = _create_engine_excluding_arrow_sqlite(url, lambda: sqlite3.connect(path, check_same_thread=False), **pool)
    event.listen(engine, "connect", _prepare_writer)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def create_read_only_sqlite_engine(url: URL) -> Engine:
    uri = f"file:{quote(str(url.database))}?mode=ro"
    engine = _create_engine_excluding_arrow_sqlite(url, lambda: sqlite3.connect(uri, uri=True, timeout=5))
    event.listen(engine, "connect", _disable_driver_transactions)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _create_engine_excluding_arrow_sqlite(url: URL, connect: Callable[[], sqlite3.Connection], **pool: Any) -> Engine:  # noqa: ANN401 - SQLAlchemy's
    path = str(url.database)

    def creator() -> sqlite3.Connection:
        register_sqlite_open(path, PYTHON_SQLITE)
        try:
            return connect()
        except BaseException:
            register_sqlite_close(path, PYTHON_SQLITE)
            raise

    engine = create_engine(url, hide_parameters=True, creator=creator, **pool)
    event.listen(engine, "close", lambda *_: register_sqlite_close(path, PYTHON_SQLITE))
    return engine


def _disable_driver_transactions(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None
    # Otherwise one damaged text would fail the whole result.
    connection.text_factory = lambda stored: stored.decode("utf-8", "replace")


def _prepare_writer(connection: sqlite3.Connection, _: object) -> None:
    _disable_driver_transactions(connection, None)
    for pragma in _WRITER_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    is_read_only = connection.get_execution_options().get("sexton_reads", False)
    connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")


_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
URL_ADVICE = "correct SEXTON_DATABASE_URL, or its permissions"
_DEFAULT_TEXT = f"it does not answer; {URL_ADVICE}"
_TEXT_BY_SQLITE_CODE = {
    sqlite3.SQLITE_FULL: "its disk is full; make room",
    sqlite3.SQLITE_READONLY: "it can be read only; make it writable",
    sqlite3.SQLITE_PERM: f"it may not be used; {URL_ADVICE}",
    sqlite3.SQLITE_IOERR: "its disk fails, or a file beside it is gone; stop what uses it, then look at its folder",
}
_REFUSAL_TEXT = re.compile(r"authentication|password|role .* does not exist|pg_hba|permission denied", re.IGNORECASE)
_TLS_PROBLEM_TEXT = re.compile(
    r"(SSL error: |server certificate |server does not support SSL|root certificate |certificate |private key ).*"
)
_CLOSED_TEXT = re.compile(r"SSL SYSCALL error|reset by peer|closed the connection unexpectedly", re.IGNORECASE)
_TLS_MODES = frozenset({"require", "verify-ca", "verify-full"})
_TLS_ADVICE = "check sslmode, sslrootcert, sslcert and sslkey in SEXTON_DATABASE_URL"
_NO_DATABASE_TEXT = re.compile(r"database .* does not exist", re.IGNORECASE)


def is_contention(error: DBAPIError) -> bool:
    """Return whether the same transaction may succeed after another transaction has ended."""
    names = ("DeadlockDetected", "SerializationFailure", "LockNotAvailable")
    return _sqlite_code(error) in _BUSY_CODES or _is_psycopg_error(error, *(f"errors.{name}" for name in names))


def may_be_committed(error: DBAPIError) -> bool:
    """Return whether the transaction may be committed although its COMMIT failed with this error."""
    return error.connection_invalidated or _sqlite_code(error) == sqlite3.SQLITE_IOERR


def translate_database_error(error: DBAPIError, url: URL) -> Exception:
    """Return an error of Sexton for a fault of the environment. An error that is a bug is returned unchanged."""
    if isinstance(error.orig, sqlite3.Error):
        return _translate_sqlite_error(error, url)
    if _is_psycopg_error(error, "DataError"):
        return InvalidInput("value", expected="one that the catalog can hold", found=format_driver_message(error))
    if _is_psycopg_error(error, "errors.ReadOnlySqlTransaction"):
        return StoreUnavailable(f"database: {_format_server(url)} takes no writes; is it a standby?")
    if error.connection_invalidated or _is_psycopg_error(error, "OperationalError", "InterfaceError"):
        problem = describe_lost_server(format_driver_message(error), url, was_connected=error.connection_invalidated)
        return StoreUnavailable(f"database: {problem}")
    return error


def _translate_sqlite_error(error: DBAPIError, url: URL) -> Exception:
    code = _sqlite_code(error)
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptData(f"database: {url.database} is damaged; restore it from a backup")
    if code == sqlite3.SQLITE_NOTADB:
        return ServiceFailed("database", f"{url.database} is no SQLite database", advice=URL_ADVICE)
    if code == sqlite3.SQLITE_CANTOPEN or Path(str(url.database)).is_dir():
        return StoreUnavailable(describe_unopened_file(url))
    if isinstance(error.orig, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:  # that code means wrong SQL
        return StoreUnavailable(f"database: {url.database}: {_TEXT_BY_SQLITE_CODE.get(code or 0, _DEFAULT_TEXT)}")
    return error


def format_driver_message(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())


def describe_unopened_file(url: URL, *, must_exist: bool = False) -> str:
    obstacle = _describe_open_obstacle(url, must_exist=must_exist)
    return f"database: {url.database} cannot be opened: {obstacle}; {URL_ADVICE}"


def _describe_open_obstacle(url: URL, *, must_exist: bool) -> str:
    path = Path(str(url.database))
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return "its folder does not exist"
    if not path.exists() and must_exist:
        return "it does not exist"
    return "no permission" if not os.access(path if path.exists() else path.parent, os.R_OK | os.W_OK) else "it is busy"


def describe_lost_server(message: str, url: URL, *, was_connected: bool) -> str:
    """Describe, from libpq's message, why PostgreSQL cannot be reached or why the connection was lost."""
    server = _format_server(url)
    if _NO_DATABASE_TEXT.search(message):
        return f"there is no database {url.database} at {server}; create it, or correct SEXTON_DATABASE_URL"
    if tls_problem := _TLS_PROBLEM_TEXT.search(message):
        return f"no trusted connection to {server}: {tls_problem[0]}; {_TLS_ADVICE}"
    if not was_connected and url.query.get("sslmode") in _TLS_MODES and _CLOSED_TEXT.search(message):
        problem = "it ended the connection, and may want our certificate"  # libpq may lose the server's reason
        return f"no trusted connection to {server}: {problem}; {_TLS_ADVICE}"
    if _REFUSAL_TEXT.search(message):
        return f"{server} refuses the user {url.username}; correct SEXTON_DATABASE_URL"
    if was_connected:
        return f"the connection to {server} was lost; see whether PostgreSQL runs"
    return f"no PostgreSQL answers at {server}; start it, or correct SEXTON_DATABASE_URL"


def _format_server(url: URL) -> str:
    host = url.host or url.query.get("host") or "localhost"
    return f"{host}:{url.port or url.query.get('port') or 5432}"


def _is_psycopg_error(error: DBAPIError, *names: str) -> bool:
    driver = sys.modules.get("psycopg")
    return driver is not None and any(isinstance(error.orig, attrgetter(name)(driver)) for name in names)


def _sqlite_code(error: DBAPIError) -> int | None:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None
