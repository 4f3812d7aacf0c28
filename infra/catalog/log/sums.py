"""Sums over a topic's ledgers, made by the database: no row of a ledger is read for them."""

from typing import Any

from sqlalchemy import Connection, Select, case, func

from infra.catalog import tables as t
from infra.catalog.engine.many import any_of
from logstore.cursors.state import CursorState
from logstore.ports.catalog import Totals
from logstore.positions import LedgerId, Position

_L = t.ledger.c


def totals_of(connection: Connection, listed: Select[Any]) -> Totals:
    """Sums over the ledgers that are listed, and the first and the last entry of them."""
    filled = case((_L.entries > 0, _L.ledger_id))
    sums = (func.count(), func.sum(_L.entries), func.sum(_L.size_bytes), func.min(filled), func.max(filled))
    count, entries, size_bytes, first, last = connection.execute(listed.with_only_columns(*sums)).one()
    ends = None
    if last is not None:
        ends = connection.execute(listed.with_only_columns(_L.entries).where(_L.ledger_id == last)).scalar_one()
    return Totals(
        ledgers=count,
        entries=int(entries or 0),
        size_bytes=int(size_bytes or 0),
        first=None if first is None else Position(LedgerId(first), 0),
        last=None if ends is None else Position(LedgerId(last), ends - 1),
    )


def backlog_of(connection: Connection, listed: Select[Any], state: CursorState) -> int:
    """Entries of the listed ledgers beyond the cursor's mark, without those that it has acknowledged one by one."""
    mark = state.mark_delete
    behind = case((_L.ledger_id == mark.ledger_id, mark.entry_id + 1), else_=0)
    left = case((_L.entries > behind, _L.entries - behind), else_=0)
    beyond = listed.with_only_columns(func.sum(left)).where(_L.ledger_id >= mark.ledger_id)
    open_ones = int(connection.execute(beyond).scalar_one() or 0)
    if not state.acknowledged:
        return open_ones
    named = _L.ledger_id.in_(any_of(connection.dialect.name, state.acknowledged))
    still = connection.execute(listed.with_only_columns(_L.ledger_id).where(named)).scalars()
    return max(0, open_ones - sum(len(state.acknowledged[LedgerId(one)]) for one in still))
