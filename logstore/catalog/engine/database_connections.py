"""Connections to the database of the setting `database_url`.

Python's driver and Arrow's driver each contain a SQLite library. When a process closes any handle of a file, POSIX
releases all locks of the process on that file, also the locks of the other library. Another process could then reset
the write-ahead file while it is in use. A process therefore opens a file with only one library at a time.

Source: https://www.sqlite.org/howtocorrupt.html, "multiple copies of SQLite linked into the same application".
"""

import os
import re
import sqlite3
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from logstore.errors import InvalidInput, PreconditionFailed

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
