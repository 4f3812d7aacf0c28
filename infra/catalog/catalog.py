"""The catalog as one value: the ports of `logstore.ports.catalog` over one database."""

from infra.catalog.audits import SqlAuditLog
from infra.catalog.cursors.cursors import SqlCursors
from infra.catalog.deletion.deletions import SqlDeletions
from infra.catalog.deletion.redrives import SqlRedrives
from infra.catalog.deletion.sweeps import SqlSweeps
from infra.catalog.deletion.topic_deletions import SqlTopicDeletions
from infra.catalog.deletion.topic_trims import SqlTopicTrims
from infra.catalog.engine.database import Database
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
        """Join the parts; the database's schema is checked by `check_version`, not here.

        Args:
            database: SQLite or PostgreSQL.
            registration_timeout_s: A newborn ledger older than this was abandoned by its creator.
        """
        self.database = database
        self.topics = SqlTopics(database)
        self.ledgers = SqlLedgers(database)
        self.components = SqlComponents(database)
        self.cursors = SqlCursors(database)
        self.schemas = SqlSchemas(database)
        self.commits = SqlCommits(database)
        self.identities = SqlIdentities(database)
        self.inspection = SqlInspection(database)
        self.fences = SqlFences(database)
        self.audit_log = SqlAuditLog(database)
        self.deletions = SqlDeletions(database, registration_timeout_s=registration_timeout_s)
        self.topic_deletions = SqlTopicDeletions(database)
        self.sweeps = SqlSweeps(database, registration_timeout_s=registration_timeout_s)
        self.redrives = SqlRedrives(database)
        self.offloads = SqlOffloads(database)
        self.topic_trims = SqlTopicTrims(database, registration_timeout_s=registration_timeout_s)
