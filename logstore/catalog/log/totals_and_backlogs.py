"""Totals of message ledgers, backlogs of cursors, and the frontier of readers. The database computes the sums."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, case, func, select

from logstore.catalog import tables as t
from logstore.catalog.cursors.cursor_rows import read_visible_spans_by_topic
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.ledger_rows import select_list_id
from logstore.catalog.transactions.buffer_rows import BufferView, read_buffers
from logstore.cursors.cursor_state import CursorState, count_backlog
from logstore.log.ledgers import Component
from logstore.ports.catalog.log import TopicLedgerTotals
from logstore.ports.catalog.transactions import Frontier
from logstore.positions import LedgerId, Position, TopicId

_L = t.ledger.c
_LISTS = t.ledger_list.c
_LISTED = t.ledger_list.join(t.ledger, _L.list_id == _LISTS.list_id)
_IS_DATA = (_LISTS.component == Component.MANAGED_LEDGER.value) & _L.place.is_not(None)


BufferViewByTopic = Mapping[TopicId, BufferView]
"""Result of `read_buffers`. Buffers and ledgers must be read in one snapshot."""


def read_topic_totals(
    connection: Connection, topic_ids: Collection[TopicId], buffers: BufferViewByTopic
) -> dict[TopicId, TopicLedgerTotals]:
    """Return for each topic: totals of the listed ledgers, the first entry, and the last entry that readers may see."""
    filled = case((_L.entries > 0, _L.ledger_id))
    sums = (func.count(), func.sum(_L.entries), func.sum(_L.size_bytes), func.min(filled), func.max(filled))
    is_requested = is_one_of(connection, _LISTS.topic_id, topic_ids)
    query = select(_LISTS.topic_id, *sums).select_from(_LISTED).where(_IS_DATA, is_requested).group_by(_LISTS.topic_id)
    rows = connection.execute(query).all()
    last_ledgers = [last for *_, last in rows if last is not None]
    entries: dict[int, int] = {}
    if last_ledgers:
        last_rows = connection.execute(
            select(_L.ledger_id, _L.entries).where(is_one_of(connection, _L.ledger_id, last_ledgers))
        )
        entries = {row.ledger_id: row.entries for row in last_rows}
    totals_by_topic = {
        TopicId(topic_id): _totals_from_sums(sums_of_topic, entries) for topic_id, *sums_of_topic in rows
    }
    for topic_id, view in buffers.items():
        if view.first_open is not None:
            totals_by_topic[topic_id] = replace(
                totals_by_topic[topic_id], last=read_frontier(connection, topic_id, -1).last
            )
    return {topic_id: totals_by_topic.get(topic_id, _NO_TOTALS) for topic_id in topic_ids}


_NO_TOTALS = TopicLedgerTotals(ledgers=0, entries=0, size_bytes=0, first=None, last=None)


def _totals_from_sums(sums: Iterable[Any], entries: dict[int, int]) -> TopicLedgerTotals:
    count, total, size_bytes, first, last = sums
    return TopicLedgerTotals(
        ledgers=count,
        entries=int(total),
        size_bytes=int(size_bytes),
        first=None if first is None else Position(LedgerId(first), 0),
        last=None if last is None else Position(LedgerId(last), entries[last] - 1),
    )


def _count_backlogs_with_transactions(
    connection: Connection, states: Mapping[tuple[TopicId, str], CursorState], buffers: BufferViewByTopic
) -> dict[tuple[TopicId, str], int]:
    first_ledger_by_topic = {
        topic_id: min(
            state.mark_delete.ledger_id for (cursor_topic, _), state in states.items() if cursor_topic == topic_id
        )
        for topic_id, buffer in buffers.items()
        if (buffer.first_open is not None or buffer.hidden)
        and any(cursor_topic == topic_id for cursor_topic, _ in states)
    }
    spans_by_topic = read_visible_spans_by_topic(connection, first_ledger_by_topic) if first_ledger_by_topic else {}
    return {
        key: count_backlog(state, spans_by_topic[key[0]]) for key, state in states.items() if key[0] in spans_by_topic
    }


def count_cursor_backlogs(
    connection: Connection, topic_id: TopicId, listed: Select[Any], states: Sequence[CursorState]
) -> list[int]:
    """Return the backlog of each state, in entries. A state may include the content of the cursor snapshot."""
    if not states:
        return []
    keys = {(topic_id, str(number)): state for number, state in enumerate(states)}
    backlogs = _count_backlogs_with_transactions(connection, keys, read_buffers(connection, [topic_id]))
    return [
        backlogs[key] if key in backlogs else _count_backlog(connection, listed, state) for key, state in keys.items()
    ]


def _count_backlog(connection: Connection, listed: Select[Any], state: CursorState) -> int:
    mark = state.mark_delete
    remaining = _entries_after(mark.ledger_id, mark.entry_id)
    query = listed.with_only_columns(func.sum(remaining)).where(_L.ledger_id >= mark.ledger_id)
    visible_entries = int(connection.execute(query).scalar_one() or 0)
    if not state.acknowledged:
        return visible_entries
    return _subtract_acknowledged(visible_entries, state, _filter_listed(connection, state.acknowledged))


def count_topic_backlogs(
    connection: Connection,
    topic_ids: Collection[TopicId],
    states: Mapping[tuple[TopicId, str], CursorState],
    buffers: BufferViewByTopic,
) -> dict[tuple[TopicId, str], int]:
    """Return the backlogs of all cursors of the topics. `states` lack the content of cursor snapshots."""
    c = t.cursor.c
    query = (
        select(c.topic_id, c.name, func.sum(_entries_after(c.mark_ledger, c.mark_entry)).label("left"))
        .select_from(
            t.cursor.join(t.ledger_list, _LISTS.topic_id == c.topic_id).join(t.ledger, _L.list_id == _LISTS.list_id)
        )
        .where(is_one_of(connection, c.topic_id, topic_ids), _IS_DATA, _L.ledger_id >= c.mark_ledger)
        .group_by(c.topic_id, c.name)
    )
    remaining_entries: dict[tuple[TopicId, str], int] = {
        (TopicId(row.topic_id), row.name): int(row.left) for row in connection.execute(query)
    }
    acknowledged_ledgers = {ledger_id for state in states.values() for ledger_id in state.acknowledged}
    listed = _filter_listed(connection, acknowledged_ledgers)
    backlogs = {
        key: _subtract_acknowledged(remaining_entries.get(key, 0), state, listed) for key, state in states.items()
    }
    return backlogs | _count_backlogs_with_transactions(connection, states, buffers)


def _entries_after(mark_ledger: Any, mark_entry: Any) -> Any:  # noqa: ANN401 - numbers, or columns
    first_after = case((_L.ledger_id == mark_ledger, mark_entry + 1), else_=0)
    return case((_L.entries > first_after, _L.entries - first_after), else_=0)


def _filter_listed(connection: Connection, ledger_ids: Collection[LedgerId]) -> set[int]:
    if not ledger_ids:
        return set()
    is_requested = is_one_of(connection, _L.ledger_id, ledger_ids)
    return set(connection.execute(select(_L.ledger_id).select_from(_LISTED).where(_IS_DATA, is_requested)).scalars())


def _subtract_acknowledged(visible_entries: int, state: CursorState, listed: set[int]) -> int:
    return max(
        0,
        visible_entries - sum(len(entries) for ledger_id, entries in state.acknowledged.items() if ledger_id in listed),
    )


def read_frontier(connection: Connection, topic_id: TopicId, from_ledger: int) -> Frontier:
    """Return the frontier of a topic. The last entry is read before the buffer, as `read_buffers` requires."""
    end = read_last_position(connection, topic_id)
    view = read_buffers(connection, [topic_id], from_ledger=from_ledger)[topic_id]
    if end is None:
        return Frontier(last=None)
    first = view.first_open
    if first is None:
        return Frontier(last=end, hidden=view.hidden)
    if first.entry_id > 0:
        return Frontier(last=Position(first.ledger_id, first.entry_id - 1), hidden=view.hidden)
    return Frontier(last=read_last_position(connection, topic_id, before=first.ledger_id), hidden=view.hidden)


def read_last_position(
    connection: Connection, topic_id: TopicId, *, before: LedgerId | None = None, include_empty: bool = False
) -> Position | None:
    """Return the topic's last entry, or `None`. With `before`, only ledgers with lower ids are read.

    With `include_empty`, the result is in the last ledger even if this ledger is empty. The result is then the position
    before the first entry. So later calls never return a lower position.
    """
    c, list_id = t.ledger.c, select_list_id(topic_id, Component.MANAGED_LEDGER, {}).scalar_subquery()
    conditions = [c.list_id == list_id, c.place.is_not(None)]
    conditions += [] if include_empty else [c.entries > 0]
    conditions += [] if before is None else [c.ledger_id < before]
    row = connection.execute(
        select(c.ledger_id, c.entries).where(*conditions).order_by(c.place.desc()).limit(1)
    ).first()
    return None if row is None else Position(LedgerId(row.ledger_id), row.entries - 1)
