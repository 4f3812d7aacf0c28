"""Who comes too late: what it stored stands where phase two has looked already, so phase two looks once more."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, exists, select, update

from infra.catalog import tables as t
from infra.catalog.deletion.claims import UNCLAIMED
from infra.catalog.engine.many import any_of
from logstore.deletion.intents import DeletionState
from logstore.log.ledgers import CopyKind
from logstore.positions import LedgerId

_P = t.pending_deletion.c


def reopen_intent(connection: Connection, ledger_id: LedgerId) -> None:
    """Let phase two look again at a newborn that was abandoned too early: its creator has put objects since.

    An attempt that found nothing of it and is about to say so no longer may: the row is nobody's now.
    """
    _reopen(connection, _P.ledger_id == ledger_id, _P.segments == 0)


def reopen_late(connection: Connection, ledger_ids: Collection[LedgerId], *, epoch: int) -> None:
    """Let phase two look again at ledgers whose primary copy went while somebody uploaded to it.

    What was uploaded is not registered, and may be there; as for a newborn, who has the row may no longer say what it
    saw before. A ledger that has its primary copy needs nothing: whoever deletes that lists all of it. One without an
    intent is of nobody, and is left alone; so is one of another catalog.

    Args:
        connection: In a writing transaction.
        ledger_ids: What was uploaded to.
        epoch: Of the catalog that the uploader spoke of.
    """
    asked = _P.ledger_id.in_(any_of(connection.dialect.name, ledger_ids))
    c = t.ledger_copy.c
    gone = ~exists().where(c.ledger_id == _P.ledger_id, c.kind == CopyKind.LEDGER.value)
    ours = select(t.catalog.c.epoch).scalar_subquery() == epoch
    _reopen(connection, asked, _P.copy == CopyKind.LEDGER.value, gone, ours)


def _reopen(connection: Connection, *late: ColumnElement[bool]) -> None:
    """Make rows unfinished and nobody's, so that who looked too early ends none of them; dead letters stay.

    One that had ended is counted as opened again: its `delete-ledger` has completed, and the next has another id.
    """
    acted_on = _P.state.in_((DeletionState.DELETED.value, DeletionState.PENDING.value))
    openings = _P.openings + case((_P.state == DeletionState.DELETED.value, 1), else_=0)
    again: dict[str, Any] = {"state": DeletionState.PENDING.value, "outcome": None, "batch_id": "", "finished_us": None}
    again |= {"openings": openings}
    connection.execute(update(t.pending_deletion).where(*late, acted_on).values(**again, **UNCLAIMED))
