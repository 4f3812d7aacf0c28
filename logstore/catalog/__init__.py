"""The catalog: SQLModel tables, Alembic migrations and set-based SQL on SQLite and PostgreSQL."""

from logstore.catalog.engine.catalog_version import migrate_catalog, read_catalog_version, require_current_version
from logstore.catalog.engine.database import Database
from logstore.catalog.engine.database_connections import mask_passwords
from logstore.catalog.sql_catalog import SqlCatalog, open_catalog

__all__ = [
    "Database",
    "SqlCatalog",
    "mask_passwords",
    "migrate_catalog",
    "open_catalog",
    "read_catalog_version",
    "require_current_version",
]
