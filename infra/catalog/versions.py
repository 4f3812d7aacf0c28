"""The schema's version: raised by Alembic, checked before use."""

from functools import partial
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from infra.catalog.database import Database
from logstore.errors import CatalogVersionMismatch
from logstore.ownership import check_bundles

_MIGRATIONS = Path(__file__).parent / "migrations"
DEFAULT_BUNDLES: Final = 64  # what catalogs from before bundles have
_LOCK = 0x5E870  # any number of our own: PostgreSQL's advisory lock around a migration


def upgrade(database: Database, *, bundles: int = DEFAULT_BUNDLES) -> None:
    """Bring the catalog to this build's version, from empty or from any earlier one; repeating it is harmless.

    Args:
        database: The catalog's.
        bundles: How many a new catalog has, for ever; one that exists keeps what it has.

    Raises:
        InvalidInput: A number of bundles that no catalog can have.
        CatalogVersionMismatch: It was written by a newer build.
    """
    check_bundles(bundles)
    database.make_folder()
    database.write(partial(_upgrade, bundles=bundles))


def _upgrade(connection: Connection, *, bundles: int) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    before = _version(connection)
    if before not in {None, *_known()}:
        raise _mismatch(before)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if before is None:
        connection.execute(text("UPDATE catalog SET bundles = :bundles"), {"bundles": bundles})


def check_version(database: Database) -> None:
    """Require exactly this build's version.

    Raises:
        CatalogVersionMismatch: The catalog is empty, older, or newer.
    """
    if database.is_absent:
        raise _mismatch(None)

    def work(connection: Connection) -> None:
        found = _version(connection)
        if found != _head():
            raise _mismatch(found)

    database.read(work)


def version(database: Database) -> str | None:
    """The catalog's version, or None when it has no tables yet."""
    return database.read(_version)


def _mismatch(version: str | None) -> CatalogVersionMismatch:
    found = version or "an empty database"
    advice = (
        "run `sexton up`, or `sexton catalog upgrade`"
        if found in {*_known(), "an empty database"}
        else ("it was written by a newer build: run that one")
    )
    return CatalogVersionMismatch(f"catalog version: expected {_head()}, found {found}; {advice}")


def _version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config


def _head() -> str:
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
