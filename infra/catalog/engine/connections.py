"""Connections to the database of the setting `database_url`: which one it names, and how it is opened.

Python's driver and that of Arrow each bring a SQLite of their own. POSIX frees every lock that a process has on a file
as soon as any part of it closes the file: each would free the other's, and another process could then empty the log
that is being read or written. So a process opens a file by one of the two at a time.

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

_URLS: Final = "sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE"
_SECRET: Final = re.compile(
    r"^([\w+.-]*:/{1,2}[^:/?]*:|[^:?]*:(?!/))[^@]*(?:@[^?@]*)*(?=@)"  # up to the last @ before words of libpq
    r"|((?:password|secret)=)[^&]*"
)


def shown_url(url: str) -> str:
    """The URL as it may be printed: no password, wherever it stands in it."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", url)


def parsed_url(url: str) -> URL:
    """Read `sqlite:///PATH` or `postgresql+psycopg://…`.

    Raises:
        InvalidInput: Neither of the two, or SQLite without a plain path: every connection to `:memory:` would
            see a database of its own.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # from None: their messages show the password
        raise InvalidInput("database_url", expected=_URLS, found=shown_url(url)) from None
    if parsed.drivername == "postgresql+psycopg":
        return parsed
    path = parsed.database or ""
    plain = path and not (parsed.host or parsed.username or path.startswith((":memory:", "file:")))
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"} and plain:
        if not _can_hold_database(Path(path)):  # SQLite would read a FIFO for ever
            raise InvalidInput("database_url", expected="SQLite in a regular file", found=path)
        return parsed
    shown = parsed.render_as_string(hide_password=True)
    raise InvalidInput("database_url", expected=_URLS, found=shown_url(shown))


def _can_hold_database(path: Path) -> bool:
    """Whether the path is a regular file, a folder that SQLite refuses, or not there yet."""
    try:
        return stat.S_IFMT(path.stat().st_mode) in {stat.S_IFREG, stat.S_IFDIR}
    except OSError:  # SQLite says so when it opens it
        return True


_OPENING = ("busy_timeout=5000", "journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "busy_timeout=0")
CONNECT_S: Final = 10

PYTHONS: Final = "Python's"
ARROWS: Final = "Arrow's"
_OTHER: Final = {PYTHONS: ARROWS, ARROWS: PYTHONS}

_lock = threading.Lock()
_open: Counter[tuple[str, str]] = Counter()


def hold(path: str, library: str) -> None:
    """Say that a connection to the file is about to be opened.

    Raises:
        PreconditionFailed: The other library has one open.
    """
    real = os.path.realpath(path)
    with _lock:
        if _open[real, _OTHER[library]]:
            raise PreconditionFailed(
                f"database: expected {path} opened by one SQLite library of this process, found it open by"
                f" {_OTHER[library]} as well; close that one first, or read in another process"
            )
        _open[real, library] += 1


@contextmanager
def held(path: str, library: str) -> Iterator[None]:
    """Hold it for as long as the block; raises as `hold`."""
    hold(path, library)
    try:
        yield
    finally:
        free(path, library)


def free(path: str, library: str) -> None:
    """Say that one is closed."""
    with _lock:
        _open[os.path.realpath(path), library] -= 1


def postgresql_engine(url: URL, pool: dict[str, Any], patience_s: float) -> Engine:
    """An engine on PostgreSQL whose statements wait no longer than the patience for a lock."""
    arguments = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_S}
    engine = create_engine(url, isolation_level="READ COMMITTED", hide_parameters=True, connect_args=arguments, **pool)

    def prepare(connection: "psycopg.Connection[Any]", _: object) -> None:
        """No wait for a lock is endless, and a process that was paused in a transaction loses it."""
        connection.autocommit = True
        limit = int(patience_s * 1000)
        for name, value in (("lock_timeout", limit), ("idle_in_transaction_session_timeout", 4 * limit)):
            connection.execute(f"SET {name} = {value}".encode())
        connection.autocommit = False

    event.listen(engine, "connect", prepare)
    return engine


def sqlite_engine(url: URL, pool: dict[str, Any]) -> Engine:
    """An engine on a SQLite file, in our mode: it has a write-ahead file, and a commit waits for the disk."""
    path = str(url.database)
    engine = _of_file(url, lambda: sqlite3.connect(path, check_same_thread=False), **pool)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def looking_engine(url: URL) -> Engine:
    """An engine on a SQLite file that is opened read-only."""
    uri = f"file:{quote(str(url.database))}?mode=ro"
    engine = _of_file(url, lambda: sqlite3.connect(uri, uri=True, timeout=5))
    event.listen(engine, "connect", _take_no_transaction)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _of_file(url: URL, connect: Callable[[], sqlite3.Connection], **pool: Any) -> Engine:  # noqa: ANN401 - SQLAlchemy's
    """An engine that lets no bulk read of this process open the file meanwhile."""
    path = str(url.database)

    def creator() -> sqlite3.Connection:
        hold(path, PYTHONS)
        try:
            return connect()
        except BaseException:
            free(path, PYTHONS)
            raise

    engine = create_engine(url, hide_parameters=True, creator=creator, **pool)
    event.listen(engine, "close", lambda *_: free(path, PYTHONS))
    return engine


def _take_no_transaction(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # the driver is not to begin anything by itself
    # the driver would fail a whole result for one text that a disk has damaged
    connection.text_factory = lambda stored: stored.decode("utf-8", "replace")


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    _take_no_transaction(connection, None)
    for pragma in _OPENING:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get("sexton_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
