"""The catalog: SQLModel tables, Alembic migrations and set-based SQL on SQLite and PostgreSQL."""

from infra.catalog.catalog import SqlCatalog, open_catalog
from infra.catalog.engine.connections import mask_passwords
from infra.catalog.engine.database import Database
from infra.catalog.engine.versions import check_version, upgrade, version

__all__ = ["Database", "SqlCatalog", "check_version", "mask_passwords", "open_catalog", "upgrade", "version"]
