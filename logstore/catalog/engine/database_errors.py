"""Translation of database errors into contention, faults of the environment, and bugs."""

import os
import re
import sqlite3
import sys
from operator import attrgetter
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from logstore.errors import CorruptData, InvalidInput, ServiceFailed, StoreUnavailable

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
