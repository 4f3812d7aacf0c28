"""The catalog as one value: the ports of `logstore.ports.catalog` over one database.

A port's module is imported when the port is first asked for: a command uses two or three of them, and all of them cost
as much CPU as the rest of it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from infra.catalog.engine.database import Database
from infra.catalog.engine.versions import check_version

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from infra.catalog.audits import SqlAuditLog
    from infra.catalog.cursors.cursors import SqlCursors
    from infra.catalog.delayed.index import SqlDelayedIndex
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
    from infra.catalog.reconciliation.reconciliation import SqlReconciliation
    from infra.catalog.records.adopting import SqlAdoption
    from infra.catalog.records.outbox import SqlRecords
    from infra.catalog.records.tombstone_rows import SqlTombstones
    from infra.catalog.transactions.snapshots import SqlTransactionSnapshots
    from infra.catalog.transactions.transactions import SqlTransactions


def _port(
    module: str,
    name: str,
    *settings: str,
    while_adopting: bool = False,
) -> Any:  # noqa: ANN401 - the attribute's annotation says it
    """A port that is made when it is first asked for, with these settings of the catalog.

    Nothing but what completes a rebuilt catalog writes to one that is not complete (`while_adopting`).
    """

    def opened(catalog: "SqlCatalog") -> object:
        adapter = getattr(import_module(f"infra.catalog.{module}"), name)
        database = catalog.database if while_adopting else catalog.complete
        return adapter(database, **{setting: getattr(catalog, setting) for setting in settings})

    return cached_property(opened)


class SqlCatalog:
    """`Catalog` in SQL."""

    topics: "SqlTopics" = _port("log.topics", "SqlTopics")
    ledgers: "SqlLedgers" = _port("log.ledgers", "SqlLedgers")
    components: "SqlComponents" = _port("log.components", "SqlComponents")
    cursors: "SqlCursors" = _port("cursors.cursors", "SqlCursors")
    schemas: "SqlSchemas" = _port("log.schemas", "SqlSchemas")
    commits: "SqlCommits" = _port("log.commits", "SqlCommits")
    adoption: "SqlAdoption" = _port("records.adopting", "SqlAdoption", while_adopting=True)
    identities: "SqlIdentities" = _port("identity.identities", "SqlIdentities", while_adopting=True)
    inspection: "SqlInspection" = _port("log.inspection", "SqlInspection")
    fences: "SqlFences" = _port("ownership.fences", "SqlFences")
    audit_log: "SqlAuditLog" = _port("audits", "SqlAuditLog")
    deletions: "SqlDeletions" = _port("deletion.deletions", "SqlDeletions")
    phase_one: "SqlPhaseOne" = _port("deletion.phase_one", "SqlPhaseOne", "registration_timeout_s")
    upkeep: "SqlUpkeep" = _port("deletion.upkeep", "SqlUpkeep", "registration_timeout_s")
    offloads: "SqlOffloads" = _port("offload.offloads", "SqlOffloads")
    reconciliation: "SqlReconciliation" = _port("reconciliation.reconciliation", "SqlReconciliation")
    records: "SqlRecords" = _port("records.outbox", "SqlRecords", while_adopting=True)
    tombstones: "SqlTombstones" = _port("records.tombstone_rows", "SqlTombstones")
    transactions: "SqlTransactions" = _port("transactions.transactions", "SqlTransactions")
    delayed: "SqlDelayedIndex" = _port("delayed.index", "SqlDelayedIndex")
    transaction_snapshots: "SqlTransactionSnapshots" = _port("transactions.snapshots", "SqlTransactionSnapshots")

    def __init__(self, database: Database, *, registration_timeout_s: float = 600) -> None:
        """Take the database; its schema is checked by `check_version`, not here.

        Args:
            database: SQLite or PostgreSQL.
            registration_timeout_s: A newborn ledger older than this was abandoned by its creator.
        """
        self.database = database
        self.complete = database.with_guard(_require_ready)  # which is refused while the catalog is not complete
        self.registration_timeout_s = registration_timeout_s


def _require_ready(connection: "Connection") -> None:
    from infra.catalog.records.log_rows import require_ready  # noqa: PLC0415 - start-up time

    require_ready(connection)


@contextmanager
def open_catalog(url: str, *, registration_timeout_s: float = 600) -> Iterator[SqlCatalog]:
    """Open a catalog of this build's version, and close it at the end; see `Database` and `SqlCatalog`.

    Raises:
        CatalogVersionMismatch: The catalog is not of this build's version.
        InvalidInput: A database URL that cannot be used.
        ServiceFailed: There is no such file, or what stands there is no catalog.
        StoreUnavailable: The database does not answer.
    """
    with closing(Database(url)) as database:
        check_version(database)
        yield SqlCatalog(database, registration_timeout_s=registration_timeout_s)
