"""Outbox and state of the record log in SQL."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, exists, func, or_, select

from logstore.catalog import tables as t
from logstore.catalog.deletion.intent_queries import INTENT_COLUMNS, intent_from_row
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction
from logstore.catalog.engine.dialect_sql import BIG, TEXT, BulkStatement, build_bulk_parameter, is_one_of
from logstore.catalog.records.record_log_row import (
    add_pending_stamp,
    claim_record_log,
    is_manifest_settled,
    read_known_manifest,
    read_log_state,
    release_record_log_claim,
    stage_blocks,
    store_manifest_and_raise_ceilings,
    unstage_blocks,
)
from logstore.catalog.records.recorded_tables import (
    RECORDED_TABLES,
    enqueue_records,
    match_unflushed_records,
    remove_outbox_rows,
    select_keys_of_all_records,
    select_unflushed_ids,
)
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.records import KnownManifest, RecordLogState
from logstore.records.manifest import Block, IdCeilings
from logstore.records.record_kinds import TOMBSTONED_KINDS, RecordKind
from logstore.stop_checks import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.catalog.records.outbox_reader import OutboxChanges

_L, _P, _S = t.ledger.c, t.pending_deletion.c, t.tombstone.c
_KEYS_PER_STATEMENT = 50_000
_OUTBOX_ROWS_PER_TRANSACTION = 5_000  # SQLite has one writer at a time
_SQLITE_PAUSE_S = 0.006  # pause between transactions; a writer waiting for SQLite's lock tries again within 3 ms


class RecordOutbox(CatalogAdapter):
    def read_known_manifest(self) -> KnownManifest:
        """Return the newest known manifest. The cost does not depend on the size of the outbox."""
        return self._db.read(read_known_manifest)

    def read_state(self) -> RecordLogState:
        """Return the state of catalog and outbox. The call counts the outbox rows, so a large outbox costs more."""
        return self._db.read(lambda connection: read_log_state(connection, now_us=self._db.now_us(connection)))

    def claim_record_log(self, claim: Claim) -> bool:
        """Claim the record log, or renew the claim. Return `False` if another workflow has the claim.

        Claims only avoid duplicate work. If several writers write one manifest number, exactly one writer succeeds.
        """
        return self._db.write(lambda c: claim_record_log(c, claim, now_us=self._db.now_us(c)))

    def release_record_log(self, workflow_id: str) -> None:
        self._db.write(lambda connection: release_record_log_claim(connection, workflow_id))

    def add_pending_stamp(self, stamp: str) -> None:
        """Add a stamp to the pending stamps before the manifest with this stamp is stored. Idempotent.

        Raise `CatalogAdopting` if the catalog is a replica database.
        """
        self._db.write(lambda c: add_pending_stamp(c, stamp, now_us=self._db.now_us(c)))

    @contextmanager
    def read_changes(self, *, cursors: bool, page: int | None = None) -> "Iterator[OutboxChanges]":
        """Open a transaction that reads changes in the outbox. The transaction ends with the `with` block.

        With `cursors`, changes of cursors are included. `page` is the approximate number of outbox rows to read, oldest
        first. `None` selects all outbox rows.
        """
        from logstore.catalog.records.outbox_reader import OutboxChanges  # noqa: PLC0415 - its pyarrow costs start-up time

        with self._db.open_snapshot() as connection:
            yield OutboxChanges(connection, cursors=cursors, page=page, at_us=self._db.now_us(connection))

    def requeue_all_records(self) -> None:
        """Add every record and tombstone to the outbox again. Idempotent.

        Each kind is one transaction, so that other writers wait less.
        """
        for keys in select_keys_of_all_records():
            self._db.write(lambda c, keys=keys: enqueue_records(c, keys, at_us=self._db.now_us(c)))  # type: ignore[misc]

    def settle_manifest(
        self,
        *,
        number: int,
        stamp: str,
        ceilings: IdCeilings,
        outbox_rows: Collection[int] = (),
        shows_own_moment: bool = True,
        staged_blocks: Sequence[Block] = (),
    ) -> None:
        """Commit that a manifest is stored: raise the ceilings and remove the given outbox rows. Idempotent.

        All pending stamps are removed, because a writer adds a stamp only after the previous manifest is settled. A
        ceiling never falls.

        A manifest with this or a higher number may already be settled. With `shows_own_moment`, the call then only
        removes the outbox rows. Without `shows_own_moment`, the call changes nothing, because another writer may have
        flushed a newer change of these rows.

        `outbox_rows` are ids. If `shows_own_moment`, the manifest shows a complete moment of the catalog, and no block
        stays staged. Otherwise `staged_blocks` are the blocks of the page to which the manifest belongs.

        The outbox rows are removed in several short transactions. Rows that remain after a crash are flushed again.
        """
        versions = iter(outbox_rows)

        def settle_and_remove_first_rows(connection: Connection, first_versions: Sequence[int]) -> bool:
            if is_manifest_settled(connection, number):
                if shows_own_moment:
                    remove_outbox_rows(connection, first_versions)
                return shows_own_moment
            now_us = self._db.now_us(connection)
            store_manifest_and_raise_ceilings(connection, number=number, stamp=stamp, ceilings=ceilings, now_us=now_us)
            stage_blocks(connection, number, staged_blocks) if not shows_own_moment else unstage_blocks(connection)
            remove_outbox_rows(connection, first_versions)
            return True

        first_versions = list(islice(versions, _OUTBOX_ROWS_PER_TRANSACTION))
        if not self._db.write(partial(settle_and_remove_first_rows, first_versions=first_versions)):
            return
        while next_versions := list(islice(versions, _OUTBOX_ROWS_PER_TRANSACTION)):
            raise_if_stopped()
            if self._db.is_sqlite:
                time.sleep(_SQLITE_PAUSE_S)
            self._db.write(partial(remove_outbox_rows, versions=next_versions))

    @in_read_transaction
    def find_unflushed_ledgers(self, connection: Connection, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Return the ledgers whose tombstone, intent or change of copies is in no block yet.

        The objects of these ledgers must not be deleted. While blocks are staged, all given ledgers with a tombstone
        or an intent are returned.
        """
        statement = _compile_unflushed_ledgers(connection.dialect.name)
        return frozenset(statement.execute(connection, ((ledger_id,) for ledger_id in ledger_ids)).scalars())

    @in_read_transaction
    def list_finished_deletions(self, connection: Connection, ledger_ids: Collection[int]) -> Sequence[DeletionIntent]:
        """Return those finished intents of primary copies whose rows still exist."""
        mine = is_one_of(connection, _P.ledger_id, ledger_ids)
        finished = (_P.copy == CopyKind.LEDGER.value, _P.state == DeletionState.DELETED.value)
        return [intent_from_row(row) for row in connection.execute(select(*INTENT_COLUMNS).where(mine, *finished))]

    @in_read_transaction
    def count_unflushed_deletions(self, connection: Connection) -> int:
        """Return the number of unfinished deletions whose intent is in no block yet."""
        unfinished = select(func.count()).select_from(t.pending_deletion).where(_P.state != DeletionState.DELETED.value)
        has_staged_blocks = connection.execute(select(exists().select_from(t.record_staged))).scalar_one()
        if not has_staged_blocks:
            unfinished = unfinished.where(_P.row_id.in_(select_unflushed_ids(RecordKind.DELETION.value)))
        return int(connection.execute(unfinished).scalar_one())

    def existence_mask(self, kind: RecordKind, keys: "pa.Table") -> "pa.BooleanArray":
        """Return, for each identity (`id`, `sub`) in `keys`, whether the catalog has the record or its tombstone."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        ids, subs = keys.column("id").to_pylist(), keys.column("sub").to_pylist()
        has_row = [False] * len(ids)

        def mark_existing_records(connection: Connection) -> None:
            statement = _compile_existence_lookup(connection.dialect.name, kind)
            for start in range(0, len(ids), _KEYS_PER_STATEMENT):
                end = start + _KEYS_PER_STATEMENT
                rows = zip(range(start, len(ids)), ids[start:end], subs[start:end])  # noqa: B905 - the first is longer
                for index in statement.execute(connection, rows).scalars():
                    has_row[index] = True

        self._db.read(mark_existing_records)
        return pa.array(has_row, pa.bool_())


_LEDGER = RecordKind.LEDGER.value


@cache
def _compile_unflushed_ledgers(dialect: str) -> BulkStatement:
    """Select ledgers whose tombstone, intent or remaining copy has an unflushed change."""
    ledgers = build_bulk_parameter(dialect, "ledgers", {"id": BIG})
    ids = select(ledgers.source.c.id)
    tombstones = select(_S.id).where(_S.kind == _LEDGER, _S.id.in_(ids), match_unflushed_records(_LEDGER, _S.id))
    # The end of an intent is a change in the outbox too, but deletions need not wait for its flush.
    unfinished = _P.state != DeletionState.DELETED.value
    intents = select(_P.ledger_id).where(_P.ledger_id.in_(ids), unfinished)
    intents = intents.where(match_unflushed_records(RecordKind.DELETION.value, _P.row_id))
    # If one copy of a ledger is deleted, a block must have the other copy. Otherwise a rebuild would not find the
    # ledger.
    copies = select(_L.ledger_id).where(_L.ledger_id.in_(ids), match_unflushed_records(_LEDGER, _L.ledger_id))
    return BulkStatement(sql=tombstones.union(intents, copies), rows=ledgers)


def _compile_existence_lookup(dialect: str, kind: RecordKind) -> BulkStatement:
    keys = build_bulk_parameter(dialect, "keys", {"at": BIG, "id": BIG, "sub": TEXT})
    c = keys.source.c
    has_row: ColumnElement[bool] = exists().where(RECORDED_TABLES[kind].match_key(c.id, c.sub))
    if kind in TOMBSTONED_KINDS:
        has_row = or_(has_row, exists().where(_S.kind == kind.value, _S.id == c.id))
    return BulkStatement(sql=select(c.at).where(has_row), rows=keys)
