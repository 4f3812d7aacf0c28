"""Transactions on SQLite and PostgreSQL: begun right, retried whole, their errors translated at one edge."""

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError

from logstore.errors import CatalogBusy, InvalidInput, OutcomeUnknown, StoreUnavailable

T = TypeVar("T")

_GIVE_UP_S = 30.0
_PAUSE_S = (0.0005, 0.003)  # SQLite's own busy handler starved a writer for 6 s
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000", "cache_size=-65536")


class Database:
    """One engine; `read` and `write` run a function in one transaction of the right kind."""

    def __init__(self, url: str, *, pool_size: int = 16) -> None:
        """Prepare to connect; nothing is opened yet.

        Args:
            url: `sqlite:///path` or `postgresql+psycopg://…`.
            pool_size: Connections kept open at the most.

        Raises:
            InvalidInput: Not the URL of one of the two.
        """
        self.engine = _engine(url, pool_size)
        self.is_sqlite = self.engine.dialect.name == "sqlite"

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction that only reads."""
        return self._run(work, writes=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a writing transaction and commit; it may run more than once.

        BEGIN IMMEDIATE on SQLite: a deferred transaction that read first fails at once with a snapshot error,
        whatever the busy timeout. Busy, deadlock and serialization errors retry the whole of it.

        Raises:
            CatalogBusy: Contention for 30 s.
            OutcomeUnknown: The connection broke while committing.
            StoreUnavailable: No connection, or the database's disk is full.
        """
        return self._run(work, writes=True)

    def _run(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        give_up = time.monotonic() + _GIVE_UP_S
        while True:
            try:
                return self._once(work, writes=writes)
            except DBAPIError as error:
                if not _contended(error):
                    raise _translated(error) from error
                if time.monotonic() > give_up:
                    raise CatalogBusy(f"catalog: contended for {_GIVE_UP_S:.0f} s: {error.orig}") from error
            time.sleep(random.uniform(*_PAUSE_S))  # noqa: S311 - spreads retries, guards nothing

    def _once(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        with self.engine.connect() as plain:
            connection = plain.execution_options(sexton_writes=writes)
            with connection.begin() as transaction:
                result = work(connection)
                try:
                    transaction.commit()
                except DBAPIError as error:
                    if error.connection_invalidated:
                        raise OutcomeUnknown(f"catalog: connection lost while committing: {error.orig}") from error
                    raise
                return result

    def now_us(self, connection: Connection) -> int:
        """The database's clock, microseconds since 1970: SQLite's is this machine's, for it runs in this process."""
        if self.is_sqlite:
            return time.time_ns() // 1000
        seconds = connection.execute(text("SELECT extract(epoch FROM clock_timestamp()) * 1000000")).scalar_one()
        return int(seconds)


def _engine(url: str, pool_size: int) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidInput("database_url", expected="an SQLAlchemy URL", found=url) from error
    if parsed.drivername == "postgresql+psycopg":
        return create_engine(parsed, pool_size=pool_size, pool_pre_ping=True)
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"} or not parsed.database:
        expected = "sqlite:///PATH or postgresql+psycopg://…"
        raise InvalidInput("database_url", expected=expected, found=parsed.render_as_string(hide_password=True))
    Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, pool_size=pool_size, connect_args={"check_same_thread": False})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _: Any) -> None:  # noqa: ANN401 - SQLAlchemy's record
    connection.isolation_level = None  # the driver is not to begin anything by itself
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("sexton_writes", True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _contended(error: DBAPIError) -> bool:
    cause = error.orig
    if isinstance(cause, sqlite3.OperationalError):
        return cause.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    return isinstance(cause, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)


def _translated(error: DBAPIError) -> Exception:
    """What callers get: bugs stay as they are, the world's faults become ours."""
    if isinstance(error, IntegrityError):
        return error
    if isinstance(error.orig, sqlite3.OperationalError | psycopg.OperationalError):
        return StoreUnavailable(f"catalog: {error.orig}")
    return error
