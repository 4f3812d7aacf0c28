"""What the database itself says happened, in its own serial order.

A raise is told by a trigger, in the transaction that raises; a write is told in the transaction that holds the lease.
Both hold the fence's row until they commit, so that of one bundle the numbers ascend as the commits do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, select, text

from logstore.catalog import Database
from logstore.catalog.ownership.fences import lock_fence_of_lease
from logstore.ownership import Lease

_STORY_TABLE = Table(
    "story",
    MetaData(),
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("bundle", Integer, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("worker_id", String, nullable=False),
    Column("attempt", String),  # of a write: "{process}/{number}"; NULL: a raise
    sqlite_autoincrement=True,
)

_INSERT_RAISE: Final = "INSERT INTO story (bundle, fence, worker_id) VALUES (NEW.bundle, NEW.counter, NEW.worker_id);"
_SQLITE: Final = tuple(
    f"CREATE TRIGGER tell_{when} AFTER {when} ON bundle_fence BEGIN {_INSERT_RAISE} END"
    for when in ("insert", "update")
)
_POSTGRESQL: Final = (
    f"CREATE FUNCTION tell() RETURNS trigger AS $$ BEGIN {_INSERT_RAISE} RETURN NEW; END $$ LANGUAGE plpgsql",
    "CREATE TRIGGER tell AFTER INSERT OR UPDATE ON bundle_fence FOR EACH ROW EXECUTE FUNCTION tell()",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryRow:
    """One row."""

    bundle: int
    fence: int
    worker_id: str
    attempt: str | None  # None: the fence was raised


def create_story_table(database: Database) -> None:
    """Have a fresh catalog tell its story from now on."""

    def work(connection: Connection) -> None:
        _STORY_TABLE.create(connection)
        for statement in _SQLITE if database.is_sqlite else _POSTGRESQL:
            connection.execute(text(statement))

    database.write(work)


def write_under_lease(database: Database, lease: Lease, attempt: str) -> None:
    """Write under the lease, or be refused and write nothing.

    Raises:
        NotOwner: The lease was overtaken.
    """
    row = {"bundle": lease.bundle, "fence": lease.fence, "worker_id": lease.worker_id, "attempt": attempt}

    def work(connection: Connection) -> None:
        lock_fence_of_lease(connection, lease)
        connection.execute(_STORY_TABLE.insert().values(row))

    database.write(work)


def read_story(database: Database) -> Sequence[StoryRow]:
    """All of it, in order."""
    columns = _STORY_TABLE.c
    rows = select(columns.bundle, columns.fence, columns.worker_id, columns.attempt).order_by(columns.number)
    return database.read(lambda connection: [StoryRow(**row._mapping) for row in connection.execute(rows)])
