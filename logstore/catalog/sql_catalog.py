"""Catalog in SQL: the ports of `logstore.ports.catalog` over one database.

Each port is imported at its first use, because an import of all ports costs as much CPU as a command.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from logstore.catalog.engine.catalog_version import require_current_version
from logstore.catalog.engine.database import Database

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from logstore.catalog.audit_log import SqlAuditLogWriter
    from logstore.catalog.cursors.cursors import SqlCursors
    from logstore.catalog.delayed.delayed_index import SqlDelayedIndex
    from logstore.catalog.deletion.phase_one import SqlPhaseOne
    from logstore.catalog.deletion.phase_two_queue import SqlPhaseTwoQueue
    from logstore.catalog.deletion.queue_upkeep import SqlPhaseTwoQueueUpkeep
    from logstore.catalog.identity.catalog_identity import SqlCatalogIdentity
    from logstore.catalog.log.component_ledgers import SqlLedgersOfAllComponents
    from logstore.catalog.log.group_commit import SqlGroupCommits
    from logstore.catalog.log.ledger_inspection import SqlLedgerInspection
    from logstore.catalog.log.message_ledgers import SqlMessageLedgers
    from logstore.catalog.log.schema_versions import SqlSchemaVersions
    from logstore.catalog.log.topics import SqlTopics
    from logstore.catalog.offload.tiered_copies import SqlOffloads
    from logstore.catalog.ownership.fences import SqlFences
    from logstore.catalog.reconciliation.cluster_journal import SqlClusterJournal
    from logstore.catalog.reconciliation.reconciliation_runs import SqlReconciliationRuns
    from logstore.catalog.records.catalog_adoption import SqlCatalogAdoption
    from logstore.catalog.records.outbox import SqlRecordOutbox
    from logstore.catalog.records.tombstone_rows import SqlTombstones
    from logstore.catalog.transactions.buffer_snapshots import SqlTransactionBufferSnapshots
    from logstore.catalog.transactions.sql_transactions import SqlTransactions


def _declare_port(
    module: str,
    name: str,
    *settings: str,
    while_adopting: bool = False,
) -> Any:  # noqa: ANN401 - the attribute's annotation says it
    """Declare a port that is built at its first use. `settings` are attributes of `SqlCatalog` that the port needs.

    Only a port with `while_adopting` may write to a rebuilt catalog before adoption is complete.
    """

    def build(catalog: "SqlCatalog") -> object:
        adapter = getattr(import_module(f"logstore.catalog.{module}"), name)
        database = catalog.database if while_adopting else catalog.guarded_database
        return adapter(database, **{setting: getattr(catalog, setting) for setting in settings})

    return cached_property(build)


class SqlCatalog:
    """`Catalog` in SQL. The caller has checked the catalog's version.

    A newborn ledger older than `registration_timeout_s` counts as abandoned.
    """

    topics: "SqlTopics" = _declare_port("log.topics", "SqlTopics")
    ledgers: "SqlMessageLedgers" = _declare_port("log.message_ledgers", "SqlMessageLedgers")
    components: "SqlLedgersOfAllComponents" = _declare_port("log.component_ledgers", "SqlLedgersOfAllComponents")
    cursors: "SqlCursors" = _declare_port("cursors.cursors", "SqlCursors")
    schemas: "SqlSchemaVersions" = _declare_port("log.schema_versions", "SqlSchemaVersions")
    commits: "SqlGroupCommits" = _declare_port("log.group_commit", "SqlGroupCommits")
    adoption: "SqlCatalogAdoption" = _declare_port(
        "records.catalog_adoption", "SqlCatalogAdoption", while_adopting=True
    )
    identities: "SqlCatalogIdentity" = _declare_port(
        "identity.catalog_identity", "SqlCatalogIdentity", while_adopting=True
    )
    inspection: "SqlLedgerInspection" = _declare_port("log.ledger_inspection", "SqlLedgerInspection")
    fences: "SqlFences" = _declare_port("ownership.fences", "SqlFences")
    audit_log: "SqlAuditLogWriter" = _declare_port("audit_log", "SqlAuditLogWriter")
    deletions: "SqlPhaseTwoQueue" = _declare_port("deletion.phase_two_queue", "SqlPhaseTwoQueue")
    phase_one: "SqlPhaseOne" = _declare_port("deletion.phase_one", "SqlPhaseOne", "registration_timeout_s")
    upkeep: "SqlPhaseTwoQueueUpkeep" = _declare_port(
        "deletion.queue_upkeep", "SqlPhaseTwoQueueUpkeep", "registration_timeout_s"
    )
    offloads: "SqlOffloads" = _declare_port("offload.tiered_copies", "SqlOffloads")
    reconciliation: "SqlReconciliationRuns" = _declare_port(
        "reconciliation.reconciliation_runs", "SqlReconciliationRuns"
    )
    cluster_journal: "SqlClusterJournal" = _declare_port("reconciliation.cluster_journal", "SqlClusterJournal")
    records: "SqlRecordOutbox" = _declare_port("records.outbox", "SqlRecordOutbox", while_adopting=True)
    tombstones: "SqlTombstones" = _declare_port("records.tombstone_rows", "SqlTombstones")
    transactions: "SqlTransactions" = _declare_port("transactions.sql_transactions", "SqlTransactions")
    delayed: "SqlDelayedIndex" = _declare_port("delayed.delayed_index", "SqlDelayedIndex")
    transaction_snapshots: "SqlTransactionBufferSnapshots" = _declare_port(
        "transactions.buffer_snapshots", "SqlTransactionBufferSnapshots"
    )

    def __init__(self, database: Database, *, registration_timeout_s: float = 600) -> None:
        self.database = database
        self.guarded_database = database.with_guard(
            _require_ready_catalog
        )  # refuses writes while the catalog is not complete
        self.registration_timeout_s = registration_timeout_s


def _require_ready_catalog(connection: "Connection") -> None:
    from logstore.catalog.records.record_log_row import require_ready_catalog  # noqa: PLC0415 - start-up time

    require_ready_catalog(connection)


@contextmanager
def open_catalog(url: str, *, registration_timeout_s: float = 600) -> Iterator[SqlCatalog]:
    """Open a catalog while the block runs, if it has the version of this build.

    Raises:
        CatalogVersionMismatch: The catalog has another version.
        InvalidInput: The database URL cannot be used.
        ServiceFailed: The file does not exist, or the database is not a catalog.
        StoreUnavailable: The database does not answer.
    """
    with closing(Database(url)) as database:
        require_current_version(database)
        yield SqlCatalog(database, registration_timeout_s=registration_timeout_s)
