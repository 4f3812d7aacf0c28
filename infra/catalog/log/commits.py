"""Group commit in SQL: many small writes in one transaction of set-based statements.

Rows are locked first, in the order topic, ledger, sequence, cursor and by key within each, and every decision is
taken under those locks.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from infra.catalog.cursors.acknowledgements import acknowledge_all
from infra.catalog.engine.database import Database
from infra.catalog.log.registrations import register_all
from logstore.failpoints import effect
from logstore.ports.catalog import Acknowledge, RegisterSegment, Write, WriteResult


class SqlCommits:
    """The `Commits` port."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """See `Commits.commit`."""
        with effect("catalog.group_commit"):
            return self._db.write(lambda connection: _commit(connection, writes))


def _commit(connection: Connection, writes: Sequence[Write]) -> list[WriteResult]:
    registered = iter(register_all(connection, [write for write in writes if isinstance(write, RegisterSegment)]))
    acknowledged = iter(acknowledge_all(connection, [write for write in writes if isinstance(write, Acknowledge)]))
    return [next(registered) if isinstance(write, RegisterSegment) else next(acknowledged) for write in writes]
