"""Sums over the data ledgers of topics, made by the database: no row of a ledger is read for them."""

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from infra.catalog import tables as t
from infra.catalog.engine.many import any_of
from logstore.cursors.state import CursorState
from logstore.log.ledgers import Component
from logstore.ports.catalog import Totals
from logstore.positions import LedgerId, Position, TopicId

_L = t.ledger.c
_LISTS = t.ledger_list.c
_LISTED = t.ledger_list.join(t.ledger, _L.list_id == _LISTS.list_id)
_IS_DATA = (_LISTS.component == Component.MANAGED_LEDGER.value) & _L.place.is_not(None)


def totals_of(connection: Connection, topic_ids: Collection[TopicId]) -> dict[TopicId, Totals]:
    """Sums over the listed ledgers of each topic, and the first and the last entry of them."""
    filled = case((_L.entries > 0, _L.ledger_id))
    sums = (func.count(), func.sum(_L.entries), func.sum(_L.size_bytes), func.min(filled), func.max(filled))
    asked = _LISTS.topic_id.in_(any_of(connection.dialect.name, topic_ids))
    query = select(_LISTS.topic_id, *sums).select_from(_LISTED).where(_IS_DATA, asked).group_by(_LISTS.topic_id)
    rows = connection.execute(query).all()
    wanted = any_of(connection.dialect.name, [last for *_, last in rows if last is not None])
    entries: dict[int, int] = {}
    if any(last is not None for *_, last in rows):
        ends = connection.execute(select(_L.ledger_id, _L.entries).where(_L.ledger_id.in_(wanted)))
        entries = {row.ledger_id: row.entries for row in ends}
    found = {TopicId(topic_id): _totals(told, entries) for topic_id, *told in rows}
    return {topic_id: found.get(topic_id, _NOTHING) for topic_id in topic_ids}


_NOTHING = Totals(ledgers=0, entries=0, size_bytes=0, first=None, last=None)


def _totals(told: Iterable[Any], entries: dict[int, int]) -> Totals:
    count, total, size_bytes, first, last = told
    return Totals(
        ledgers=count,
        entries=int(total),
        size_bytes=int(size_bytes),
        first=None if first is None else Position(LedgerId(first), 0),
        last=None if last is None else Position(LedgerId(last), entries[last] - 1),
    )


def backlog_of(connection: Connection, listed: Select[Any], state: CursorState) -> int:
    """Entries of the listed ledgers beyond the cursor's mark, without those that it has acknowledged one by one."""
    mark = state.mark_delete
    left = _beyond(mark.ledger_id, mark.entry_id)
    beyond = listed.with_only_columns(func.sum(left)).where(_L.ledger_id >= mark.ledger_id)
    open_ones = int(connection.execute(beyond).scalar_one() or 0)
    if not state.acknowledged:
        return open_ones
    return _without(open_ones, state, _still_listed(connection, state.acknowledged))


def backlogs_of(
    connection: Connection, topic_ids: Collection[TopicId], states: dict[tuple[TopicId, str], CursorState]
) -> dict[tuple[TopicId, str], int]:
    """As `backlog_of`, of all cursors of the topics at once; `states` are those of their rows."""
    c = t.cursor.c
    query = (
        select(c.topic_id, c.name, func.sum(_beyond(c.mark_ledger, c.mark_entry)).label("left"))
        .select_from(
            t.cursor.join(t.ledger_list, _LISTS.topic_id == c.topic_id).join(t.ledger, _L.list_id == _LISTS.list_id)
        )
        .where(c.topic_id.in_(any_of(connection.dialect.name, topic_ids)), _IS_DATA, _L.ledger_id >= c.mark_ledger)
        .group_by(c.topic_id, c.name)
    )
    left: dict[tuple[TopicId, str], int] = {
        (TopicId(row.topic_id), row.name): int(row.left) for row in connection.execute(query)
    }
    named = {ledger_id for state in states.values() for ledger_id in state.acknowledged}
    listed = _still_listed(connection, named)
    return {key: _without(left.get(key, 0), state, listed) for key, state in states.items()}


def _beyond(mark_ledger: Any, mark_entry: Any) -> Any:  # noqa: ANN401 - numbers, or columns
    """Entries of a ledger behind a mark, which lies in it or before it."""
    behind = case((_L.ledger_id == mark_ledger, mark_entry + 1), else_=0)
    return case((_L.entries > behind, _L.entries - behind), else_=0)


def _still_listed(connection: Connection, ledger_ids: Collection[LedgerId]) -> set[int]:
    """Those of the ledgers that are listed; a ledger is in one topic's list alone."""
    if not ledger_ids:
        return set()
    named = _L.ledger_id.in_(any_of(connection.dialect.name, ledger_ids))
    return set(connection.execute(select(_L.ledger_id).select_from(_LISTED).where(_IS_DATA, named)).scalars())


def _without(open_ones: int, state: CursorState, listed: set[int]) -> int:
    return max(0, open_ones - sum(len(entries) for one, entries in state.acknowledged.items() if one in listed))
