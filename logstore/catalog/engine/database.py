"""Transactions on SQLite and PostgreSQL: begin, retry of whole transactions, and translation of errors."""

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

from logstore import failpoints
from logstore.catalog.engine.database_connections import (
    create_postgresql_engine,
    create_read_only_sqlite_engine,
    create_sqlite_engine,
    format_driver_message,
    is_contention,
    may_be_committed,
    parse_database_url,
    translate_database_error,
)
from logstore.errors import CatalogBusy, InvalidInput, OutcomeUnknown

T = TypeVar("T")
P = ParamSpec("P")

_DEFAULT_PATIENCE_S = 30.0
# Range of the pause between attempts to get SQLite's write lock. SQLite's busy handler starved a writer for 6 s.
_RETRY_PAUSE_S = (0.0005, 0.003)


class Database:
    """Database of the catalog. `read` and `write` run a function in one transaction. The constructor does not connect.

    A call waits while all `pool_size` connections are in use. Contended work is repeated for at most `patience_s`.
    """

    def __init__(self, url: str, *, pool_size: int = 16, patience_s: float = _DEFAULT_PATIENCE_S) -> None:
        parsed = parse_database_url(url)
        self._url = url
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._patience_s = patience_s
        pool = {"pool_size": pool_size, "max_overflow": 0, "pool_timeout": patience_s}
        self.engine = (
            create_sqlite_engine(parsed, pool) if self.is_sqlite else create_postgresql_engine(parsed, pool, patience_s)
        )
        self._reader = self.engine.execution_options(**_read_options(self.is_sqlite))
        self._guard: Callable[[Connection], None] | None = None

    def with_guard(self, guard: Callable[[Connection], None]) -> "Database":
        """Return a copy of this database that calls `guard` at the begin of each writing transaction.

        If `guard` raises, the transaction is refused. After the copy's first commit, `guard` is not called again.
        """
        database = copy(self)
        database._guard = guard  # noqa: SLF001 - an instance of this class
        return database

    @contextmanager
    def open_read_only(self) -> Iterator["Database"]:
        """Open the database without changing it. A usual connection would create SQLite's write-ahead file."""
        if not self.is_sqlite:  # PostgreSQL's reads change nothing
            yield self
            return
        database = Database(self._url, pool_size=1, patience_s=self._patience_s)
        database.engine = create_read_only_sqlite_engine(self.engine.url)
        database._reader = database.engine.execution_options(**_read_options(True))
        with closing(database):
            yield database

    def close(self) -> None:
        self.engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a read-only transaction. All statements read one snapshot, which the first statement takes."""
        return self._run_with_retries(self._reader, work, self._patience_s)

    @contextmanager
    def open_snapshot(self) -> Iterator[Connection]:
        """Open a read-only transaction with one snapshot while the block runs. Contention is not retried."""
        try:
            with self._reader.connect() as connection, connection.begin():
                yield connection
        except PoolExhausted as error:
            raise CatalogBusy(f"catalog: no connection was free within {self._patience_s:g} s") from error
        except DBAPIError as error:
            if is_contention(error):
                raise CatalogBusy(f"catalog: contended: {format_driver_message(error)}") from error
            raise translate_database_error(error, self.engine.url) from error

    def write(self, work: Callable[[Connection], T], *, patience_s: float | None = None) -> T:
        """Run `work` in a writing transaction. Repeat the transaction after busy, deadlock and serialization errors.

        SQLite uses BEGIN IMMEDIATE, because a deferred transaction that reads first may fail in spite of a busy
        timeout. PostgreSQL uses READ COMMITTED, so that a read after a lock sees the latest rows. `patience_s` (at
        least 0.001) limits the retries and PostgreSQL's wait for each lock.

        Raises:
            CatalogBusy: Contention lasted longer than the patience.
            OutcomeUnknown: The connection broke during the commit.
            StoreUnavailable: The database does not answer, or its disk is full.
        """
        if patience_s is None and self._guard is None:
            return self._run_with_retries(self.engine, work, self._patience_s)
        guard = self._guard

        def work_with_guard(connection: Connection) -> T:
            if patience_s is not None and not self.is_sqlite:
                connection.execute(text(f"SET LOCAL lock_timeout = {int(patience_s * 1000)}"))
            if guard is not None:
                guard(connection)
            return work(connection)

        result = self._run_with_retries(
            self.engine, work_with_guard, self._patience_s if patience_s is None else patience_s
        )
        self._guard = None  # one success is enough
        return result

    def _run_with_retries(self, engine: Engine, work: Callable[[Connection], T], patience_s: float) -> T:
        deadline_s, may_be_stale = time.monotonic() + patience_s, True
        while True:
            try:
                return _run_transaction(engine, work, writes=engine is self.engine)
            except OverflowError as error:  # SQLite's driver raises it for integers beyond 64 bits
                raise InvalidInput("value", expected="a number of at most 64 bits", found=str(error)) from error
            except PoolExhausted as error:
                raise CatalogBusy(f"catalog: no connection was free within {self._patience_s:g} s") from error
            except DBAPIError as error:
                if error.connection_invalidated and may_be_stale:
                    may_be_stale = False  # nothing was committed; the pool has dropped its old connections
                    continue
                if not is_contention(error):
                    raise translate_database_error(error, engine.url) from error
                if time.monotonic() > deadline_s:
                    raise CatalogBusy(
                        f"catalog: contended for {patience_s:g} s: {format_driver_message(error)}"
                    ) from error
            time.sleep(random.uniform(*_RETRY_PAUSE_S))  # noqa: S311 - spreads retries, no secret

    @property
    def is_absent(self) -> bool:
        """Whether the database is a SQLite file that does not exist. A connection would create the file."""
        return self.is_sqlite and not Path(str(self.engine.url.database)).exists()

    def create_folder(self) -> None:
        if not self.is_sqlite:
            return
        try:
            Path(str(self.engine.url.database)).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            expected = f"a file in a folder that can be made ({error.strerror})"
            raise InvalidInput("database_url", expected=expected, found=self.engine.url.database) from error

    def now_us(self, connection: Connection) -> int:
        """Return microseconds since 1970 by the database's clock. SQLite uses this machine's clock."""
        if self.is_sqlite:
            return time.time_ns() // 1000
        return int(connection.execute(_NOW).scalar_one())


class CatalogAdapter:
    def __init__(self, database: Database) -> None:
        self._db = database

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._db.write(work)


A = TypeVar("A", bound=CatalogAdapter)


def in_read_transaction(work: Callable[Concatenate[A, Connection, P], T]) -> Callable[Concatenate[A, P], T]:
    """Turn a method with a connection argument into a method that runs in `Database.read`."""

    @wraps(work)
    def method(port: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return port._db.read(lambda connection: work(port, connection, *args, **kwargs))  # noqa: SLF001 - its decorator

    return method


def in_write_transaction(
    failpoint: str = "",
) -> Callable[[Callable[Concatenate[A, Connection, P], T]], Callable[Concatenate[A, P], T]]:
    """Turn a method with a connection argument into a method that runs in `Database.write`, perhaps more than once."""

    def decorate(work: Callable[Concatenate[A, Connection, P], T]) -> Callable[Concatenate[A, P], T]:
        @wraps(work)
        def method(port: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with failpoints.effect(failpoint) if failpoint else nullcontext():
                return port._write(lambda connection: work(port, connection, *args, **kwargs))  # noqa: SLF001

        return method

    return decorate


_NOW = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


def _run_transaction(engine: Engine, work: Callable[[Connection], T], *, writes: bool) -> T:
    with engine.connect() as connection, connection.begin() as transaction:
        result = work(connection)
        try:
            transaction.commit()
        except BaseException as error:
            connection.invalidate()  # otherwise the pool would reuse it with an open transaction
            if writes and isinstance(error, DBAPIError) and may_be_committed(error):
                raise OutcomeUnknown(
                    f"catalog: connection lost while committing: {format_driver_message(error)}"
                ) from error
            raise
        return result


def _read_options(is_sqlite: bool) -> dict[str, Any]:
    return {"sexton_reads": True} if is_sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
