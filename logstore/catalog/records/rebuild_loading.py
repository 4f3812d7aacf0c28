"""Load of a rebuilt catalog in SQL: a bulk load into an empty database, complete or not at all.

On PostgreSQL the load is one transaction that locks the tables. On SQLite the load writes a new file. The file gets its
final name after it is synced to disk. Triggers are disabled, and indexes are built afterwards.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from sqlalchemy import URL, Connection, func, select

from logstore.catalog import tables as t
from logstore.catalog.cursors.cursor_rows import compile_releases_restart
from logstore.catalog.engine.arrow_bulk import ArrowWriter, open_arrow_writer, to_arrow_type
from logstore.catalog.engine.catalog_version import migrate_catalog, read_catalog_version, require_current_version
from logstore.catalog.engine.database import Database
from logstore.catalog.engine.database_connections import mask_passwords, parse_database_url
from logstore.catalog.records.record_log_row import ADOPTING, REPLICA, mark_rebuild_complete, read_log_row
from logstore.catalog.records.recorded_tables import LOADED_TABLES, RECORDED_TABLES
from logstore.errors import PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.catalog.records import RebuildTargetContent, RebuiltCatalogStart
from logstore.records.manifest import Manifest
from logstore.records.rebuild_job import RowFilesFolder
from logstore.transactions.transaction_ids_and_states import MAX_COORDINATORS

# Every writer uses one of these tables. Locks on them stop all work that begins during the load.
_LOCKED_TABLES: Final = ("topic", "ledger", "pending_deletion", "record_log", "catalog")
_TABLE_NAMES: Final = tuple(table.name for table in LOADED_TABLES)


class RebuildDatabase:
    """Database of a rebuilt catalog. All rows are loaded, or none."""

    def __init__(self, database_url: str) -> None:
        self._url, self._parsed_url = database_url, parse_database_url(database_url)

    def read_target(self) -> RebuildTargetContent:
        """Return the content of the database. This changes nothing.

        Raises:
            PreconditionFailed: The database has rows that no unfinished rebuild has loaded.
            CatalogVersionMismatch: Another build created the database.
            ServiceFailed: The database is no catalog.
            StoreUnavailable: The database does not answer.
        """
        with closing(Database(self._url, pool_size=1)) as database:
            if database.is_absent or read_catalog_version(database) is None:
                return RebuildTargetContent()
            require_current_version(database)
            with database.open_read_only() as read_only:
                return read_only.read(self._read_target)

    def _read_target(self, connection: Connection) -> RebuildTargetContent:
        row = read_log_row(connection)
        if row.rebuild and row.state != REPLICA:
            return RebuildTargetContent(rebuild=row.rebuild, state=row.state)
        if content := describe_database_content(connection):
            raise self._not_empty_error(content)
        return RebuildTargetContent()

    def _not_empty_error(self, content: str) -> PreconditionFailed:
        masked_url = mask_passwords(self._url)
        return PreconditionFailed(f"database {masked_url}: expected an empty one to rebuild into, found {content}")

    def load_rows(self, load: RebuiltCatalogStart, files: RowFilesFolder, proceed: Callable[[], None]) -> None:
        """Load the rows into the empty database. Afterwards the catalog is ADOPTING. Idempotent.

        `proceed` is called often. If `proceed` raises, the load is undone. Raise the errors of `read_target`.
        """
        if self.read_target().rebuild == load.rebuild:
            return
        if self._parsed_url.get_backend_name() == "sqlite":
            self._load_into_new_file(load, files, proceed)
            return
        with closing(Database(self._url, pool_size=1)) as database:
            migrate_catalog(database, bundles=load.manifest.bundles)
        with effect("records.load_rows"), open_arrow_writer(self._url) as writer:
            writer.execute(f"LOCK TABLE {', '.join(_LOCKED_TABLES)} IN ACCESS EXCLUSIVE MODE")
            self._require_no_loaded_rows(writer, load)
            _load_tables(writer, load, files, proceed)

    def end_rebuild(self, rebuild: str) -> None:
        with closing(Database(self._url, pool_size=1)) as database:
            database.write(lambda connection: mark_rebuild_complete(connection, rebuild))

    def _require_no_loaded_rows(self, writer: ArrowWriter, load: RebuiltCatalogStart) -> None:
        """Check again that no rows are loaded, now under the locks, because another load may have ended meanwhile."""
        ((rebuild, manifest),) = writer.execute("SELECT rebuild, manifest FROM record_log")
        if rebuild or manifest:
            raise self._not_empty_error(
                f"a catalog of rebuild {rebuild}, which is not {load.rebuild}, or loaded meanwhile"
            )

    def _load_into_new_file(
        self, load: RebuiltCatalogStart, files: RowFilesFolder, proceed: Callable[[], None]
    ) -> None:
        path = Path(str(self._parsed_url.database))
        # Remove files of attempts that died. An attempt that still runs fails without its file and is repeated.
        for old_file in path.parent.glob(f".{path.name}.{load.rebuild}.*"):
            old_file.unlink(missing_ok=True)
        new = path.with_name(f".{path.name}.{load.rebuild}.{uuid4().hex[:8]}")
        url = URL.create("sqlite", database=str(new)).render_as_string()
        try:
            with effect("records.load_rows"):
                with closing(Database(url, pool_size=1)) as database:
                    migrate_catalog(database, bundles=load.manifest.bundles)
                with open_arrow_writer(url) as writer:
                    _load_tables(writer, load, files, proceed)
                _sync_to_disk(new)
            with effect("records.name_database"):
                self._move_file_to_target(new, path)
        finally:
            for leftover in path.parent.glob(f"{new.name}*"):
                leftover.unlink(missing_ok=True)

    def _move_file_to_target(self, new: Path, path: Path) -> None:
        if path.exists():
            if self.read_target().rebuild:
                raise self._not_empty_error("a catalog that another attempt has loaded meanwhile")
            for old_file in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))):
                old_file.unlink(missing_ok=True)
        os.link(new, path)
        _sync_to_disk(path.parent)


def describe_database_content(connection: Connection) -> str:
    """Return a phrase that describes the content of a database, or an empty text for an empty database."""
    row = read_log_row(connection)
    if row.rebuild:
        return f"a replica, {row.rebuild}" if row.state == REPLICA else f"a catalog of rebuild {row.rebuild}"
    if row.manifest:
        return f"a catalog with manifest {row.manifest} of a record log"
    for name in (*_TABLE_NAMES, "bucket_marker"):
        rows = connection.execute(select(func.count()).select_from(t.metadata.tables[name])).scalar_one()
        if rows:
            return f"{rows:,} rows of {name}"
    return ""


def _sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load_tables(
    writer: ArrowWriter, load: RebuiltCatalogStart, files: RowFilesFolder, proceed: Callable[[], None]
) -> None:
    with _drop_indexes_and_triggers_during_load(writer):
        for name in _TABLE_NAMES:
            for part in files.part_paths(name):
                proceed()
                with pa.memory_map(str(part)) as source, pa.ipc.open_file(source) as rows:
                    batches = (rows.get_batch(index) for index in range(rows.num_record_batches))
                    writer.append_rows(name, pa.RecordBatchReader.from_batches(rows.schema, batches))
        writer.execute(compile_releases_restart(load.epoch))
        proceed()
    _set_next_row_numbers(writer, load)
    for name, rows in _build_unrecorded_rows_of_load(load):
        writer.execute(f"DELETE FROM {name}")
        writer.append_rows(name, rows.to_reader())


@contextmanager
def _drop_indexes_and_triggers_during_load(writer: ArrowWriter) -> Iterator[None]:
    """Drop triggers and indexes before the `with` block, and create them again afterwards. Constraints stay."""
    names = ", ".join(f"'{name}'" for name in _TABLE_NAMES)
    if writer.dialect == "sqlite":
        schema_rows = writer.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL"
            f" AND tbl_name IN ({names}) ORDER BY type, name"
        )
        drops = [f'DROP {kind} "{name}"' for kind, name, _ in schema_rows]
        creations = [sql for *_, sql in schema_rows]
    else:
        index_rows = writer.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
            f" AND tablename IN ({names}) AND indexname NOT IN (SELECT conname FROM pg_constraint)"
        )
        drops = [f'ALTER TABLE "{name}" DISABLE TRIGGER USER' for name in _TABLE_NAMES]
        drops += [f'DROP INDEX "{name}"' for name, _ in index_rows]
        creations = [sql for _, sql in index_rows]
        creations += [f'ALTER TABLE "{name}" ENABLE TRIGGER USER' for name in _TABLE_NAMES]
        creations += ["ANALYZE"]
    for statement in drops:
        writer.execute(statement)
    yield
    for statement in creations:
        writer.execute(statement)


def _set_next_row_numbers(writer: ArrowWriter, load: RebuiltCatalogStart) -> None:
    """Set sequences so that new rows get higher numbers than all rows of the lost catalog."""
    last_by_column = {("record_outbox", "version"): load.highest_version}
    for kind, recorded in RECORDED_TABLES.items():
        if recorded.table.autoincrement_column is not None:
            last_ids = (block.last_id for block in load.manifest.blocks if block.kind is kind)
            last_by_column[recorded.table.name, recorded.id] = max(last_ids, default=0)
    last_by_column["topic", "topic_id"] = load.manifest.ceilings.topic - 1
    for (name, column), last in last_by_column.items():
        if writer.dialect == "postgresql":
            writer.execute(f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), {max(last, 1)})")
        else:
            writer.execute(f"DELETE FROM sqlite_sequence WHERE name = '{name}'")
            if name not in {"ledger_list", "cursor"}:  # SQLite continues after the highest row of these two tables
                writer.execute(f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{name}', {last})")


def _build_unrecorded_rows_of_load(load: RebuiltCatalogStart) -> Iterator[tuple[str, pa.Table]]:
    pending = f'{{"{load.stamp}": {load.now_us}}}'
    yield from build_unrecorded_rows(
        load.manifest, epoch=load.epoch, state=ADOPTING, rebuild=load.rebuild, pending_stamps=pending
    )
    markers = [{"role": role.value, "bucket": bucket, "marked_us": load.now_us} for role, bucket in load.markers]
    if markers:
        yield _build_arrow_table("bucket_marker", markers)


def build_unrecorded_rows(
    manifest: Manifest, *, epoch: int, state: str, pending_stamps: str = "{}", rebuild: str | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of the tables that have no records: catalog, record log and coordinators.

    `pending_stamps` is JSON. `rebuild` is the id of the unfinished rebuild that loaded the catalog, or the name of a
    replica.
    """
    ceilings = manifest.ceilings
    catalog = {
        "id": 1,
        "epoch": epoch,
        "next_ledger_id": ceilings.ledger,
        "bundles": manifest.bundles,
        "catalog_id": manifest.catalog_id,
    }
    log = {
        "id": 1,
        "manifest": manifest.number,
        "stamp": manifest.stamp,
        "pending": pending_stamps,
        "state": state,
        "rebuild": rebuild,
        "ledger_ceiling": ceilings.ledger,
        "topic_ceiling": ceilings.topic,
        "transaction_ceiling": ceilings.transaction,
        "flushed_us": manifest.flushed_us,
    }
    coordinators = [{"tc_id": tc_id, "next_sequence": ceilings.transaction} for tc_id in range(MAX_COORDINATORS)]
    yield _build_arrow_table("catalog", [catalog])
    yield _build_arrow_table("record_log", [log])
    yield _build_arrow_table("transaction_coordinator", coordinators)


def _build_arrow_table(name: str, rows: list[dict[str, Any]]) -> tuple[str, pa.Table]:
    table = t.metadata.tables[name]
    return name, pa.table({key: pa.array([row[key] for row in rows], to_arrow_type(table.c[key])) for key in rows[0]})
