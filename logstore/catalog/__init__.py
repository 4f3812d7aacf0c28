"""The catalog: SQLModel tables, Alembic migrations and set-based SQL on SQLite and PostgreSQL.

Most methods are one transaction, which locks the rows on which its result depends. A method that writes may be called
again after a crash or an unknown outcome. Its docstring says why a repetition is harmless. Every method may raise
`CatalogBusy` (contention) and `StoreUnavailable` (no connection).
"""

from logstore.catalog.engine.catalog_version import migrate_catalog, read_catalog_version, require_current_version
from logstore.catalog.engine.database import Database
from logstore.catalog.engine.database_connections import mask_passwords
from logstore.catalog.sql_catalog import Catalog, open_catalog

__all__ = [
    "Catalog",
    "Database",
    "mask_passwords",
    "migrate_catalog",
    "open_catalog",
    "read_catalog_version",
    "require_current_version",
]
