"""The catalog as one value: the ports of `logstore.ports.catalog` over one database.

A port's module is imported when the port is first asked for: a command uses two or three of them, and all of them cost
as much CPU as the rest of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from infra.catalog.engine.database import Database
from infra.catalog.engine.versions import check_version

if TYPE_CHECKING:
    from infra.catalog.audits import SqlAuditLog
    from infra.catalog.cursors.cursors import SqlCursors
    from infra.catalog.deletion.deletions import SqlDeletions
    from infra.catalog.deletion.phase_one import SqlPhaseOne
    from infra.catalog.deletion.upkeep import SqlUpkeep
    from infra.catalog.identity.identities import SqlIdentities
    from infra.catalog.log.commits import SqlCommits
    from infra.catalog.log.components import SqlComponents
    from infra.catalog.log.inspection import SqlInspection
    from infra.catalog.log.ledgers import SqlLedgers
    from infra.catalog.log.schemas import SqlSchemas
    from infra.catalog.log.topics import SqlTopics
    from infra.catalog.offload.offloads import SqlOffloads
    from infra.catalog.ownership.fences import SqlFences


class SqlCatalog:
    """`Catalog` in SQL."""

    def __init__(self, database: Database, *, registration_timeout_s: float = 600) -> None:
        """Take the database; its schema is checked by `check_version`, not here.

        Args:
            database: SQLite or PostgreSQL.
            registration_timeout_s: A newborn ledger older than this was abandoned by its creator.
        """
        self.database = database
        self._registration_timeout_s = registration_timeout_s

    @cached_property
    def topics(self) -> "SqlTopics":  # noqa: D102
        from infra.catalog.log.topics import SqlTopics  # noqa: PLC0415

        return SqlTopics(self.database)

    @cached_property
    def ledgers(self) -> "SqlLedgers":  # noqa: D102
        from infra.catalog.log.ledgers import SqlLedgers  # noqa: PLC0415

        return SqlLedgers(self.database)

    @cached_property
    def components(self) -> "SqlComponents":  # noqa: D102
        from infra.catalog.log.components import SqlComponents  # noqa: PLC0415

        return SqlComponents(self.database)

    @cached_property
    def cursors(self) -> "SqlCursors":  # noqa: D102
        from infra.catalog.cursors.cursors import SqlCursors  # noqa: PLC0415

        return SqlCursors(self.database)

    @cached_property
    def schemas(self) -> "SqlSchemas":  # noqa: D102
        from infra.catalog.log.schemas import SqlSchemas  # noqa: PLC0415

        return SqlSchemas(self.database)

    @cached_property
    def commits(self) -> "SqlCommits":  # noqa: D102
        from infra.catalog.log.commits import SqlCommits  # noqa: PLC0415

        return SqlCommits(self.database)

    @cached_property
    def identities(self) -> "SqlIdentities":  # noqa: D102
        from infra.catalog.identity.identities import SqlIdentities  # noqa: PLC0415

        return SqlIdentities(self.database)

    @cached_property
    def inspection(self) -> "SqlInspection":  # noqa: D102
        from infra.catalog.log.inspection import SqlInspection  # noqa: PLC0415

        return SqlInspection(self.database)

    @cached_property
    def fences(self) -> "SqlFences":  # noqa: D102
        from infra.catalog.ownership.fences import SqlFences  # noqa: PLC0415

        return SqlFences(self.database)

    @cached_property
    def audit_log(self) -> "SqlAuditLog":  # noqa: D102
        from infra.catalog.audits import SqlAuditLog  # noqa: PLC0415

        return SqlAuditLog(self.database)

    @cached_property
    def deletions(self) -> "SqlDeletions":  # noqa: D102
        from infra.catalog.deletion.deletions import SqlDeletions  # noqa: PLC0415

        return SqlDeletions(self.database)

    @cached_property
    def phase_one(self) -> "SqlPhaseOne":  # noqa: D102
        from infra.catalog.deletion.phase_one import SqlPhaseOne  # noqa: PLC0415

        return SqlPhaseOne(self.database, registration_timeout_s=self._registration_timeout_s)

    @cached_property
    def upkeep(self) -> "SqlUpkeep":  # noqa: D102
        from infra.catalog.deletion.upkeep import SqlUpkeep  # noqa: PLC0415

        return SqlUpkeep(self.database, registration_timeout_s=self._registration_timeout_s)

    @cached_property
    def offloads(self) -> "SqlOffloads":  # noqa: D102
        from infra.catalog.offload.offloads import SqlOffloads  # noqa: PLC0415

        return SqlOffloads(self.database)


@contextmanager
def open_catalog(url: str, *, registration_timeout_s: float = 600) -> Iterator[SqlCatalog]:
    """Open a catalog of this build's version, and close it at the end; see `Database` and `SqlCatalog`.

    Raises:
        CatalogVersionMismatch: The catalog is not of this build's version.
        InvalidInput: A database URL that cannot be used.
        ServiceFailed: There is no such file, or what stands there is no catalog.
        StoreUnavailable: The database does not answer.
    """
    database = Database(url)
    try:
        check_version(database)
        yield SqlCatalog(database, registration_timeout_s=registration_timeout_s)
    finally:
        database.close()
