"""Errors of the database: each is contention, a fault of the world or a bug of ours, and is told to an operator."""

import os
import re
import sqlite3
import sys
from operator import attrgetter
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from logstore.errors import CorruptData, InvalidInput, ServiceFailed, StoreUnavailable

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
CORRECT = "correct SEXTON_DATABASE_URL, or its permissions"
_ANY = f"it does not answer; {CORRECT}"
_SQLITE = {
    sqlite3.SQLITE_FULL: "its disk is full; make room",
    sqlite3.SQLITE_READONLY: "it can be read only; make it writable",
    sqlite3.SQLITE_PERM: f"it may not be used; {CORRECT}",
    sqlite3.SQLITE_IOERR: "its disk fails, or a file beside it is gone; stop what uses it, then look at its folder",
}
_REFUSED = re.compile(r"authentication|password|role .* does not exist|pg_hba|permission denied", re.IGNORECASE)
_DISTRUST = re.compile(
    r"(SSL error: |server certificate |server does not support SSL|root certificate |certificate |private key ).*"
)
_ENDED = re.compile(r"SSL SYSCALL error|reset by peer|closed the connection unexpectedly", re.IGNORECASE)
_WITH_TLS = frozenset({"require", "verify-ca", "verify-full"})
_TRUST = "check sslmode, sslrootcert, sslcert and sslkey in SEXTON_DATABASE_URL"
_NO_DATABASE = re.compile(r"database .* does not exist", re.IGNORECASE)


def contended(error: DBAPIError) -> bool:
    """Whether the same transaction may succeed as soon as another one has ended."""
    waited = ("DeadlockDetected", "SerializationFailure", "LockNotAvailable")
    return _sqlite_code(error) in _BUSY or _is_psycopgs(error, *(f"errors.{name}" for name in waited))


def may_have_landed(error: DBAPIError) -> bool:
    """Whether a COMMIT that failed like this can have been durable all the same."""
    return error.connection_invalidated or _sqlite_code(error) == sqlite3.SQLITE_IOERR


def translated(error: DBAPIError, url: URL) -> Exception:
    """The error for the caller: a bug stays as it is, a fault of the world becomes an error of ours."""
    if isinstance(error.orig, sqlite3.Error):
        return _of_sqlite(error, url)
    if _is_psycopgs(error, "DataError"):
        return InvalidInput("value", expected="one that the catalog can hold", found=sentence(error))
    if _is_psycopgs(error, "errors.ReadOnlySqlTransaction"):
        return StoreUnavailable(f"database: {_server(url)} takes no writes; is it a standby?")
    if error.connection_invalidated or _is_psycopgs(error, "OperationalError", "InterfaceError"):
        return StoreUnavailable(f"database: {missed(sentence(error), url, lost=error.connection_invalidated)}")
    return error


def _of_sqlite(error: DBAPIError, url: URL) -> Exception:
    code = _sqlite_code(error)
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptData(f"database: {url.database} is damaged; restore it from a backup")
    if code == sqlite3.SQLITE_NOTADB:
        return ServiceFailed("database", f"{url.database} is no SQLite database", advice=CORRECT)
    if code == sqlite3.SQLITE_CANTOPEN or Path(str(url.database)).is_dir():
        return StoreUnavailable(unopened(url))
    if isinstance(error.orig, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:  # that one is wrong SQL
        return StoreUnavailable(f"database: {url.database}: {_SQLITE.get(code or 0, _ANY)}")
    return error


def sentence(error: DBAPIError) -> str:
    """The database's own message, on one line."""
    return " ".join(str(error.orig).split())


def unopened(url: URL, *, reading: bool = False) -> str:
    """Why a SQLite file cannot be opened, as far as the world tells."""
    return f"database: {url.database} cannot be opened: {_obstacle(url, reading=reading)}; {CORRECT}"


def _obstacle(url: URL, *, reading: bool) -> str:
    path = Path(str(url.database))
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return "its folder does not exist"
    if not path.exists() and reading:
        return "it does not exist"
    return "no permission" if not os.access(path if path.exists() else path.parent, os.R_OK | os.W_OK) else "it is busy"


def missed(said: str, url: URL, *, lost: bool) -> str:
    """Why PostgreSQL could not be talked to, or the connection was lost; libpq tells it in words alone."""
    if _NO_DATABASE.search(said):
        return f"there is no database {url.database} at {_server(url)}; create it, or correct SEXTON_DATABASE_URL"
    if distrust := _DISTRUST.search(said):
        return f"no trusted connection to {_server(url)}: {distrust[0]}; {_TRUST}"
    if not lost and url.query.get("sslmode") in _WITH_TLS and _ENDED.search(said):
        why = "it ended the connection, and may want our certificate"  # the reason may be lost with the connection
        return f"no trusted connection to {_server(url)}: {why}; {_TRUST}"
    if _REFUSED.search(said):
        return f"{_server(url)} refuses the user {url.username}; correct SEXTON_DATABASE_URL"
    if lost:
        return f"the connection to {_server(url)} was lost; see whether PostgreSQL runs"
    return f"no PostgreSQL answers at {_server(url)}; start it, or correct SEXTON_DATABASE_URL"


def _server(url: URL) -> str:
    host = url.host or url.query.get("host") or "localhost"
    return f"{host}:{url.port or url.query.get('port') or 5432}"


def _is_psycopgs(error: DBAPIError, *names: str) -> bool:
    """Whether it is one of these classes of the driver, which is not imported where PostgreSQL is not used."""
    driver = sys.modules.get("psycopg")
    return driver is not None and any(isinstance(error.orig, attrgetter(name)(driver)) for name in names)


def _sqlite_code(error: DBAPIError) -> int | None:
    """SQLite's primary result code; None for another database, or an error of the driver's own."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None
