"""Replica database in SQL. One transaction applies record versions and stores the newest manifest.

The record versions come only from manifests that were not applied before, so they are newer than all rows.
`apply_versions` chooses the records that get rows, as in a rebuild. This module may write to the tables of other
modules, because a replica database refuses the writes of those modules.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.engine.catalog_version import migrate_catalog, read_catalog_version, require_current_version
from logstore.catalog.engine.database import Database
from logstore.catalog.engine.database_connections import mask_passwords
from logstore.catalog.engine.dialect_sql import (
    BIG,
    TEXT,
    BulkStatement,
    build_bulk_parameter,
    build_dialect_insert,
    is_one_of,
)
from logstore.catalog.records.rebuild_loading import build_unrecorded_rows, describe_database_content
from logstore.catalog.records.record_log_row import REPLICA, read_log_row
from logstore.catalog.records.recorded_tables import (
    LOADED_TABLES,
    RECORDED_TABLES,
    PartTable,
    find_columns_of_dependent_rows,
)
from logstore.catalog.records.version_application import (
    Ids,
    apply_versions,
    build_ledger_and_copy_rows,
    build_rows,
    build_tombstone_rows,
    mask_contained_ids,
    read_id_column,
    unpack_listed_ledger_ids,
)
from logstore.errors import CatalogBusy, PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.catalog.records import AppliedManifest, VersionReader
from logstore.records.job_results import FollowedRecords
from logstore.records.manifest import Manifest
from logstore.records.newest_versions import SplitNewestVersions
from logstore.records.record_kinds import RecordKind, block_schema

_K = RecordKind
_ROWS_PER_STATEMENT: Final = 10_000
_LEDGER_FIELDS_OF_TOMBSTONES: Final = ("id", "topic_id", "list_id", "component")


class ReplicaDatabase:
    """Replica database of one catalog. After the first `apply_versions` the database refuses all other writes."""

    def __init__(self, database: Database, database_url: str) -> None:
        self._db, self._url = database, database_url

    def read_applied_manifest(self) -> AppliedManifest | None:
        """Return the newest applied manifest, or `None` if the database is empty.

        Raises:
            PreconditionFailed: The database has content, but is no replica database.
            CatalogVersionMismatch: Another build created the database.
            StoreUnavailable: The database does not answer.
        """
        if self._db.is_absent or read_catalog_version(self._db) is None:
            return None
        require_current_version(self._db)
        return self._db.read(self._find_applied_manifest)

    def apply_versions(
        self, manifest: Manifest, versions: VersionReader, *, expected: AppliedManifest | None, replica: str, seed: bool
    ) -> FollowedRecords:
        """Apply record versions and record the manifest as applied, in one transaction.

        With `seed`, the database is emptied first and `versions` has all record versions. Otherwise `versions` has the
        record versions that are newer than the applied manifest. `expected` is the manifest that
        `read_applied_manifest` returned before the record versions were chosen. `replica` is the name of the replica
        database in its acknowledgements.

        Raises:
            PreconditionFailed: The database was empty, and now has content but is no replica database.
            CatalogBusy: Another process has applied a manifest since `expected`.
            OutcomeUnknown: The connection broke during the commit.
        """
        if self._db.is_absent or read_catalog_version(self._db) is None:
            self._db.create_folder()
            migrate_catalog(self._db, bundles=manifest.bundles)

        def apply_step(connection: Connection) -> FollowedRecords:
            connection.execute(select(t.record_log.c.id).with_for_update())
            if self._find_applied_manifest(connection) != expected:
                raise CatalogBusy("replica: another process has applied to its database meanwhile")
            if seed:
                for table in LOADED_TABLES:
                    connection.execute(delete(table))
            sink = _ReplicaRows(connection)
            for kind in RECORDED_TABLES:
                apply_versions(kind, versions(kind), sink)
            sink.correct_ledgers_and_remove_rows_of_deleted_topics()
            for name, rows in build_unrecorded_rows(manifest, epoch=manifest.epoch, state=REPLICA, rebuild=replica):
                table = t.metadata.tables[name]
                connection.execute(delete(table))
                for page in _split_rows_into_pages(table, rows):
                    connection.execute(insert(table), page)
            # triggers have filled the outbox, but a replica never flushes
            connection.execute(delete(t.record_outbox))
            return FollowedRecords(replica=replica, manifest=manifest.number, steps=1, seeded=int(seed), **sink.counts)

        with effect("records.apply"):
            return self._db.write(apply_step)

    def _find_applied_manifest(self, connection: Connection) -> AppliedManifest | None:
        row = read_log_row(connection)
        if row.state == REPLICA:
            catalog = read_catalog_row(connection)
            return AppliedManifest(
                catalog_id=catalog.catalog_id,
                epoch=catalog.epoch,
                manifest=row.manifest,
                stamp=row.stamp,
                replica=row.rebuild or "",
            )
        if content := describe_database_content(connection):
            masked_url = mask_passwords(self._url)
            raise PreconditionFailed(f"database {masked_url}: expected an empty one or a replica's, found {content}")
        return None


@contextmanager
def open_replica_database(database_url: str) -> Iterator[ReplicaDatabase]:
    with closing(Database(database_url, pool_size=2)) as database:
        yield ReplicaDatabase(database, database_url)


class _ReplicaRows:
    """Sink that inserts rows, replaces rows, and removes rows, all in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.counts = Counter[str]()  # fields of `FollowedRecords`
        self._changed_ledger_ids = set[int]()  # ledgers that changed or have new segments
        self._lists = block_schema(_K.LIST).empty_table()  # changed lists
        # the lists of these topics stay until ledgers are written, because the tombstones of ledgers copy them
        self._deleted_topic_ids: list[int] = []

    def find_parent_ids(self, parent: RecordKind, ids: Ids) -> Ids:
        key = _key_column(parent)
        existing: list[int] = []
        for page in _split_ids_into_pages(np.unique(ids)):
            existing += self._connection.execute(select(key).where(is_one_of(self._connection, key, page))).scalars()
        return np.unique(np.array(existing, np.int64))

    def write_tombstones(self, kind: RecordKind, newest: SplitNewestVersions) -> None:
        """Replace rows by newer tombstones, and remove the tombstones of records that exist again."""
        is_kind = t.tombstone.c.kind == kind.value
        self._delete(t.tombstone.c.id, read_id_column(newest.live), is_kind)
        if not newest.tombstones.num_rows:
            return
        ids = read_id_column(newest.tombstones).tolist()
        covered = self._prefer_ledger_rows(newest.covered, ids) if kind is _K.LEDGER else newest.covered
        self._upsert(*build_tombstone_rows(newest.tombstones, covered, kind))
        self.counts.update(tombstones=len(ids))
        if kind is _K.LEDGER:
            for column in find_columns_of_dependent_rows(_K.LEDGER):
                self._delete(column, ids)
        else:
            self._deleted_topic_ids += ids
        self.counts.update(removed=self._delete(_key_column(kind), ids))

    def write_records(self, kind: RecordKind, live: pa.Table) -> None:
        recorded, ids = RECORDED_TABLES[kind], read_id_column(live).tolist()
        self.counts.update(records=live.num_rows)
        if kind is _K.LIST:
            self._lists = live
        elif kind in {_K.LEDGER, _K.SEGMENT}:
            self._changed_ledger_ids |= set(ids)
        if recorded.unique:
            self._delete_displaced_rows(kind, live)
        for part in recorded.parts:
            self._delete_parts(part, live)
        if kind is _K.LEDGER:  # without totals, which are computed when all segments are written
            tables = build_ledger_and_copy_rows(live, block_schema(_K.SEGMENT).empty_table(), read_id_column(live))
        else:
            tables = build_rows(kind, live)
        for table, rows in tables:
            self._upsert(table, rows)

    def correct_ledgers_and_remove_rows_of_deleted_topics(self) -> None:
        """Finish the transaction after all kinds are written.

        The ledgers of deleted topics stay, without a place, until their own records are removed.
        """
        for page in _split_ids_into_pages(self._deleted_topic_ids):
            lists = select(t.ledger_list.c.list_id).where(is_one_of(self._connection, t.ledger_list.c.topic_id, page))
            self._delete_lists_and_unlist_ledgers(self._connection.execute(lists).scalars().all())
        for column in find_columns_of_dependent_rows(_K.TOPIC):
            self._delete(column, self._deleted_topic_ids)
        self._recompute_ledger_totals()
        self._unlist_ledgers()

    def _delete_displaced_rows(self, kind: RecordKind, live: pa.Table) -> None:
        """Delete rows that have the unique values of a new record, but another id.

        The record of such a row was deleted without a tombstone before the newer record was created.
        """
        recorded, key = RECORDED_TABLES[kind], _key_column(kind)
        ((_, rows),) = build_rows(kind, live)
        types = {name: BIG if pa.types.is_integer(rows.schema.field(name).type) else TEXT for name in recorded.unique}
        newer = build_bulk_parameter(self._connection.dialect.name, "newer", {"id": BIG, **types})
        c = newer.source.c
        same_values = [recorded.table.c[name] == c[name] for name in recorded.unique]
        displaced = BulkStatement(select(key).where(exists().where(*same_values, c.id != key)), newer)
        values = zip(*(rows.column(name).to_pylist() for name in (key.name, *recorded.unique)), strict=True)
        ids = list(displaced.execute(self._connection, values).scalars())
        if kind is _K.LIST:
            self._delete_lists_and_unlist_ledgers(ids)
            return
        deleted = self._delete(key, ids)
        if kind is _K.TOPIC:
            self._deleted_topic_ids += ids
            self.counts.update(removed=deleted)

    def _delete_lists_and_unlist_ledgers(self, ids: Iterable[int]) -> None:
        list_ids = list(ids)
        for page in _split_ids_into_pages(list_ids):
            listed = update(t.ledger).where(is_one_of(self._connection, t.ledger.c.list_id, page))
            self._connection.execute(listed.values(place=None))
        self._delete(t.ledger_list.c.list_id, list_ids)

    def _delete_parts(self, part: PartTable, live: pa.Table) -> None:
        if len(part.keys) == 1:
            self._delete(part.table.c[part.keys[0]], read_id_column(live))
            return
        id_column, sub_column = (part.table.c[name] for name in part.keys)
        mine = and_(id_column == bindparam("record_id"), sub_column == bindparam("record_sub"))
        keys = [
            {"record_id": record_id, "record_sub": int(sub)}
            for record_id, sub in zip(*(live.column(name).to_pylist() for name in ("id", "sub")), strict=True)
        ]
        if keys:
            self._connection.execute(delete(part.table).where(mine), keys)

    def _prefer_ledger_rows(self, covered: pa.Table, ids: Iterable[int]) -> pa.Table:
        """Return the fields that tombstones copy: from rows of ledgers, or else from the record versions `covered`."""
        ledger_list, ledger = t.ledger_list.c, t.ledger.c
        query = select(ledger.ledger_id, ledger_list.topic_id, ledger.list_id, ledger_list.component).join(
            t.ledger_list, ledger_list.list_id == ledger.list_id
        )
        found: list[Any] = []
        for page in _split_ids_into_pages(ids):
            found += self._connection.execute(query.where(is_one_of(self._connection, ledger.ledger_id, page))).all()
        others = covered.select(_LEDGER_FIELDS_OF_TOMBSTONES)
        rows = pa.Table.from_pylist(
            [dict(zip(_LEDGER_FIELDS_OF_TOMBSTONES, row, strict=True)) for row in sorted(map(tuple, found))],
            others.schema,
        )
        has_row = pa.array(mask_contained_ids(read_id_column(rows), read_id_column(others)))
        return pa.concat_tables([rows, others.filter(pc.invert(has_row))]).sort_by("id")

    def _recompute_ledger_totals(self) -> None:
        s, ledger = t.segment.c, t.ledger.c

        def from_segments(aggregate: Any) -> Any:  # noqa: ANN401 - a column
            return select(aggregate).where(s.ledger_id == ledger.ledger_id).scalar_subquery()

        totals = {
            "entries": from_segments(func.coalesce(func.sum(s.entries), 0)),
            "size_bytes": from_segments(func.coalesce(func.sum(s.size_bytes), 0)),
            "segments": from_segments(func.count()),
        }
        last_segment = from_segments(func.max(s.number))
        for page in _split_ids_into_pages(sorted(self._changed_ledger_ids)):
            mine = update(t.ledger).where(is_one_of(self._connection, ledger.ledger_id, page))
            self._connection.execute(mine.values(totals))
            is_higher = ledger.last_segment < last_segment
            self._connection.execute(mine.where(is_higher).values(last_segment=last_segment))

    def _unlist_ledgers(self) -> None:
        """Remove the places of ledgers that changed lists no longer name, and of changed ledgers without a list."""
        ledger, named_ids = t.ledger.c, unpack_listed_ledger_ids(self._lists)
        unnamed_ids: list[int] = []
        for page in _split_ids_into_pages(read_id_column(self._lists)):
            listed = select(ledger.ledger_id).where(
                is_one_of(self._connection, ledger.list_id, page), ledger.place.is_not(None)
            )
            listed_ids = np.array(self._connection.execute(listed).scalars().all(), np.int64)
            unnamed_ids += np.setdiff1d(listed_ids, named_ids).tolist()
        has_no_list = ~exists().where(t.ledger_list.c.list_id == ledger.list_id)
        for ids, conditions in ((unnamed_ids, ()), (sorted(self._changed_ledger_ids), (has_no_list,))):
            for page in _split_ids_into_pages(ids):
                selected = update(t.ledger).where(is_one_of(self._connection, ledger.ledger_id, page), *conditions)
                self._connection.execute(selected.values(place=None))

    def _upsert(self, table: Table, rows: pa.Table) -> None:
        insertion = build_dialect_insert(self._connection.dialect.name, table)
        keys = [column.name for column in table.primary_key]
        changes = {name: insertion.excluded[name] for name in rows.column_names if name not in keys}
        insertion = insertion.on_conflict_do_update(index_elements=keys, set_=changes)
        for page in _split_rows_into_pages(table, rows):
            self._connection.execute(insertion, page)

    def _delete(self, column: Column[Any], ids: Iterable[int], *conditions: ColumnElement[bool]) -> int:
        """Delete the rows with one of the ids in the column. Return their number."""
        statements = [
            delete(column.table).where(is_one_of(self._connection, column, page), *conditions)
            for page in _split_ids_into_pages(ids)
        ]
        return sum(self._connection.execute(statement).rowcount for statement in statements)


def _key_column(kind: RecordKind) -> Column[Any]:
    recorded = RECORDED_TABLES[kind]
    return recorded.table.c[recorded.id]


def _split_rows_into_pages(table: Table, rows: pa.Table) -> Iterator[list[dict[str, Any]]]:
    json_columns = [name for name in rows.column_names if isinstance(table.c[name].type, JSON)]
    for batch in rows.to_batches(max_chunksize=_ROWS_PER_STATEMENT):
        page = batch.to_pylist()
        for name in json_columns:
            for row in page:
                row[name] = None if row[name] is None else json.loads(row[name])
        if page:
            yield page


def _split_ids_into_pages(ids: Iterable[int]) -> Iterator[list[int]]:
    plain_ids = [int(number) for number in ids]  # a statement does not accept integers of numpy as parameters
    for start in range(0, len(plain_ids), _ROWS_PER_STATEMENT):
        yield plain_ids[start : start + _ROWS_PER_STATEMENT]
