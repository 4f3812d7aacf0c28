"""The outbox and the state of the record log, in SQL."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, cast, exists, func, or_, select

from infra.catalog import tables as t
from infra.catalog.deletion.intents import INTENT, to_intent
from infra.catalog.engine.database import CatalogAdapter, reads
from infra.catalog.engine.dialects import BIG, TEXT, Statement, among, bulk_parameter
from infra.catalog.records.log_rows import (
    begin_stamp,
    known_of,
    knows,
    let_claim_go,
    settle_manifest,
    stage_blocks,
    state_of,
    take_claim,
    unstage_blocks,
)
from infra.catalog.records.outbox_rows import SOURCES, every_record, forget_changes, record, waiting_ids, waits
from logstore.deletion.intents import DeletionIntent, DeletionState
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog import Claim, KnownManifest, RecordLogState
from logstore.records.kinds import TOMBSTONED, RecordKind
from logstore.records.manifest import Block, Ceilings
from logstore.units import raise_if_stopped

if TYPE_CHECKING:
    import pyarrow as pa

    from infra.catalog.records.changes import SqlChanges

_L, _P, _S = t.ledger.c, t.pending_deletion.c, t.tombstone.c
_CHUNK = 50_000
_FORGOTTEN = 5_000  # outbox rows of one transaction: SQLite has one writer at a time
_REST_S = 0.006  # behind it: a writer that waits for SQLite's lock looks again after 3 ms at the most


class SqlRecords(CatalogAdapter):
    """The `Records` port."""

    def known(self) -> KnownManifest:
        """See `Records.known`."""
        return self._db.read(known_of)

    def state(self) -> RecordLogState:
        """See `Records.state`."""
        return self._db.read(lambda connection: state_of(connection, now_us=self._db.now_us(connection)))

    def claim(self, claim: Claim) -> bool:
        """See `Records.claim`."""
        return self._db.write(lambda c: take_claim(c, claim, now_us=self._db.now_us(c)))

    def release(self, workflow_id: str) -> None:
        """See `Records.release`."""
        self._db.write(lambda connection: let_claim_go(connection, workflow_id))

    def begin(self, stamp: str) -> None:
        """See `Records.begin`; repeating it changes nothing but the time at which it began."""
        self._db.write(lambda c: begin_stamp(c, stamp, now_us=self._db.now_us(c)))

    @contextmanager
    def changes(self, *, cursors: bool, page: int | None = None) -> "Iterator[SqlChanges]":
        """See `Records.changes`."""
        from infra.catalog.records.changes import SqlChanges  # noqa: PLC0415 - its pyarrow costs start-up time

        with self._db.snapshot() as connection:
            yield SqlChanges(connection, cursors=cursors, page=page, at_us=self._db.now_us(connection))

    def record_all(self) -> None:
        """See `Records.record_all`; a transaction for each kind, so that no writer waits for all of them."""
        for statement in every_record():
            self._db.write(lambda c, rows=statement: record(c, rows, at_us=self._db.now_us(c)))  # type: ignore[misc]

    def settle(
        self,
        *,
        number: int,
        stamp: str,
        ceilings: Ceilings,
        taken: Collection[int] = (),
        whole: bool = True,
        staged: Sequence[Block] = (),
    ) -> None:
        """See `Records.settle`; the outbox is emptied in parts, a transaction each, so that no writer waits for long.

        Dying between two leaves rows that the manifest covers: they are flushed again, as versions that say the same.
        """
        ids = iter(taken)

        def work(connection: Connection, first: Sequence[int]) -> bool:
            if knows(connection, number):
                if whole:
                    forget_changes(connection, first)
                return whole
            now_us = self._db.now_us(connection)
            settle_manifest(connection, number=number, stamp=stamp, ceilings=ceilings, now_us=now_us)
            stage_blocks(connection, number, staged) if not whole else unstage_blocks(connection)
            forget_changes(connection, first)
            return True

        if not self._db.write(partial(work, first=list(islice(ids, _FORGOTTEN)))):
            return
        while part := list(islice(ids, _FORGOTTEN)):
            raise_if_stopped()
            if self._db.is_sqlite:
                time.sleep(_REST_S)
            self._db.write(partial(forget_changes, taken=part))

    @reads
    def unflushed(self, connection: Connection, ledger_ids: Sequence[int]) -> frozenset[int]:
        """See `Records.unflushed`."""
        asking = _unflushed(connection.dialect.name)
        return frozenset(asking.execute(connection, ((one,) for one in ledger_ids)).scalars())

    @reads
    def finished_deletions(self, connection: Connection, ledger_ids: Collection[int]) -> Sequence[DeletionIntent]:
        """See `Records.finished_deletions`."""
        these = among(connection, _P.ledger_id, ledger_ids)
        finished = (_P.copy == CopyKind.LEDGER.value, _P.state == DeletionState.DELETED.value)
        return [to_intent(row) for row in connection.execute(select(*INTENT).where(these, *finished))]

    @reads
    def waiting_deletions(self, connection: Connection) -> int:
        """See `Records.waiting_deletions`."""
        unfinished = select(func.count()).select_from(t.pending_deletion).where(_P.state != DeletionState.DELETED.value)
        filed = waiting_ids(RecordKind.DELETION.value)
        staged = connection.execute(select(exists().select_from(t.record_staged))).scalar_one()
        wanted = unfinished if staged else unfinished.where(_P.row_id.in_(filed))
        return int(connection.execute(wanted).scalar_one())

    def standing(self, kind: RecordKind, keys: "pa.Table") -> "pa.BooleanArray":
        """See `Records.standing`."""
        import pyarrow as pa  # noqa: PLC0415 - start-up time

        ids, subs = keys.column("id").to_pylist(), keys.column("sub").to_pylist()
        stands = [False] * len(ids)

        def work(connection: Connection) -> None:
            asking = _asking(connection.dialect.name, kind)
            for start in range(0, len(ids), _CHUNK):
                rows = zip(range(start, len(ids)), ids[start : start + _CHUNK], subs[start : start + _CHUNK])  # noqa: B905 - the first is longer
                for at in asking.execute(connection, rows).scalars():
                    stands[at] = True

        self._db.read(work)
        return pa.array(stands, pa.bool_())


_LEDGER = RecordKind.LEDGER.value


@cache
def _unflushed(dialect: str) -> Statement:
    """Those of the ledgers of whose tombstone, intent or remaining copy a change waits in the outbox."""
    ledgers = bulk_parameter(dialect, "ledgers", {"id": BIG})
    asked = select(ledgers.source.c.id)
    buried = select(_S.id).where(_S.kind == _LEDGER, _S.id.in_(asked), waits(_LEDGER, _S.id))
    unfinished = _P.state != DeletionState.DELETED.value  # its end is a change of the intent that matters no more
    filed = select(_P.ledger_id).where(_P.ledger_id.in_(asked), unfinished)
    waiting = filed.where(waits(RecordKind.DELETION.value, _P.row_id))
    # of a ledger that stays one copy goes: the other one has to be in a block, or nothing of it would be found
    left = select(_L.ledger_id).where(_L.ledger_id.in_(asked), waits(_LEDGER, _L.ledger_id))
    return Statement(sql=buried.union(waiting, left), rows=ledgers)


def _asking(dialect: str, kind: RecordKind) -> Statement:
    """Which of the numbered keys are of a row, or of a tombstone."""
    source = SOURCES[kind]
    table: Any = t.metadata.tables[source.table]
    asked = bulk_parameter(dialect, "asked", {"at": BIG, "id": BIG, "sub": TEXT})
    c = asked.source.c
    same = [table.c[source.id] == c.id]
    if source.sub:
        column = table.c[source.sub]
        same.append(column == (cast(c.sub, column.type) if source.number else c.sub))
    found = or_(exists().where(*same))
    if kind in TOMBSTONED:
        found = or_(found, exists().where(_S.kind == kind.value, _S.id == c.id))
    return Statement(sql=select(c.at).where(found), rows=asked)
