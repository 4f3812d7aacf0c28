"""Replica database in SQL. One transaction applies record versions and stores the newest manifest.

The record versions come only from manifests that were not applied before, so they are newer than all rows. Rows are
built as in a rebuild, with three differences. A tombstone removes rows. A topic may take the name of a topic that was
deleted without a tombstone. Totals of ledgers with new segments are computed again.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Table, select

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.engine.catalog_version import migrate_catalog, read_catalog_version, require_current_version
from logstore.catalog.engine.database import Database
from logstore.catalog.engine.database_connections import mask_passwords
from logstore.catalog.records import replica_rows
from logstore.catalog.records.rebuild_loading import build_unrecorded_rows, describe_database_content
from logstore.catalog.records.record_log_row import REPLICA, read_log_row
from logstore.catalog.records.rows_from_versions import (
    UNIQUE_COLUMNS,
    build_delayed_index_and_bucket_rows,
    build_ledger_and_copy_rows,
    build_table_rows,
    build_tombstone_rows,
    build_transaction_and_part_rows,
    mask_contained_ids,
    read_id_column,
    select_newest_by_unique_columns,
    select_with_parent,
    unpack_listed_ledger_ids,
)
from logstore.errors import CatalogBusy, PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.catalog.records import AppliedChangeCounts, AppliedManifest, VersionReader
from logstore.records.manifest import Manifest
from logstore.records.newest_versions import SplitNewestVersions, split_newest_versions
from logstore.records.rebuild_job import LOAD_ORDER
from logstore.records.record_kinds import PARENT_BY_KIND, RecordKind, block_schema

_K = RecordKind
_COVERED_COLUMNS: Final = ("id", "topic_id", "list_id", "component")
_PARENT_TABLES: Final[dict[RecordKind, Table]] = {_K.TOPIC: t.topic, _K.LEDGER: t.ledger}


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
    ) -> AppliedChangeCounts:
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

        def apply_step(connection: Connection) -> AppliedChangeCounts:
            connection.execute(select(t.record_log.c.id).with_for_update())
            if self._find_applied_manifest(connection) != expected:
                raise CatalogBusy("replica: another process has applied to its database meanwhile")
            if seed:
                for name in LOAD_ORDER:
                    replica_rows.delete_all_rows(connection, t.metadata.tables[name])
            applied = _RecordVersionsApplication(connection).apply(versions)
            for name, rows in build_unrecorded_rows(manifest, epoch=manifest.epoch, state=REPLICA, rebuild=replica):
                replica_rows.replace_all_rows(connection, t.metadata.tables[name], rows)
            # triggers have filled the outbox, but a replica never flushes
            replica_rows.delete_all_rows(connection, t.record_outbox)
            return applied

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


class _RecordVersionsApplication:
    """Application of record versions in one transaction. Parents are applied before their children."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._counts = Counter[str]()  # by the fields of `AppliedChangeCounts`
        self._changed_ledger_ids = set[int]()  # ledgers that changed or have new segments
        # the lists of these topics stay until ledgers are applied, because ledgers need their lists
        self._deleted_topic_ids: list[int] = []

    def apply(self, versions: VersionReader) -> AppliedChangeCounts:
        connection = self._connection
        self._apply_uniquely_named_records(_K.TOPIC, versions)
        lists = self._apply_uniquely_named_records(_K.LIST, versions)
        for kind in (_K.LEDGER, _K.SEGMENT, _K.HIDDEN):
            self._apply_records_of_kind(kind, versions)
        replica_rows.delete_rows_of_topics_except_ledgers(connection, self._deleted_topic_ids)
        ledger_ids = sorted(self._changed_ledger_ids)
        replica_rows.recompute_ledger_totals(connection, ledger_ids)
        replica_rows.unlist_ledgers(
            connection, read_id_column(lists).tolist(), unpack_listed_ledger_ids(lists), ledger_ids
        )
        self._apply_uniquely_named_records(_K.CURSOR, versions)
        for kind in (_K.SCHEMA, _K.PRODUCER, _K.DELETION, _K.TRANSACTION, _K.INDEX, _K.SNAPSHOT):
            self._apply_records_of_kind(kind, versions)
        return AppliedChangeCounts(**self._counts)

    def _apply_uniquely_named_records(self, kind: RecordKind, versions: VersionReader) -> pa.Table:
        """Apply all records of a kind with unique columns. Return the record versions that got a row.

        The record versions must fit in memory. If two records have equal unique columns, only the newer one gets a row.
        """
        parts = [split_newest_versions(part) for part in versions(kind)]
        for part in parts:
            self._apply_tombstones(kind, part)
        live = [self._select_with_parent(kind, part.live) for part in parts]
        newest = select_newest_by_unique_columns(
            pa.concat_tables([block_schema(kind).empty_table(), *live]), UNIQUE_COLUMNS[kind]
        )
        table, rows = build_table_rows(kind, newest)
        displaced_ids = replica_rows.find_displaced_ids(self._connection, table, UNIQUE_COLUMNS[kind], rows)
        if kind is _K.TOPIC:
            self._delete_topics(displaced_ids)
        elif kind is _K.LIST:
            replica_rows.delete_lists_and_unlist_ledgers(self._connection, displaced_ids)
        else:
            replica_rows.delete_rows(self._connection, t.cursor.c.cursor_id, displaced_ids)
        replica_rows.upsert_rows(self._connection, table, rows)
        self._counts.update(records=newest.num_rows)
        return newest

    def _apply_records_of_kind(self, kind: RecordKind, versions: VersionReader) -> None:
        for part in map(split_newest_versions, versions(kind)):
            self._apply_tombstones(kind, part)
            live = self._select_with_parent(kind, part.live)
            self._upsert_live_records(kind, live)
            self._counts.update(records=live.num_rows)

    def _upsert_live_records(self, kind: RecordKind, live: pa.Table) -> None:
        ids = read_id_column(live).tolist()
        if kind in {_K.LEDGER, _K.SEGMENT}:
            self._changed_ledger_ids |= set(ids)
        if kind is _K.LEDGER:
            replica_rows.delete_rows(self._connection, t.ledger_copy.c.ledger_id, ids)
            tables = build_ledger_and_copy_rows(live, block_schema(_K.SEGMENT).empty_table(), read_id_column(live))
        elif kind is _K.INDEX:
            replica_rows.delete_rows(self._connection, t.delayed_bucket.c.topic_id, ids)
            tables = build_delayed_index_and_bucket_rows(live)
        elif kind is _K.TRANSACTION:
            replica_rows.delete_transaction_parts(self._connection, build_table_rows(kind, live)[1])
            tables = build_transaction_and_part_rows(live)
        else:
            tables = iter([build_table_rows(kind, live)])
        for table, rows in tables:
            replica_rows.upsert_rows(self._connection, table, rows)

    def _select_with_parent(self, kind: RecordKind, live: pa.Table) -> pa.Table:
        """Return the record versions whose parent has a row. Kinds without a parent are not filtered."""
        if kind not in PARENT_BY_KIND:
            return live
        column = "topic_id" if kind in {_K.LIST, _K.CURSOR} else "id"
        (key,) = _PARENT_TABLES[PARENT_BY_KIND[kind]].primary_key
        parent_ids = replica_rows.find_existing_ids(
            self._connection, key, np.unique(read_id_column(live, column)).tolist()
        )
        return select_with_parent(live, parent_ids, column)

    def _apply_tombstones(self, kind: RecordKind, part: SplitNewestVersions) -> None:
        """Replace rows by newer tombstones, and remove the tombstones of records that exist again."""
        if kind not in _PARENT_TABLES:
            return
        is_kind = t.tombstone.c.kind == kind.value
        replica_rows.delete_rows(self._connection, t.tombstone.c.id, read_id_column(part.live).tolist(), is_kind)
        if not part.tombstones.num_rows:
            return
        ids = read_id_column(part.tombstones).tolist()
        table, rows = build_tombstone_rows(
            part.tombstones, self._find_columns_for_tombstones(kind, ids, part.covered), kind
        )
        replica_rows.upsert_rows(self._connection, table, rows)
        self._counts.update(tombstones=len(ids))
        if kind is _K.LEDGER:
            self._counts.update(removed=replica_rows.delete_ledgers(self._connection, ids))
        else:
            self._delete_topics(ids)

    def _delete_topics(self, ids: list[int]) -> None:
        self._deleted_topic_ids += ids
        self._counts.update(removed=replica_rows.delete_rows(self._connection, t.topic.c.topic_id, ids))

    def _find_columns_for_tombstones(self, kind: RecordKind, ids: list[int], covered: pa.Table) -> pa.Table:
        """Return the columns that tombstones copy: from rows of ledgers, or from the record versions in `covered`."""
        if kind is not _K.LEDGER:
            return covered
        rows = replica_rows.read_ledger_columns_for_tombstones(self._connection, ids)
        has_row = pa.array(mask_contained_ids(read_id_column(rows), read_id_column(covered)))
        others = covered.select(_COVERED_COLUMNS).filter(pc.invert(has_row))
        return pa.concat_tables([rows, others.cast(rows.schema)]).sort_by("id")
