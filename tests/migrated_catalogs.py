"""Catalogs copied from one that was migrated: a copy takes a millisecond, the migrations a third of a second of CPU."""

import tempfile
from functools import cache
from pathlib import Path

from logstore.catalog import Database, migrate_catalog
from logstore.catalog.engine.catalog_version import DEFAULT_BUNDLES


def migrate_or_copy_catalog(database: Database, *, bundles: int = DEFAULT_BUNDLES) -> None:
    """As `migrate_catalog`; a file that is absent becomes a copy. Every copy bears the same catalog id."""
    if not database.is_sqlite or not database.is_absent:
        migrate_catalog(database, bundles=bundles)
        return
    database.create_folder()
    create_migrated_sqlite(Path(str(database.engine.url.database)), bundles=bundles)


def create_migrated_sqlite(path: Path, *, bundles: int = DEFAULT_BUNDLES) -> str:
    """The URL of an empty catalog that is made there."""
    path.write_bytes(_read_migrated_sqlite(bundles))
    return f"sqlite:///{path}"


@cache
def _read_migrated_sqlite(bundles: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.db"
        database = Database(f"sqlite:///{path}")
        migrate_catalog(database, bundles=bundles)
        database.close()
        return path.read_bytes()
