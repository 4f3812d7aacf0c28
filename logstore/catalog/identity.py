"""The catalog's id and the markers of the catalog's buckets, in SQL."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_catalog_row
from logstore.catalog.deletion.intent_queries import INTENT_COLUMNS, intent_from_row
from logstore.catalog.engine.database import CatalogAdapter, Database, in_write_transaction
from logstore.catalog.engine.dialect_sql import ParsableJsonOrNull, build_insert_if_absent
from logstore.catalog.log.ledger_inspection import read_live_copies, read_live_ledger
from logstore.deletion.intents import DeletionState, find_missing_property
from logstore.errors import CatalogVersionMismatch
from logstore.identity.bucket_markers import BucketRole
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ports.catalog.inspection import InspectedCopy
from logstore.positions import LedgerId

_KIND_BY_ROLE = {BucketRole.PRIMARY: CopyKind.LEDGER, BucketRole.TIERED: CopyKind.OFFLOADED_LEDGER}
_C, _P = t.ledger_copy.c, t.pending_deletion.c


class SqlCatalogIdentity(CatalogAdapter):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._catalog_id = ""

    def catalog_id(self) -> str:
        if not self._catalog_id:
            stored_id = self._db.read(read_catalog_row).catalog_id
            if not stored_id:
                raise CatalogVersionMismatch("catalog: expected an id, found none; run `sexton catalog upgrade`")
            self._catalog_id = str(stored_id)
        return self._catalog_id

    def list_marked_buckets(self) -> frozenset[tuple[BucketRole, str]]:
        query = select(t.bucket_marker.c.role, t.bucket_marker.c.bucket)
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return frozenset((BucketRole(row.role), row.bucket) for row in rows)

    @in_write_transaction()
    def record_marker(self, connection: Connection, role: BucketRole, bucket: str) -> None:
        row = {"role": role.value, "bucket": bucket, "marked_us": self._db.now_us(connection)}
        connection.execute(build_insert_if_absent(connection, t.bucket_marker).values(row))

    def list_expected_copies(self, role: BucketRole, bucket: str, *, limit: int) -> Sequence[InspectedCopy]:
        kind = _KIND_BY_ROLE.get(role)
        if kind is None:
            return []

        def read_copies(connection: Connection) -> list[InspectedCopy]:
            live = list(_read_live_copies_in_bucket(connection, kind, bucket, limit))
            return live + list(_read_detached_copies_in_bucket(connection, kind, bucket, limit - len(live)))

        return self._db.read(read_copies)


def _read_live_copies_in_bucket(
    connection: Connection, kind: CopyKind, bucket: str, limit: int
) -> Iterator[InspectedCopy]:
    is_in_bucket = (
        (ParsableJsonOrNull(_C.context)["bucket"].as_string() == bucket,) if kind is CopyKind.OFFLOADED_LEDGER else ()
    )
    query = select(_C.ledger_id).where(_C.kind == kind.value, _C.state == CopyState.LIVE.value, *is_in_bucket)
    for ledger_id in connection.execute(query.order_by(_C.ledger_id.desc()).limit(limit)).scalars().all():
        row = read_live_ledger(connection, LedgerId(ledger_id))
        yield from (copy for copy in read_live_copies(connection, row) if copy.intent.copy is kind) if row else ()


def _read_detached_copies_in_bucket(
    connection: Connection, kind: CopyKind, bucket: str, limit: int
) -> Iterator[InspectedCopy]:
    """Yield the copies of unfinished intents and dead letters, newest first. Damaged rows are left out."""
    query = select(*INTENT_COLUMNS).where(_P.state != DeletionState.DELETED.value, _P.copy == kind.value)
    with connection.execute(query.order_by(_P.row_id.desc()), execution_options={"yield_per": 100}) as rows:
        for row in rows:
            intent = intent_from_row(row)
            is_in_bucket = kind is CopyKind.LEDGER or intent.context.get("bucket") == bucket
            if limit > 0 and is_in_bucket and not intent.damage and not find_missing_property(intent):
                limit -= 1
                yield InspectedCopy(state=intent.state.value, intent=intent)
            if limit <= 0:
                return
