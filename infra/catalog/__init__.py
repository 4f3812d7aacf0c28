"""The catalog: SQLModel tables, Alembic migrations and set-based SQL on SQLite and PostgreSQL."""

from infra.catalog.engine.catalog_version import check_version, upgrade, version
from infra.catalog.engine.database import Database
from infra.catalog.engine.database_connections import mask_passwords
from infra.catalog.sql_catalog import SqlCatalog, open_catalog

__all__ = ["Database", "SqlCatalog", "check_version", "mask_passwords", "open_catalog", "upgrade", "version"]
