"""Journal of deletions in a Pulsar cluster, in SQL. This module alone writes its tables."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, select, update

from logstore.catalog import tables as t
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import build_insert_if_absent, dataclass_from_row, is_one_of
from logstore.errors import UnknownObject
from logstore.ports.catalog.reconciliation import JournaledLedger, JournaledRemoval

_Z = t.deleted_znode.c
_R = t.cluster_removal.c
_LEDGERS_PER_PAGE = 1_000
_ROWS_PER_STATEMENT = 1_000  # with ten parameters a row, within the limits of both databases


class ClusterJournal(CatalogAdapter):
    """Deletions of the applies of plans of a cluster. `run_id` is that of an apply."""

    @in_write_transaction("catalog.journal_ledgers")
    def add(self, connection: Connection, run_id: str, ledgers: Sequence[JournaledLedger]) -> None:
        """Store ledgers before their deletion. A ledger that is in the journal keeps its first row.

        Raises:
            UnknownObject: No run has this id.
        """
        _require_run(connection, run_id)
        now = self._db.now_us(connection)
        insert = build_insert_if_absent(connection, t.deleted_znode)
        for start in range(0, len(ledgers), _ROWS_PER_STATEMENT):
            part = ledgers[start : start + _ROWS_PER_STATEMENT]
            rows = [_make_row(ledger, run_id, now) for ledger in part]
            connection.execute(insert, rows)

    def find_ledger_ids(self, run_id: str, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of the ids that are in the journal."""

        def find(connection: Connection) -> frozenset[int]:
            is_one = is_one_of(connection, _Z.ledger_id, ledger_ids)
            return frozenset(connection.execute(select(_Z.ledger_id).where(_Z.run_id == run_id, is_one)).scalars())

        return self._db.read(find)

    @in_write_transaction("catalog.settle_journal")
    def settle(
        self, connection: Connection, run_id: str, *, deleted_ids: Collection[int], existing_ids: Collection[int]
    ) -> None:
        """Store the time of deletion, and forget ledgers that were never deleted. Idempotent: the first time stays.

        A ledger that an undo has put back stays in the journal.
        """
        is_deleted = is_one_of(connection, _Z.ledger_id, deleted_ids)
        unmarked = update(t.deleted_znode).where(_Z.run_id == run_id, is_deleted, _Z.deleted_us.is_(None))
        connection.execute(unmarked.values(deleted_us=self._db.now_us(connection)))
        if existing_ids:
            exists = is_one_of(connection, _Z.ledger_id, existing_ids)
            was_never_deleted = and_(_Z.deleted_us.is_(None), _Z.restoration.is_(None))
            connection.execute(delete(t.deleted_znode).where(_Z.run_id == run_id, exists, was_never_deleted))

    @in_write_transaction("catalog.store_undo_results")
    def store_undo_results(self, connection: Connection, run_id: str, ledgers: Sequence[JournaledLedger]) -> None:
        """Store `restoration` and `stored_data` of ledgers of the journal. Idempotent."""
        if not ledgers:
            return
        changed = update(t.deleted_znode).where(_Z.run_id == run_id, _Z.ledger_id == bindparam("ledger"))
        values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in ("restoration", "stored_data")}
        rows = [
            {"ledger": each.ledger_id, "new_restoration": each.restoration, "new_stored_data": each.stored_data}
            for each in ledgers
        ]
        connection.execute(changed.values(values), rows)

    def list_ledgers(
        self, run_id: str, *, after: int, limit: int, ledger_ids: Collection[int] | None = None
    ) -> list[JournaledLedger]:
        """Return ledgers with ids above `after`, ascending, only those of `ledger_ids` if it is given.

        The journal leaves with the run.
        """

        def list_page(connection: Connection) -> list[JournaledLedger]:
            query = select(t.deleted_znode).where(_Z.run_id == run_id, _Z.ledger_id > after)
            if ledger_ids is not None:
                query = query.where(is_one_of(connection, _Z.ledger_id, ledger_ids))
            rows = connection.execute(query.order_by(_Z.ledger_id).limit(limit))
            return [dataclass_from_row(JournaledLedger, row) for row in rows]

        return self._db.read(list_page)

    @in_write_transaction("catalog.journal_removals")
    def add_removals(self, connection: Connection, run_id: str, removals: Sequence[JournaledRemoval]) -> None:
        """Store removals that no undo puts back, before they begin. A finding of the journal keeps its first row.

        Raises:
            UnknownObject: No run has this id.
        """
        _require_run(connection, run_id)
        now = self._db.now_us(connection)
        rows = [{**asdict(removal), "run_id": run_id, "journaled_us": now} for removal in removals]
        if rows:
            connection.execute(build_insert_if_absent(connection, t.cluster_removal), rows)

    @in_write_transaction("catalog.settle_removals")
    def settle_removals(self, connection: Connection, run_id: str, numbers: Collection[int]) -> None:
        """Store the time of removal. Idempotent: the first time stays."""
        is_removed = is_one_of(connection, _R.number, numbers)
        unmarked = update(t.cluster_removal).where(_R.run_id == run_id, is_removed, _R.removed_us.is_(None))
        connection.execute(unmarked.values(removed_us=self._db.now_us(connection)))

    def list_removals(
        self, run_id: str, *, after: int, limit: int, numbers: Collection[int] | None = None
    ) -> list[JournaledRemoval]:
        """Return removals with numbers above `after`, ascending, only those of `numbers` if it is given."""

        def list_page(connection: Connection) -> list[JournaledRemoval]:
            query = select(t.cluster_removal).where(_R.run_id == run_id, _R.number > after)
            if numbers is not None:
                query = query.where(is_one_of(connection, _R.number, numbers))
            rows = connection.execute(query.order_by(_R.number).limit(limit))
            return [dataclass_from_row(JournaledRemoval, row) for row in rows]

        return self._db.read(list_page)


def _require_run(connection: Connection, run_id: str) -> None:
    if connection.execute(select(t.run.c.run_id).where(t.run.c.run_id == run_id)).first() is None:
        raise UnknownObject("run_id", expected="the run of an apply", found=run_id)


def _make_row(ledger: JournaledLedger, run_id: str, now_us: int) -> dict[str, Any]:
    """Return the columns of a ledger. `asdict` copies each value, which takes a fifth of the time of an apply."""
    fields = {name: getattr(ledger, name) for name in JournaledLedger.__dataclass_fields__}
    return fields | {"run_id": run_id, "journaled_us": now_us}


def remove_journals(connection: Connection, run_ids: Collection[str]) -> None:
    connection.execute(delete(t.deleted_znode).where(_Z.run_id.in_(run_ids)))
    connection.execute(delete(t.cluster_removal).where(_R.run_id.in_(run_ids)))


def iterate_journal(
    journal: ClusterJournal, run_id: str, *, ledger_ids: Collection[int] | None = None
) -> Iterator[JournaledLedger]:
    """Yield the ledgers of a journal, ascending. Memory holds one page."""
    after = -1
    while page := journal.list_ledgers(run_id, after=after, limit=_LEDGERS_PER_PAGE, ledger_ids=ledger_ids):
        yield from page
        after = page[-1].ledger_id


def iterate_removals(journal: ClusterJournal, run_id: str) -> Iterator[JournaledRemoval]:
    """Yield the removals of a journal that no undo puts back, ascending. Memory holds one page."""
    after = -1
    while page := journal.list_removals(run_id, after=after, limit=_LEDGERS_PER_PAGE):
        yield from page
        after = page[-1].number
