"""Birth of a ledger in SQL, whatever its component: an id of its own, and a row that is in no list yet."""

from sqlalchemy import Connection, insert, update

from infra.catalog import tables as t
from logstore.log.ledgers import CopyKind, CopyState, LedgerOwner, LedgerState, LedgerStatement
from logstore.positions import LedgerId


def newborn(connection: Connection, owner: LedgerOwner, list_id: int, *, now_us: int) -> LedgerStatement:
    """Take the next ledger id and insert its row, CREATING."""
    taken = connection.execute(
        update(t.catalog)
        .values(next_ledger_id=t.catalog.c.next_ledger_id + 1)
        .returning(t.catalog.c.next_ledger_id - 1, t.catalog.c.epoch)
    ).one()
    statement = LedgerStatement(owner=owner, ledger_id=LedgerId(taken[0]), created_us=now_us, epoch=taken[1])
    _insert_newborn(connection, statement, list_id)
    return statement


def _insert_newborn(connection: Connection, statement: LedgerStatement, list_id: int) -> None:
    connection.execute(
        insert(t.ledger).values(
            ledger_id=statement.ledger_id,
            list_id=list_id,
            application=statement.owner.application,
            state=LedgerState.CREATING.value,
            epoch=statement.epoch,
            created_us=statement.created_us,
            entries=0,
            size_bytes=0,
            segments=0,
            last_segment=-1,
            generation=0,
        )
    )
    connection.execute(
        insert(t.ledger_copy).values(
            ledger_id=statement.ledger_id, kind=CopyKind.LEDGER.value, state=CopyState.WRITING.value, context={}
        )
    )
