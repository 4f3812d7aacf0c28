"""The `ReplicaDatabase` port: one step of a replica is one transaction, with the manifest that it has then.

So a process may die anywhere in it, and a step that was lost is done again. What is applied is newer than whatever the
database holds, because a step takes only versions of manifests behind the one that stands in the same transaction.

Rows come from versions by the functions of a cold start. What is more here: a tombstone removes rows that are there, a
topic gets the name of one that was deleted plainly, and sums of ledgers are made again where segments came.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Table, select

from infra.catalog import tables as t
from infra.catalog.engine.connections import mask_passwords
from infra.catalog.engine.database import Database
from infra.catalog.engine.versions import check_version, upgrade, version
from infra.catalog.identity.catalog_row import read_catalog_row
from infra.catalog.records import replica_rows as on
from infra.catalog.records.loading import own_rows, rows_in
from infra.catalog.records.log_rows import REPLICA, read_log_row
from infra.catalog.records.version_rows import (
    UNIQUE,
    among,
    ids_of,
    index_rows,
    ledger_rows,
    listed_by,
    newest_of_each,
    rows_of,
    tombstone_rows,
    transaction_rows,
    with_parent,
)
from logstore.errors import CatalogBusy, PreconditionFailed
from logstore.failpoints import effect
from logstore.ports.catalog.records import Applied, AppliedRecords, Versions
from logstore.records.kinds import PARENTS, RecordKind, schema
from logstore.records.manifest import Manifest
from logstore.records.rebuilding import LOAD_ORDER
from logstore.records.winners import Parted, parted

_K = RecordKind
_COVERED: Final = ("id", "topic_id", "list_id", "component")
_PARENT: Final[dict[RecordKind, Table]] = {_K.TOPIC: t.topic, _K.LEDGER: t.ledger}


class SqlReplica:
    """The `ReplicaDatabase` port, over a database that is opened for it."""

    def __init__(self, database: Database, database_url: str) -> None:
        """Take the database at the URL."""
        self._db, self._url = database, database_url

    def applied(self) -> Applied | None:
        """See `ReplicaDatabase.applied`."""
        if self._db.is_absent or version(self._db) is None:
            return None
        check_version(self._db)
        return self._db.read(self._applied)

    def apply(
        self, manifest: Manifest, versions: Versions, *, seen: Applied | None, replica: str, seed: bool
    ) -> AppliedRecords:
        """See `ReplicaDatabase.apply`."""
        if self._db.is_absent or version(self._db) is None:
            self._db.make_folder()
            upgrade(self._db, bundles=manifest.bundles)

        def work(connection: Connection) -> AppliedRecords:
            connection.execute(select(t.record_log.c.id).with_for_update())
            if self._applied(connection) != seen:
                raise CatalogBusy("replica: another process has applied to its database meanwhile")
            if seed:
                for name in LOAD_ORDER:
                    on.empty(connection, t.metadata.tables[name])
            done = _Step(connection).all(versions)
            for name, rows in own_rows(manifest, epoch=manifest.epoch, state=REPLICA, rebuild=replica):
                on.insert_rows(connection, t.metadata.tables[name], rows)
            on.empty(connection, t.record_outbox)  # filled by triggers; a replica flushes nothing
            return done

        with effect("records.apply"):
            return self._db.write(work)

    def _applied(self, connection: Connection) -> Applied | None:
        row = read_log_row(connection)
        if row.state == REPLICA:
            catalog = read_catalog_row(connection)
            told = {"epoch": catalog.epoch, "manifest": row.manifest, "stamp": row.stamp, "replica": row.rebuild or ""}
            return Applied(catalog_id=catalog.catalog_id, **told)
        if found := rows_in(connection):
            shown = mask_passwords(self._url)
            raise PreconditionFailed(f"database {shown}: expected an empty one or a replica's, found {found}")
        return None


@contextmanager
def open_replica(database_url: str) -> Iterator[SqlReplica]:
    """The database of a replica, which stays open for as long as the block.

    Raises:
        InvalidInput: Not the URL of a database that can hold a catalog.
    """
    with closing(Database(database_url, pool_size=2)) as database:
        yield SqlReplica(database, database_url)


class _Step:
    """Versions of all kinds, applied in the transaction of a connection: parents before what hangs on them."""

    def __init__(self, connection: Connection) -> None:
        self._c = connection
        self._done = Counter[str]()  # by fields of `AppliedRecords`
        self._summed = set[int]()  # ledgers with new segments, or of which there is a new version
        self._gone: list[int] = []  # topics whose rows went; their lists tell of ledgers that end in the same step

    def all(self, versions: Versions) -> AppliedRecords:
        """Apply them."""
        self._whole(_K.TOPIC, versions)
        lists = self._whole(_K.LIST, versions)
        for kind in (_K.LEDGER, _K.SEGMENT, _K.HIDDEN):
            self._by_range(kind, versions)
        on.remove_children(self._c, self._gone)
        on.sum_ledgers(self._c, sorted(self._summed))
        on.unlist(self._c, ids_of(lists).tolist(), listed_by(lists), sorted(self._summed))
        self._whole(_K.CURSOR, versions)
        for kind in (_K.SCHEMA, _K.PRODUCER, _K.DELETION, _K.TRANSACTION, _K.INDEX, _K.SNAPSHOT):
            self._by_range(kind, versions)
        return AppliedRecords(**self._done)

    def _whole(self, kind: RecordKind, versions: Versions) -> pa.Table:
        """Records whose names are unique: of two with one name the newer one counts; those that were put."""
        parts = [parted(one) for one in versions(kind)]
        for one in parts:
            self._bury(kind, one)
        live = pa.concat_tables([schema(kind).empty_table(), *(self._with_parent(kind, one.live) for one in parts)])
        live = newest_of_each(live, UNIQUE[kind])
        table, rows = rows_of(kind, live)
        older = on.displaced(self._c, table, UNIQUE[kind], rows)
        if kind is _K.TOPIC:
            self._remove_topics(older)
        elif kind is _K.LIST:
            on.remove_lists(self._c, older)
        else:
            on.remove(self._c, t.cursor.c.cursor_id, older)
        on.put_rows(self._c, table, rows)
        self._done.update(records=live.num_rows)
        return live

    def _by_range(self, kind: RecordKind, versions: Versions) -> None:
        for found in versions(kind):
            one = parted(found)
            self._bury(kind, one)
            live = self._with_parent(kind, one.live)
            self._put(kind, live)
            self._done.update(records=live.num_rows)

    def _put(self, kind: RecordKind, live: pa.Table) -> None:
        ids = ids_of(live).tolist()
        if kind in {_K.LEDGER, _K.SEGMENT}:
            self._summed |= set(ids)
        if kind is _K.LEDGER:
            on.remove(self._c, t.ledger_copy.c.ledger_id, ids)
            rows = ledger_rows(live, schema(_K.SEGMENT).empty_table(), ids_of(live))
        elif kind is _K.INDEX:
            on.remove(self._c, t.delayed_bucket.c.topic_id, ids)
            rows = index_rows(live)
        elif kind is _K.TRANSACTION:
            on.forget_parts(self._c, rows_of(kind, live)[1])
            rows = transaction_rows(live)
        else:
            rows = iter([rows_of(kind, live)])
        for table, one in rows:
            on.put_rows(self._c, table, one)

    def _with_parent(self, kind: RecordKind, live: pa.Table) -> pa.Table:
        """Those of the versions whose parent is there; a version that hangs on nothing stays."""
        if kind not in PARENTS:
            return live
        column = "topic_id" if kind in {_K.LIST, _K.CURSOR} else "id"
        parent = _PARENT[PARENTS[kind]]
        (key,) = parent.primary_key
        return with_parent(live, on.known_among(self._c, key, np.unique(ids_of(live, column)).tolist()), column)

    def _bury(self, kind: RecordKind, found: Parted) -> None:
        """Tombstones take the place of rows; a version that is newer than a tombstone takes its place."""
        if kind not in _PARENT:
            return
        alive = t.tombstone.c.kind == kind.value
        on.remove(self._c, t.tombstone.c.id, ids_of(found.live).tolist(), alive)
        if not found.ended.num_rows:
            return
        ids = ids_of(found.ended).tolist()
        table, rows = tombstone_rows(found.ended, self._covered(kind, ids, found.covered), kind)
        on.put_rows(self._c, table, rows)
        self._done.update(tombstones=len(ids))
        if kind is _K.LEDGER:
            self._done.update(removed=on.remove_ledgers(self._c, ids))
        else:
            self._remove_topics(ids)

    def _remove_topics(self, ids: list[int]) -> None:
        self._gone += ids
        self._done.update(removed=on.remove(self._c, t.topic.c.topic_id, ids))

    def _covered(self, kind: RecordKind, ids: list[int], covered: pa.Table) -> pa.Table:
        """Facts of ended records, from their rows or from versions that came with their tombstones."""
        if kind is not _K.LEDGER:
            return covered
        rows = on.ledgers_as_covered(self._c, ids)
        others = covered.select(_COVERED).filter(pc.invert(pa.array(among(ids_of(covered), ids_of(rows)))))
        return pa.concat_tables([rows, others.cast(rows.schema)]).sort_by("id")
