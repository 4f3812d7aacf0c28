"""What readers of topics find: sums over data ledgers, made by the database, and how far readers may see.

No row of a ledger is read for a sum. Readers see up to the first message of the oldest open transaction.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import read_spans_by_topic
from infra.catalog.engine.dialects import among
from infra.catalog.log.ledger_rows import list_query
from infra.catalog.transactions.buffer_rows import BufferView, read_buffers
from logstore.cursors.state import CursorState, count_backlog
from logstore.log.ledgers import Component
from logstore.ports.catalog import Frontier, TopicTotals
from logstore.positions import LedgerId, Position, TopicId

_L = t.ledger.c
_LISTS = t.ledger_list.c
_LISTED = t.ledger_list.join(t.ledger, _L.list_id == _LISTS.list_id)
_IS_DATA = (_LISTS.component == Component.MANAGED_LEDGER.value) & _L.place.is_not(None)


Buffers = Mapping[TopicId, BufferView]
"""Of each topic what `views` answers, read behind its ledgers."""


def read_totals(connection: Connection, topic_ids: Collection[TopicId], buffers: Buffers) -> dict[TopicId, TopicTotals]:
    """Sums over the listed ledgers of each topic, their first entry, and the last one that readers may see."""
    filled = case((_L.entries > 0, _L.ledger_id))
    sums = (func.count(), func.sum(_L.entries), func.sum(_L.size_bytes), func.min(filled), func.max(filled))
    asked = among(connection, _LISTS.topic_id, topic_ids)
    query = select(_LISTS.topic_id, *sums).select_from(_LISTED).where(_IS_DATA, asked).group_by(_LISTS.topic_id)
    rows = connection.execute(query).all()
    lasts = [last for *_, last in rows if last is not None]
    entries: dict[int, int] = {}
    if lasts:
        ends = connection.execute(select(_L.ledger_id, _L.entries).where(among(connection, _L.ledger_id, lasts)))
        entries = {row.ledger_id: row.entries for row in ends}
    found = {TopicId(topic_id): _totals(told, entries) for topic_id, *told in rows}
    for topic_id, view in buffers.items():
        if view.first_open is not None:
            found[topic_id] = replace(found[topic_id], last=read_frontier(connection, topic_id, -1).last)
    return {topic_id: found.get(topic_id, _NOTHING) for topic_id in topic_ids}


_NOTHING = TopicTotals(ledgers=0, entries=0, size_bytes=0, first=None, last=None)


def _totals(told: Iterable[Any], entries: dict[int, int]) -> TopicTotals:
    count, total, size_bytes, first, last = told
    return TopicTotals(
        ledgers=count,
        entries=int(total),
        size_bytes=int(size_bytes),
        first=None if first is None else Position(LedgerId(first), 0),
        last=None if last is None else Position(LedgerId(last), entries[last] - 1),
    )


def _count_backlogs_beside_transactions(
    connection: Connection, states: Mapping[tuple[TopicId, str], CursorState], buffers: Buffers
) -> dict[tuple[TopicId, str], int]:
    """Return backlogs of cursors on topics that have open transactions or hidden entries."""
    asked = {
        topic_id: min(
            state.mark_delete.ledger_id for (cursor_topic, _), state in states.items() if cursor_topic == topic_id
        )
        for topic_id, buffer in buffers.items()
        if (buffer.first_open is not None or buffer.hidden)
        and any(cursor_topic == topic_id for cursor_topic, _ in states)
    }
    listed = read_spans_by_topic(connection, asked) if asked else {}
    return {key: count_backlog(state, listed[key[0]]) for key, state in states.items() if key[0] in listed}


def count_backlogs(
    connection: Connection, topic_id: TopicId, listed: Select[Any], states: Sequence[CursorState]
) -> list[int]:
    """Return the backlog of each state. A state may include a snapshot, which rows lack."""
    if not states:
        return []
    keys = {(topic_id, str(number)): state for number, state in enumerate(states)}
    backlogs = _count_backlogs_beside_transactions(connection, keys, read_buffers(connection, [topic_id]))
    return [backlogs[key] if key in backlogs else _backlog(connection, listed, state) for key, state in keys.items()]


def _backlog(connection: Connection, listed: Select[Any], state: CursorState) -> int:
    """Count listed entries beyond mark-delete that are not acknowledged."""
    mark = state.mark_delete
    left = _beyond(mark.ledger_id, mark.entry_id)
    beyond = listed.with_only_columns(func.sum(left)).where(_L.ledger_id >= mark.ledger_id)
    visible_entries = int(connection.execute(beyond).scalar_one() or 0)
    if not state.acknowledged:
        return visible_entries
    return _without(visible_entries, state, _still_listed(connection, state.acknowledged))


def count_topic_backlogs(
    connection: Connection,
    topic_ids: Collection[TopicId],
    states: Mapping[tuple[TopicId, str], CursorState],
    buffers: Buffers,
) -> dict[tuple[TopicId, str], int]:
    """Return the backlogs of all cursors of the topics. `states` are those of their rows, without snapshots."""
    c = t.cursor.c
    query = (
        select(c.topic_id, c.name, func.sum(_beyond(c.mark_ledger, c.mark_entry)).label("left"))
        .select_from(
            t.cursor.join(t.ledger_list, _LISTS.topic_id == c.topic_id).join(t.ledger, _L.list_id == _LISTS.list_id)
        )
        .where(among(connection, c.topic_id, topic_ids), _IS_DATA, _L.ledger_id >= c.mark_ledger)
        .group_by(c.topic_id, c.name)
    )
    left: dict[tuple[TopicId, str], int] = {
        (TopicId(row.topic_id), row.name): int(row.left) for row in connection.execute(query)
    }
    named = {ledger_id for state in states.values() for ledger_id in state.acknowledged}
    listed = _still_listed(connection, named)
    backlogs = {key: _without(left.get(key, 0), state, listed) for key, state in states.items()}
    return backlogs | _count_backlogs_beside_transactions(connection, states, buffers)


def _beyond(mark_ledger: Any, mark_entry: Any) -> Any:  # noqa: ANN401 - numbers, or columns
    """Entries of a ledger behind a mark, which lies in it or before it."""
    behind = case((_L.ledger_id == mark_ledger, mark_entry + 1), else_=0)
    return case((_L.entries > behind, _L.entries - behind), else_=0)


def _still_listed(connection: Connection, ledger_ids: Collection[LedgerId]) -> set[int]:
    """Return the ledgers that are listed."""
    if not ledger_ids:
        return set()
    named = among(connection, _L.ledger_id, ledger_ids)
    return set(connection.execute(select(_L.ledger_id).select_from(_LISTED).where(_IS_DATA, named)).scalars())


def _without(visible_entries: int, state: CursorState, listed: set[int]) -> int:
    return max(
        0,
        visible_entries - sum(len(entries) for ledger_id, entries in state.acknowledged.items() if ledger_id in listed),
    )


def read_frontier(connection: Connection, topic_id: TopicId, from_ledger: int) -> Frontier:
    """The entries that readers of a topic may see at one moment; the last entry is read first, see `views`."""
    end = last_entry(connection, topic_id)
    view = read_buffers(connection, [topic_id], from_ledger=from_ledger)[topic_id]
    if end is None:
        return Frontier(last=None)
    first = view.first_open
    if first is None:
        return Frontier(last=end, hidden=view.hidden)
    if first.entry_id > 0:
        return Frontier(last=Position(first.ledger_id, first.entry_id - 1), hidden=view.hidden)
    return Frontier(last=last_entry(connection, topic_id, before=first.ledger_id), hidden=view.hidden)


def last_entry(
    connection: Connection, topic_id: TopicId, *, before: LedgerId | None = None, empty_too: bool = False
) -> Position | None:
    """The topic's last entry, or the last in ledgers before that one; None where there is none.

    With `empty_too` an empty last ledger counts, by the position before its first entry, which never goes back.
    """
    c, own = t.ledger.c, list_query(topic_id, Component.MANAGED_LEDGER, {}).scalar_subquery()
    listed = [c.list_id == own, c.place.is_not(None)]
    listed += [] if empty_too else [c.entries > 0]
    listed += [] if before is None else [c.ledger_id < before]
    row = connection.execute(select(c.ledger_id, c.entries).where(*listed).order_by(c.place.desc()).limit(1)).first()
    return None if row is None else Position(LedgerId(row.ledger_id), row.entries - 1)
