"""What a database's error means: contention, a fault of the world, or a bug of ours."""

import sqlite3

import psycopg
from sqlalchemy.exc import DBAPIError

from logstore.errors import CorruptData, InvalidInput, StoreUnavailable

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_WAITED = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)
_AWAY = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)


def contended(error: DBAPIError) -> bool:
    """Whether the same transaction may succeed as soon as another one has ended."""
    return _sqlite_code(error) in _BUSY or isinstance(error.orig, _WAITED)


def may_have_landed(error: DBAPIError) -> bool:
    """Whether a COMMIT that failed like this can have been durable all the same."""
    return error.connection_invalidated or _sqlite_code(error) == sqlite3.SQLITE_IOERR


def translated(error: DBAPIError) -> Exception:
    """What callers get: bugs stay as they are, the world's faults become ours, in one sentence."""
    code = _sqlite_code(error)
    if code in _BROKEN:
        return CorruptData(f"catalog: {sentence(error)}")
    fault = isinstance(error.orig, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR  # that one is wrong SQL
    if isinstance(error.orig, psycopg.DataError):
        return InvalidInput("value", expected="one that the catalog can hold", found=sentence(error))
    if fault or isinstance(error.orig, _AWAY) or error.connection_invalidated:
        return StoreUnavailable(f"catalog: {sentence(error)}")
    return error


def sentence(error: DBAPIError) -> str:
    """What the database said, on one line."""
    return " ".join(str(error.orig).split())


def _sqlite_code(error: DBAPIError) -> int | None:
    """SQLite's primary result code; None for another database, or an error of the driver's own."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None
