"""Transactions on SQLite and PostgreSQL: how they begin, are retried as a whole, and how errors are translated."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from infra.catalog.engine.connections import looking_engine, parsed_url, postgresql_engine, sqlite_engine
from infra.catalog.engine.faults import contended, may_have_landed, sentence, translated
from logstore import failpoints
from logstore.errors import CatalogBusy, InvalidInput, OutcomeUnknown

T = TypeVar("T")
P = ParamSpec("P")

_PATIENCE_S = 30.0
_PAUSE_S = (0.0005, 0.003)  # between tries for SQLite's one write lock; its own busy handler starved a writer for 6 s


class Database:
    """One engine; `read` and `write` run a function in one transaction of the right kind."""

    def __init__(self, url: str, *, pool_size: int = 16, patience_s: float = _PATIENCE_S) -> None:
        """Prepare to connect; nothing is opened yet.

        Args:
            url: `sqlite:///path` or `postgresql+psycopg://…`.
            pool_size: Connections at the most; a thread that finds none free waits.
            patience_s: How long contention is borne before `CatalogBusy`.

        Raises:
            InvalidInput: Not the URL of one of the two, or a folder that cannot be made.
        """
        parsed = parsed_url(url)
        self._url = url
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._patience_s = patience_s
        pool = {"pool_size": pool_size, "max_overflow": 0, "pool_timeout": patience_s}
        self.engine = sqlite_engine(parsed, pool) if self.is_sqlite else postgresql_engine(parsed, pool, patience_s)
        self._reader = self.engine.execution_options(**_reading(self.is_sqlite))
        self._guard: Callable[[Connection], None] | None = None

    def guarded(self, guard: Callable[[Connection], None]) -> "Database":
        """The same database with a check: `guard` runs in each writing transaction until it has raised nothing once.

        An error that it raises refuses that transaction.
        """
        twin = copy(self)
        twin._guard = guard  # noqa: SLF001 - another of this class
        return twin

    @contextmanager
    def only_looking(self) -> Iterator["Database"]:
        """The same database for reads that must not change it, not even to bring a SQLite file into our mode."""
        if not self.is_sqlite:  # its reads change nothing as they are
            yield self
            return
        twin = Database(self._url, pool_size=1, patience_s=self._patience_s)
        twin.engine = looking_engine(self.engine.url)
        twin._reader = twin.engine.execution_options(**_reading(True))
        with closing(twin):
            yield twin

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction that only reads, and sees one moment from its first statement on."""
        return self._run(self._reader, work, self._patience_s)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A transaction as `read` has, which stays open for as long as the block; contention is not borne.

        Raises:
            CatalogBusy: Contention, or no connection is free.
            StoreUnavailable: No connection, or the database took it away: it was idle for too long.
        """
        try:
            with self._reader.connect() as connection, connection.begin():
                yield connection
        except PoolExhausted as error:
            raise CatalogBusy(f"catalog: no connection was free within {self._patience_s:g} s") from error
        except DBAPIError as error:
            if contended(error):
                raise CatalogBusy(f"catalog: contended: {sentence(error)}") from error
            raise translated(error, self.engine.url) from error

    def write(self, work: Callable[[Connection], T], *, patience_s: float | None = None) -> T:
        """Run `work` in a writing transaction and commit; it may run more than once.

        Args:
            work: What to do; PostgreSQL gives up each wait for a lock after `patience_s`.
            patience_s: How long contention is borne, 0.001 or more; None: the database's own.

        BEGIN IMMEDIATE on SQLite: a deferred transaction that read first fails at once with a snapshot error,
        whatever the busy timeout. READ COMMITTED on PostgreSQL: a statement sees what was committed before it
        began, so whatever is read after a row lock was granted is as new as the lock. Busy, deadlock and
        serialization errors retry the whole of it.

        Raises:
            CatalogBusy: Contention outlasted the patience.
            OutcomeUnknown: The connection broke while committing.
            StoreUnavailable: No connection, or the database's disk is full.
        """
        if patience_s is None and self._guard is None:
            return self._run(self.engine, work, self._patience_s)
        guard = self._guard

        def prepared(connection: Connection) -> T:
            if patience_s is not None and not self.is_sqlite:
                connection.execute(text(f"SET LOCAL lock_timeout = {int(patience_s * 1000)}"))
            if guard is not None:
                guard(connection)
            return work(connection)

        done = self._run(self.engine, prepared, self._patience_s if patience_s is None else patience_s)
        self._guard = None  # what it has let pass once it lets pass for good
        return done

    def _run(self, engine: Engine, work: Callable[[Connection], T], patience_s: float) -> T:
        give_up, stale = time.monotonic() + patience_s, True
        while True:
            try:
                return _once(engine, work, writes=engine is self.engine)
            except OverflowError as error:  # SQLite's driver: beyond 64 bits
                raise InvalidInput("value", expected="a number of at most 64 bits", found=str(error)) from error
            except PoolExhausted as error:
                raise CatalogBusy(f"catalog: no connection was free within {self._patience_s:g} s") from error
            except DBAPIError as error:
                if error.connection_invalidated and stale:
                    stale = False  # nothing was committed; the pool forgot its old connections, once
                    continue
                if not contended(error):
                    raise translated(error, engine.url) from error
                if time.monotonic() > give_up:
                    raise CatalogBusy(f"catalog: contended for {patience_s:g} s: {sentence(error)}") from error
            time.sleep(random.uniform(*_PAUSE_S))  # noqa: S311 - spreads retries, guards nothing

    @property
    def is_absent(self) -> bool:
        """Whether it is a SQLite file that was not made yet; connecting would make it."""
        return self.is_sqlite and not Path(str(self.engine.url.database)).exists()

    def make_folder(self) -> None:
        """Make the folder of a SQLite file.

        Raises:
            InvalidInput: It cannot be made.
        """
        if not self.is_sqlite:
            return
        try:
            Path(str(self.engine.url.database)).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            expected = f"a file in a folder that can be made ({error.strerror})"
            raise InvalidInput("database_url", expected=expected, found=self.engine.url.database) from error

    def now_us(self, connection: Connection) -> int:
        """The database's clock, microseconds since 1970: for SQLite this machine's, where it runs."""
        if self.is_sqlite:
            return time.time_ns() // 1000
        return int(connection.execute(_NOW).scalar_one())


class OnDatabase:
    """An adapter of the catalog, over one database."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._db.write(work)


A = TypeVar("A", bound=OnDatabase)


def reads(work: Callable[Concatenate[A, Connection, P], T]) -> Callable[Concatenate[A, P], T]:
    """Make a method of a function that wants a connection: one transaction that only reads; see `Database.read`."""

    @wraps(work)
    def method(port: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return port._db.read(lambda connection: work(port, connection, *args, **kwargs))  # noqa: SLF001 - its decorator

    return method


def writes(
    name: str = "",
) -> Callable[[Callable[Concatenate[A, Connection, P], T]], Callable[Concatenate[A, P], T]]:
    """As `reads`, one transaction that writes and may run more than once, as the effect of that name, if it has one."""

    def decorated(work: Callable[Concatenate[A, Connection, P], T]) -> Callable[Concatenate[A, P], T]:
        @wraps(work)
        def method(port: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with failpoints.effect(name) if name else nullcontext():
                return port._write(lambda connection: work(port, connection, *args, **kwargs))  # noqa: SLF001

        return method

    return decorated


_NOW = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


def _once(engine: Engine, work: Callable[[Connection], T], *, writes: bool) -> T:
    with engine.connect() as connection, connection.begin() as transaction:
        result = work(connection)
        try:
            transaction.commit()
        except BaseException as error:
            connection.invalidate()  # the pool would hand it out again with the transaction still open
            if writes and isinstance(error, DBAPIError) and may_have_landed(error):
                raise OutcomeUnknown(f"catalog: connection lost while committing: {sentence(error)}") from error
            raise
        return result


def _reading(is_sqlite: bool) -> dict[str, Any]:
    return {"sexton_reads": True} if is_sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
