"""Whether a catalog can be used: its schema's version, which Alembic raises, and whether its database takes writes."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from infra.catalog.engine.connections import shown_url
from infra.catalog.engine.database import Database
from logstore.errors import CatalogVersionMismatch, ServiceFailed
from logstore.ownership import check_bundle_count

if TYPE_CHECKING:
    from alembic.config import Config

VERSIONS: Final = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012")
"""Every version there was, ascending; the last is this build's. Asking Alembic instead would cost 0.4 s of CPU."""

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
        ServiceFailed: What stands there is no catalog; nothing was changed.
        StoreUnavailable: No database answers.
    """
    check_bundle_count(bundles)
    if database.is_sqlite and not database.is_absent:
        version(database)  # to open a file for writing changes it: first see that it is ours
    database.make_folder()
    database.write(partial(_upgrade, bundles=bundles))


def _upgrade(connection: Connection, *, bundles: int) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    before = _version(connection)
    if before not in {None, *VERSIONS}:
        raise _mismatch(before)
    from alembic import command  # noqa: PLC0415 - start-up time

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if before is None:
        connection.execute(text("UPDATE catalog SET bundles = :bundles"), {"bundles": bundles})


def check_version(database: Database) -> None:
    """Require exactly this build's version, and change nothing.

    Raises:
        CatalogVersionMismatch: The catalog is empty, older, or newer.
        ServiceFailed: There is no such file, or what stands there is no catalog.
        StoreUnavailable: No database answers.
    """
    if database.is_absent:
        problem = f"there is no file {database.engine.url.database}"
        advice = "run `sexton up` or `sexton catalog upgrade`, or correct SEXTON_DATABASE_URL"
        raise ServiceFailed("database", problem, advice=advice)
    found = version(database)
    if found != VERSIONS[-1]:
        raise _mismatch(found)


def version(database: Database) -> str | None:
    """The catalog's version, or None when it has no tables yet; see `check_version` for what is raised."""
    with database.only_looking() as looking:
        return looking.read(_version)


def _mismatch(version: str | None) -> CatalogVersionMismatch:
    found = version or "an empty database"
    older = version is None or version in VERSIONS
    advice = (
        "run `sexton up`, or `sexton catalog upgrade`" if older else "it was written by a newer build: run that one"
    )
    return CatalogVersionMismatch(f"catalog version: expected {VERSIONS[-1]}, found {found}; {advice}")


def _version(connection: Connection) -> str | None:
    """The version; None where there is nothing at all."""
    tables = set(inspect(connection).get_table_names())
    if not tables:
        return None
    if {"alembic_version", "catalog"} <= tables:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        if found is not None:
            return str(found)
    shown = shown_url(connection.engine.url.render_as_string())
    problem = f"{shown} holds tables that are no catalog's"
    raise ServiceFailed("database", problem, advice="nothing was changed; correct SEXTON_DATABASE_URL")


def _config() -> "Config":
    from alembic.config import Config  # noqa: PLC0415 - start-up time

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[1] / "migrations"))
    return config


_PATIENCE_S: Final = 5.0
_DELETED: Final = " (deleted)"  # what Linux adds to the name of a file that is open and has no name any more


def check_takes_writes(database: Database) -> None:
    """Begin a transaction that writes, and change nothing.

    Raises:
        StoreUnavailable: No database answers, it can be read only, or its disk is full.
        CatalogBusy: Another one held it for five seconds.
    """
    database.write(_lock if not database.is_sqlite else lambda _: None, patience_s=_PATIENCE_S)


def _lock(connection: Connection) -> None:
    """Lock a row such that no other writer waits for it; a standby refuses this."""
    connection.execute(text("SELECT 1 FROM catalog FOR KEY SHARE"))


def lost_write_ahead(database: Database, pids: Collection[int]) -> ServiceFailed | None:
    """The error of a SQLite write-ahead file that was removed while the database was in use; None where all is well.

    Ask before anything opens the database: that puts an empty file in the place of the one that is gone.

    Args:
        database: The catalog's.
        pids: Processes that may have it open; of these Linux tells files that are open and gone.
    """
    if not database.is_sqlite:
        return None
    path = Path(str(database.engine.url.database)).absolute()
    log, index = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    holders = sorted(pid for pid in pids if f"{log.resolve()}{_DELETED}" in _open_files(pid))
    if not holders and (log.exists() or not index.exists()):  # SQLite makes `-wal` first, and removes it last
        return None
    by = f" under process {', '.join(map(str, holders))}" if holders else ""
    advice = "stop all workers (`sexton down`), look whether the last changes are there, and restore a backup if not"
    return ServiceFailed("database", f"its write-ahead file {log} was removed{by}", advice=advice)


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it ended, it is another user's, or the system is not Linux
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())
