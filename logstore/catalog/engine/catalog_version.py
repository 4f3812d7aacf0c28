"""The catalog's version, its upgrades by Alembic, and checks that a catalog can be used."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from logstore.catalog.engine.database import Database
from logstore.catalog.engine.database_connections import mask_passwords
from logstore.errors import CatalogVersionMismatch, ServiceFailed
from logstore.ownership import check_bundle_count

if TYPE_CHECKING:
    from alembic.config import Config

VERSIONS: Final = ("0001", "0002")
"""The catalog's versions, ascending, up to the version of this build. Alembic would need 0.4 s of CPU to find them."""

DEFAULT_BUNDLES: Final = 64
_MIGRATION_LOCK_KEY = 0x5E870  # arbitrary key of PostgreSQL's advisory lock around a migration


def migrate_catalog(database: Database, *, bundles: int = DEFAULT_BUNDLES) -> None:
    """Create the catalog, or upgrade it from any earlier version to this build's version. Idempotent.

    `bundles` applies only to a new catalog.

    Raises:
        InvalidInput: The number of bundles is not allowed.
        CatalogVersionMismatch: A newer build has written the catalog.
        ServiceFailed: The database is not a catalog. Nothing was changed.
        StoreUnavailable: The database does not answer.
    """
    check_bundle_count(bundles)
    if database.is_sqlite and not database.is_absent:
        read_catalog_version(database)  # check that the file is a catalog before an open for writing changes it
    database.create_folder()
    database.write(partial(_run_migrations, bundles=bundles))


def _run_migrations(connection: Connection, *, bundles: int) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK_KEY})
    before = _read_stored_version(connection)
    if before not in {None, *VERSIONS}:
        raise _version_mismatch_error(before)
    from alembic import command  # noqa: PLC0415 - start-up time

    config = _build_alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if before is None:
        connection.execute(text("UPDATE catalog SET bundles = :bundles"), {"bundles": bundles})


def require_current_version(database: Database) -> None:
    """Require this build's version of the catalog. Nothing changes.

    Raises:
        CatalogVersionMismatch: The catalog is empty, older, or newer.
        ServiceFailed: The file does not exist, or the database is not a catalog.
        StoreUnavailable: The database does not answer.
    """
    if database.is_absent:
        problem = f"there is no file {database.engine.url.database}"
        advice = "run `sexton up` or `sexton catalog upgrade`, or correct SEXTON_DATABASE_URL"
        raise ServiceFailed("database", problem, advice=advice)
    stored_version = read_catalog_version(database)
    if stored_version != VERSIONS[-1]:
        raise _version_mismatch_error(stored_version)


def read_catalog_version(database: Database) -> str | None:
    """Return the catalog's version, or `None` for a database without tables."""
    with database.open_read_only() as reader:
        return reader.read(_read_stored_version)


def _version_mismatch_error(version: str | None) -> CatalogVersionMismatch:
    description = version or "an empty database"
    is_older = version is None or version in VERSIONS
    advice = (
        "run `sexton up`, or `sexton catalog upgrade`" if is_older else "it was written by a newer build: run that one"
    )
    return CatalogVersionMismatch(f"catalog version: expected {VERSIONS[-1]}, found {description}; {advice}")


def _read_stored_version(connection: Connection) -> str | None:
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return None
    if {"alembic_version", "catalog"} <= tables:
        stored_version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        if stored_version is not None:
            return str(stored_version)
    masked_url = mask_passwords(connection.engine.url.render_as_string())
    problem = f"{masked_url} holds tables that are no catalog's"
    raise ServiceFailed("database", problem, advice="nothing was changed; correct SEXTON_DATABASE_URL")


def _build_alembic_config() -> "Config":
    from alembic.config import Config  # noqa: PLC0415 - start-up time

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config


_PATIENCE_S: Final = 5.0
_DELETED_SUFFIX: Final = " (deleted)"  # Linux appends it to the path of an open file that was removed


def require_writable_catalog(database: Database) -> None:
    """Check that the catalog accepts writes. The check is a writing transaction without changes.

    Raises:
        StoreUnavailable: The database does not answer, is read-only, or its disk is full.
        CatalogBusy: Another transaction blocked the check for five seconds.
    """
    database.write(_lock_catalog_row if not database.is_sqlite else lambda _: None, patience_s=_PATIENCE_S)


def _lock_catalog_row(connection: Connection) -> None:
    """Lock the catalog's row without blocking other writers. A standby server refuses this lock."""
    connection.execute(text("SELECT 1 FROM catalog FOR KEY SHARE"))


def find_lost_write_ahead_file(database: Database, pids: Collection[int]) -> ServiceFailed | None:
    """Return an error if SQLite's write-ahead file was removed during its use. `pids` are processes that may use it.

    Call this before anything opens the database, because an open creates an empty write-ahead file.
    """
    if not database.is_sqlite:
        return None
    path = Path(str(database.engine.url.database)).absolute()
    log, index = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    holders = sorted(pid for pid in pids if f"{log.resolve()}{_DELETED_SUFFIX}" in _list_open_files(pid))
    if not holders and (log.exists() or not index.exists()):  # SQLite creates `-wal` first and removes it last
        return None
    suffix = f" under process {', '.join(map(str, holders))}" if holders else ""
    advice = "stop all workers (`sexton down`), look whether the last changes are there, and restore a backup if not"
    return ServiceFailed("database", f"its write-ahead file {log} was removed{suffix}", advice=advice)


def _list_open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # the process ended or belongs to another user, or the system is not Linux
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())
