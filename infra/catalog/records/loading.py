"""The `Rebuild` port: a bulk load of a catalog into an empty database, all of it or nothing.

On PostgreSQL one transaction does it, which holds the tables. A SQLite file is written beside its place, under a name
that no process opens, and gets its own when it is complete and on the disk. Triggers are off meanwhile, because what is
loaded is in blocks already, and indexes are made of whole columns afterwards.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from sqlalchemy import URL, Connection, func, select

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import releases_statement
from infra.catalog.engine.adbc import ArrowWriter, arrow_type, open_arrow_writer
from infra.catalog.engine.connections import mask_passwords, parse_database_url
from infra.catalog.engine.database import Database
from infra.catalog.engine.versions import check_version, upgrade, version
from infra.catalog.records.log_rows import ADOPTING, REPLICA, end_rebuild, read_log_row
from logstore.errors import PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.catalog.rebuilding import Load, Target
from logstore.records.kinds import RecordKind
from logstore.records.manifest import Manifest
from logstore.records.rebuilding import LOAD_ORDER, LoadFiles
from logstore.transactions.transactions import MAX_COORDINATORS

_HELD: Final = ("topic", "ledger", "pending_deletion", "record_log", "catalog")  # by any work that begins meanwhile
_NUMBERED: Final[Mapping[str, tuple[str, RecordKind]]] = {
    "ledger_list": ("list_id", RecordKind.LIST),
    "cursor": ("cursor_id", RecordKind.CURSOR),
    "pending_deletion": ("row_id", RecordKind.DELETION),
}
"""Tables that number their rows themselves: the column, and the kind of records in whose ids it is."""


class SqlRebuild:
    """The `Rebuild` port: a database into which a catalog is rebuilt."""

    def __init__(self, database_url: str) -> None:
        """Open nothing yet.

        Raises:
            InvalidInput: Not the URL of a database that can hold a catalog.
        """
        self._url, self._parsed = database_url, parse_database_url(database_url)

    def target(self) -> Target:
        """See `Rebuild.target`."""
        with closing(Database(self._url, pool_size=1)) as database:
            if database.is_absent or version(database) is None:
                return Target()
            check_version(database)
            with database.open_read_only() as looking:
                return looking.read(self._seen)

    def _seen(self, connection: Connection) -> Target:
        row = read_log_row(connection)
        if row.rebuild and row.state != REPLICA:
            return Target(rebuild=row.rebuild, state=row.state)
        if found := rows_in(connection):
            raise self._not_empty(found)
        return Target()

    def _not_empty(self, found: str) -> PreconditionFailed:
        shown = mask_passwords(self._url)
        return PreconditionFailed(f"database {shown}: expected an empty one to rebuild into, found {found}")

    def load(self, load: Load, files: LoadFiles, proceed: Callable[[], None]) -> None:
        """See `Rebuild.load`."""
        if self.target().rebuild == load.rebuild:
            return
        if self._parsed.get_backend_name() == "sqlite":
            self._load_file(load, files, proceed)
        else:
            with closing(Database(self._url, pool_size=1)) as database:
                upgrade(database, bundles=load.manifest.bundles)
            with effect("records.load_rows"), open_arrow_writer(self._url) as writer:
                writer.execute(f"LOCK TABLE {', '.join(_HELD)} IN ACCESS EXCLUSIVE MODE")
                self._check_empty(writer, load)
                _fill(writer, load, files, proceed)

    def end(self, rebuild: str) -> None:
        """See `Rebuild.end`."""
        with closing(Database(self._url, pool_size=1)) as database:
            database.write(lambda connection: end_rebuild(connection, rebuild))

    def _check_empty(self, writer: ArrowWriter, load: Load) -> None:
        """Once more, under the locks: of two loads at once the second finds the first one's rows.

        One of the same rebuild has nothing to do any more, and its retry sees that.
        """
        (found,) = writer.execute("SELECT rebuild, manifest FROM record_log")
        if found[0] or found[1]:
            raise self._not_empty(f"a catalog of rebuild {found[0]}, which is not {load.rebuild}, or loaded meanwhile")

    def _load_file(self, load: Load, files: LoadFiles, proceed: Callable[[], None]) -> None:
        path = Path(str(self._parsed.database))
        for left in path.parent.glob(f".{path.name}.{load.rebuild}.*"):
            left.unlink(
                missing_ok=True
            )  # of an attempt that died; one that lives finds no file to name, and looks again
        new = path.with_name(f".{path.name}.{load.rebuild}.{uuid4().hex[:8]}")
        url = URL.create("sqlite", database=str(new)).render_as_string()
        try:
            with effect("records.load_rows"):
                with closing(Database(url, pool_size=1)) as database:
                    upgrade(database, bundles=load.manifest.bundles)
                with open_arrow_writer(url) as writer:
                    _fill(writer, load, files, proceed)
                _sync(new)
            with effect("records.name_database"):
                self._name(new, path)
        finally:
            for left in path.parent.glob(f"{new.name}*"):
                left.unlink(missing_ok=True)

    def _name(self, new: Path, path: Path) -> None:
        """The file gets its place; an empty catalog that stands there makes room."""
        if path.exists():
            if self.target().rebuild:
                raise self._not_empty("a catalog that another attempt has loaded meanwhile")
            for left in (path, *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))):
                left.unlink(missing_ok=True)
        os.link(new, path)
        _sync(path.parent)


def rows_in(connection: Connection) -> str:
    """Rows in a database that would have to be empty, as a phrase; empty where there are none."""
    row = read_log_row(connection)
    if row.rebuild:
        return f"a replica, {row.rebuild}" if row.state == REPLICA else f"a catalog of rebuild {row.rebuild}"
    if row.manifest:
        return f"a catalog with manifest {row.manifest} of a record log"
    for name in (*LOAD_ORDER, "bucket_marker"):
        rows = connection.execute(select(func.count()).select_from(t.metadata.tables[name])).scalar_one()
        if rows:
            return f"{rows:,} rows of {name}"
    return ""


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(writer: ArrowWriter, load: Load, files: LoadFiles, proceed: Callable[[], None]) -> None:
    """Load all tables, without triggers and indexes, and write the rows that speak for the catalog."""
    with _bare_tables(writer):
        for name in LOAD_ORDER:
            for part in files.of(name):
                proceed()
                with pa.memory_map(str(part)) as source, pa.ipc.open_file(source) as rows:
                    batches = (rows.get_batch(at) for at in range(rows.num_record_batches))
                    writer.ingest(name, pa.RecordBatchReader.from_batches(rows.schema, batches))
        writer.execute(releases_statement(load.epoch))
        proceed()
    _number_on(writer, load)
    for name, rows in _own_rows(load):
        writer.execute(f"DELETE FROM {name}")
        writer.ingest(name, rows.to_reader())


@contextmanager
def _bare_tables(writer: ArrowWriter) -> Iterator[None]:
    """Without triggers and without indexes that guard nothing, while the block runs."""
    names = ", ".join(f"'{name}'" for name in LOAD_ORDER)
    if writer.dialect == "sqlite":
        found = writer.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL"
            f" AND tbl_name IN ({names}) ORDER BY type, name"
        )
        drop = [f'DROP {kind} "{name}"' for kind, name, _ in found]
        make = [sql for *_, sql in found]
    else:
        found = writer.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
            f" AND tablename IN ({names}) AND indexname NOT IN (SELECT conname FROM pg_constraint)"
        )
        drop = [f'ALTER TABLE "{name}" DISABLE TRIGGER USER' for name in LOAD_ORDER]
        drop += [f'DROP INDEX "{name}"' for name, _ in found]
        make = [sql for _, sql in found]
        make += [f'ALTER TABLE "{name}" ENABLE TRIGGER USER' for name in LOAD_ORDER]
        make += ["ANALYZE"]
    for statement in drop:
        writer.execute(statement)
    yield
    for statement in make:
        writer.execute(statement)


def _number_on(writer: ArrowWriter, load: Load) -> None:
    """Let new rows get numbers that no row of the lost catalog can have had."""
    highest = {kind: max((one.last_id for one in load.manifest.blocks if one.kind is kind), default=0) for kind in _K}
    numbers = {("topic", "topic_id"): load.manifest.ceilings.topic - 1, ("record_outbox", "version"): load.version}
    numbers |= {(name, column): highest[kind] for name, (column, kind) in _NUMBERED.items()}
    for (name, column), last in numbers.items():
        if writer.dialect == "postgresql":
            writer.execute(f"SELECT setval(pg_get_serial_sequence('{name}', '{column}'), {max(last, 1)})")
        else:  # of the others SQLite takes the highest row's number and one more
            writer.execute(f"DELETE FROM sqlite_sequence WHERE name = '{name}'")
            if name not in {"ledger_list", "cursor"}:
                writer.execute(f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{name}', {last})")


_K: Final = tuple(RecordKind)


def _own_rows(load: Load) -> Iterator[tuple[str, pa.Table]]:
    standing = {"state": ADOPTING, "rebuild": load.rebuild, "pending": f'{{"{load.stamp}": {load.now_us}}}'}
    yield from own_rows(load.manifest, epoch=load.epoch, **standing)
    markers = [{"role": role.value, "bucket": bucket, "marked_us": load.now_us} for role, bucket in load.markers]
    if markers:
        yield _told("bucket_marker", markers)


def own_rows(
    manifest: Manifest, *, epoch: int, state: str, pending: str = "{}", rebuild: str | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """The rows that no record holds, by table: of the catalog, its record log, and its coordinators.

    Args:
        manifest: That the rows of the catalog come from.
        epoch: Of the catalog.
        state: Of its record log.
        pending: Stamps of manifests that are about to be put, as JSON.
        rebuild: That has loaded it, and has not ended; or, of a replica, the name under which it was seeded.
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
        "pending": pending,
        "state": state,
        "rebuild": rebuild,
        "ledger_ceiling": ceilings.ledger,
        "topic_ceiling": ceilings.topic,
        "transaction_ceiling": ceilings.transaction,
        "flushed_us": manifest.flushed_us,
    }
    coordinators = [{"tc_id": at, "next_sequence": ceilings.transaction} for at in range(MAX_COORDINATORS)]
    yield _told("catalog", [catalog])
    yield _told("record_log", [log])
    yield _told("transaction_coordinator", coordinators)


def _told(name: str, rows: list[dict[str, Any]]) -> tuple[str, pa.Table]:
    table = t.metadata.tables[name]
    return name, pa.table({key: pa.array([row[key] for row in rows], arrow_type(table.c[key])) for key in rows[0]})
