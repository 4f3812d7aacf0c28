"""The catalog over one database.

Each part is imported at its first use, because an import of all parts costs as much CPU as a command.
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

    from logstore.catalog.audit_log import AuditLogWriter
    from logstore.catalog.cursors.cursors import Cursors
    from logstore.catalog.delayed.delayed_index import DelayedIndex
    from logstore.catalog.deletion.phase_one import PhaseOne
    from logstore.catalog.deletion.phase_two_queue import PhaseTwoQueue
    from logstore.catalog.deletion.queue_upkeep import PhaseTwoQueueUpkeep
    from logstore.catalog.identity import SqlCatalogIdentity
    from logstore.catalog.log.component_ledgers import LedgersOfAllComponents, SchemaVersions
    from logstore.catalog.log.group_commit import GroupCommits
    from logstore.catalog.log.ledger_inspection import LedgerInspection
    from logstore.catalog.log.message_ledgers import MessageLedgers
    from logstore.catalog.log.topics import Topics
    from logstore.catalog.offload.tiered_copies import Offloads
    from logstore.catalog.ownership.fences import Fences
    from logstore.catalog.reconciliation.cluster_journal import ClusterJournal
    from logstore.catalog.reconciliation.reconciliation_runs import ReconciliationRuns
    from logstore.catalog.records.catalog_adoption import CatalogAdoption
    from logstore.catalog.records.outbox import RecordOutbox
    from logstore.catalog.records.tombstone_rows import Tombstones
    from logstore.catalog.transactions.buffer_snapshots import TransactionBufferSnapshots
    from logstore.catalog.transactions.sql_transactions import Transactions


def _declare_part(
    module: str,
    name: str,
    *settings: str,
    while_adopting: bool = False,
) -> Any:  # noqa: ANN401 - the attribute's annotation says it
    """Declare a part that is built at its first use. `settings` are attributes of `Catalog` that the part needs.

    Only a part with `while_adopting` may write to a rebuilt catalog before adoption is complete.
    """

    def build(catalog: "Catalog") -> object:
        adapter = getattr(import_module(f"logstore.catalog.{module}"), name)
        database = catalog.database if while_adopting else catalog.guarded_database
        return adapter(database, **{setting: getattr(catalog, setting) for setting in settings})

    return cached_property(build)


class Catalog:
    """All parts of the catalog. Each service gets only the parts that it needs. The caller has checked the version.

    A newborn ledger older than `registration_timeout_s` counts as abandoned.
    """

    topics: "Topics" = _declare_part("log.topics", "Topics")
    ledgers: "MessageLedgers" = _declare_part("log.message_ledgers", "MessageLedgers")
    components: "LedgersOfAllComponents" = _declare_part("log.component_ledgers", "LedgersOfAllComponents")
    cursors: "Cursors" = _declare_part("cursors.cursors", "Cursors")
    schemas: "SchemaVersions" = _declare_part("log.component_ledgers", "SchemaVersions")
    commits: "GroupCommits" = _declare_part("log.group_commit", "GroupCommits")
    adoption: "CatalogAdoption" = _declare_part("records.catalog_adoption", "CatalogAdoption", while_adopting=True)
    identities: "SqlCatalogIdentity" = _declare_part("identity", "SqlCatalogIdentity", while_adopting=True)
    inspection: "LedgerInspection" = _declare_part("log.ledger_inspection", "LedgerInspection")
    fences: "Fences" = _declare_part("ownership.fences", "Fences")
    audit_log: "AuditLogWriter" = _declare_part("audit_log", "AuditLogWriter")
    deletions: "PhaseTwoQueue" = _declare_part("deletion.phase_two_queue", "PhaseTwoQueue")
    phase_one: "PhaseOne" = _declare_part("deletion.phase_one", "PhaseOne", "registration_timeout_s")
    upkeep: "PhaseTwoQueueUpkeep" = _declare_part(
        "deletion.queue_upkeep", "PhaseTwoQueueUpkeep", "registration_timeout_s"
    )
    offloads: "Offloads" = _declare_part("offload.tiered_copies", "Offloads")
    reconciliation: "ReconciliationRuns" = _declare_part("reconciliation.reconciliation_runs", "ReconciliationRuns")
    cluster_journal: "ClusterJournal" = _declare_part("reconciliation.cluster_journal", "ClusterJournal")
    records: "RecordOutbox" = _declare_part("records.outbox", "RecordOutbox", while_adopting=True)
    tombstones: "Tombstones" = _declare_part("records.tombstone_rows", "Tombstones")
    transactions: "Transactions" = _declare_part("transactions.sql_transactions", "Transactions")
    delayed: "DelayedIndex" = _declare_part("delayed.delayed_index", "DelayedIndex")
    transaction_snapshots: "TransactionBufferSnapshots" = _declare_part(
        "transactions.buffer_snapshots", "TransactionBufferSnapshots"
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
def open_catalog(url: str, *, registration_timeout_s: float = 600) -> Iterator[Catalog]:
    """Open a catalog while the block runs, if it has the version of this build.

    Raises:
        CatalogVersionMismatch: The catalog has another version.
        InvalidInput: The database URL cannot be used.
        ServiceFailed: The file does not exist, or the database is not a catalog.
        StoreUnavailable: The database does not answer.
    """
    with closing(Database(url)) as database:
        require_current_version(database)
        yield Catalog(database, registration_timeout_s=registration_timeout_s)
