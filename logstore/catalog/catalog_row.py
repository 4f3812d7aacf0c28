"""The only row of the table `catalog`, which the first migration inserts."""

from typing import Any

from sqlalchemy import Connection, Row, select

from logstore.catalog import tables as t
from logstore.errors import CorruptData, StaleCatalog


def read_catalog_row(connection: Connection) -> Row[Any]:
    """Return the row with the catalog's id, epoch, number of bundles and next ledger id."""
    row = connection.execute(select(t.catalog)).one_or_none()
    if row is None:
        raise lost_row_error(t.catalog.name)
    return row


def lost_row_error(table: str) -> CorruptData:
    return CorruptData(
        f"table {table}: expected 1 row, found none: the database is damaged. Stop the workers and run"
        " `sexton records rebuild --into DATABASE_URL` with an empty database"
    )


def read_epoch(connection: Connection) -> int:
    return int(read_catalog_row(connection).epoch)


def require_epoch(connection: Connection, expected: int | None) -> None:
    """Raise `StaleCatalog` if the catalog's epoch is not `expected`. `None` accepts any epoch."""
    epoch = read_epoch(connection) if expected is not None else None
    if epoch != expected:
        raise StaleCatalog(f"catalog epoch: expected {epoch}, found {expected} in the request")
