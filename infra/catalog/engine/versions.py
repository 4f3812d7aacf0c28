"""The schema's version: raised by Alembic, checked before use."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, inspect, text

from infra.catalog.engine.connections import shown_url
from infra.catalog.engine.database import Database
from logstore.errors import CatalogVersionMismatch, ServiceFailed
from logstore.ownership import check_bundles

if TYPE_CHECKING:
    from alembic.config import Config

VERSIONS: Final = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011")
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
    check_bundles(bundles)
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
