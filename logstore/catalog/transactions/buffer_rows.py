"""Sole writer of the transaction buffers of topics: the tables `buffer_range` and `buffer_hidden`.

A range has consecutive entries of one transaction. The state of the transaction decides whether readers read the range,
wait before the range, or skip it. When the transaction is settled in the topic, the range is removed. The entries of an
aborted transaction then become hidden. One row for each ledger has a bitmap of the hidden entries, so readers need no
lookup for each entry.

Source: Pulsar's TopicTransactionBuffer (maxReadPosition, aborted transactions).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from pyroaring import BitMap
from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, select, tuple_, update

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import (
    BIG,
    BulkParameter,
    BulkStatement,
    build_bulk_parameter,
    build_dialect_insert,
    is_one_of,
)
from logstore.cursors.cursor_state import unite_entries
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transaction_ids_and_states import TransactionId, TransactionState

_B = t.buffer_range.c
_H = t.buffer_hidden.c
_T = t.transaction.c
_IS_OF_TRANSACTION = and_(_T.tc_id == _B.tc_id, _T.sequence == _B.sequence)
_RANGE_COLUMNS = ("ledger_id", "first_entry", "entries", "topic_id", "tc_id", "sequence")


@dataclass(slots=True)
class BufferView:
    first_open: Position | None = None  # first message of the oldest open transaction
    hidden: dict[LedgerId, BitMap] = field(default_factory=dict)


def read_buffers(
    connection: Connection, topic_ids: Collection[TopicId], *, from_ledger: int = -1
) -> dict[TopicId, BufferView]:
    """Return the buffers of topics, without hidden entries in ledgers below `from_ledger`.

    Outside a snapshot, the caller must read the ledgers before the buffers. Otherwise, entries registered between the
    two reads would seem committed. Ranges are read before bitmaps, because the settlement of an abort moves entries
    from ranges to bitmaps.
    """
    buffers = {topic_id: BufferView() for topic_id in topic_ids}
    is_open = _T.state == TransactionState.OPEN.value
    group_key = case((is_open, -1), else_=_B.first_entry)  # one row for all open ranges of a ledger
    columns = (_B.topic_id, _B.ledger_id, is_open.label("is_open"), func.min(_B.first_entry), func.sum(_B.entries))
    states = (TransactionState.OPEN.value, TransactionState.ABORTING.value)
    unsettled = (is_one_of(connection, _B.topic_id, topic_ids), _T.state.in_(states))
    ranges = select(*columns).join(t.transaction, _IS_OF_TRANSACTION).where(*unsettled)
    for topic_id, ledger_id, is_range_open, first, entries in connection.execute(
        ranges.group_by(_B.topic_id, _B.ledger_id, is_open, group_key)
    ):
        view, position = buffers[TopicId(topic_id)], Position(LedgerId(ledger_id), first)
        if is_range_open:
            view.first_open = min(view.first_open or position, position)
        else:
            unite_entries(view.hidden, {position.ledger_id: BitMap(range(first, first + int(entries)))})
    hidden = (is_one_of(connection, _H.topic_id, topic_ids), _H.ledger_id >= from_ledger)
    bitmaps = select(_H.topic_id, _H.ledger_id, _H.entries).where(*hidden)
    for topic_id, ledger_id, packed in connection.execute(bitmaps):
        unite_entries(buffers[TopicId(topic_id)].hidden, {LedgerId(ledger_id): BitMap.deserialize(packed)})
    return buffers


def read_open_entries(connection: Connection, topic_id: TopicId) -> dict[TransactionId, dict[LedgerId, BitMap]]:
    columns = (_B.tc_id, _B.sequence, _B.ledger_id, _B.first_entry, _B.entries)
    is_open = (_B.topic_id == topic_id, _T.state == TransactionState.OPEN.value)
    entries_by_txn: dict[TransactionId, dict[LedgerId, BitMap]] = {}
    for tc_id, sequence, ledger_id, first, entries in connection.execute(
        select(*columns).join(t.transaction, _IS_OF_TRANSACTION).where(*is_open)
    ):
        bits = BitMap(range(first, first + entries))
        unite_entries(entries_by_txn.setdefault(TransactionId(tc_id, sequence), {}), {LedgerId(ledger_id): bits})
    return entries_by_txn


def insert_buffer_ranges(connection: Connection, ranges: Collection[tuple[int, ...]]) -> None:
    """Insert rows with the columns `_RANGE_COLUMNS`. The caller has locked the ledgers and the open transactions."""
    if ranges:
        _compile_range_insert(connection.dialect.name).execute(connection, ranges)


@cache
def _compile_range_insert(dialect: str) -> BulkStatement:
    added = build_bulk_parameter(dialect, "added", dict.fromkeys(_RANGE_COLUMNS, BIG))
    columns = select(*(added.source.c[name] for name in added.columns))
    return BulkStatement(sql=insert(t.buffer_range).from_select(added.columns, columns), rows=added)


def hide_entries(
    connection: Connection, topic_by_ledger: Mapping[LedgerId, TopicId], entries_by_ledger: Mapping[LedgerId, BitMap]
) -> None:
    """Hide entries of ledgers that the caller has locked."""
    if not entries_by_ledger:
        return
    stored = connection.execute(select(t.buffer_hidden).where(is_one_of(connection, _H.ledger_id, entries_by_ledger)))
    hidden = {LedgerId(row.ledger_id): BitMap.deserialize(row.entries) for row in stored}
    unite_entries(hidden, entries_by_ledger)
    rows = [
        {"ledger_id": ledger_id, "topic_id": topic_by_ledger[ledger_id], "entries": hidden[ledger_id].serialize()}
        for ledger_id in sorted(entries_by_ledger)
    ]
    put = build_dialect_insert(connection.dialect.name, t.buffer_hidden)
    put = put.on_conflict_do_update(index_elements=["ledger_id"], set_={"entries": put.excluded.entries})
    connection.execute(put, rows)


def remove_entries_from_buffers(connection: Connection, first_entry_by_ledger: Mapping[LedgerId, int]) -> None:
    for ledger_id, first_entry in first_entry_by_ledger.items():
        connection.execute(delete(t.buffer_range).where(_B.ledger_id == ledger_id, _B.first_entry >= first_entry))
    rows = connection.execute(select(t.buffer_hidden).where(is_one_of(connection, _H.ledger_id, first_entry_by_ledger)))
    for row in rows.all():
        remaining = BitMap.deserialize(row.entries) & BitMap(range(first_entry_by_ledger[row.ledger_id]))
        mine = _H.ledger_id == row.ledger_id
        connection.execute(update(t.buffer_hidden).where(mine).values(entries=remaining.serialize()))


def settle_buffer_ranges(connection: Connection, settled: Collection[tuple[TopicId, TransactionId]]) -> None:
    """Remove the ranges of decided transactions, and hide the entries of aborted transactions.

    Ledgers are locked in ascending order.
    """
    keys = {(topic_id, txn.tc_id, txn.sequence) for topic_id, txn in settled}
    statements = _compile_range_settling(connection.dialect.name)
    statements.remove_committed.execute(connection, keys)
    rows = statements.read_aborted.execute(connection, keys).all()
    if not rows:
        return
    aborted: dict[LedgerId, BitMap] = {}
    for row in rows:
        unite_entries(aborted, {LedgerId(row.ledger_id): BitMap(range(row.first_entry, row.first_entry + row.entries))})
    ids = t.ledger.c.ledger_id
    locking = select(ids).where(is_one_of(connection, ids, aborted)).order_by(ids).with_for_update()
    existing = set(connection.execute(locking).scalars())
    hidden = {ledger_id: bits for ledger_id, bits in aborted.items() if ledger_id in existing}
    hide_entries(connection, {LedgerId(row.ledger_id): TopicId(row.topic_id) for row in rows}, hidden)
    statements.remove_ranges.execute(connection, [(row.ledger_id, row.first_entry) for row in rows])


class _RangeSettlingStatements(NamedTuple):
    """Statements that settle ranges. `remove_ranges` removes exactly the rows that `read_aborted` returned."""

    remove_committed: BulkStatement
    read_aborted: BulkStatement
    remove_ranges: BulkStatement


@cache
def _compile_range_settling(dialect: str) -> _RangeSettlingStatements:
    settled = build_bulk_parameter(dialect, "asked", {"topic_id": BIG, "tc_id": BIG, "sequence": BIG})
    is_settled = and_(*(_B[name] == settled.source.c[name] for name in settled.columns))
    keys = (_B.ledger_id, _B.first_entry)
    commits = [state.value for state in TransactionState if state.is_commit]
    aborts = [TransactionState.ABORTING.value, TransactionState.ABORTED.value]
    committed = select(*keys).join(settled.source, is_settled).join(t.transaction, _IS_OF_TRANSACTION)
    aborted = select(*keys, _B.entries, _B.topic_id).join(settled.source, is_settled)
    aborted = aborted.join(t.transaction, _IS_OF_TRANSACTION).where(_T.state.in_(aborts))
    ranges = build_bulk_parameter(dialect, "gone", {"ledger_id": BIG, "first_entry": BIG})
    committed_ranges = tuple_(*keys).in_(committed.where(_T.state.in_(commits)))
    given_ranges = tuple_(*keys).in_(select(ranges.source.c.ledger_id, ranges.source.c.first_entry))
    return _RangeSettlingStatements(
        remove_committed=BulkStatement(sql=delete(t.buffer_range).where(committed_ranges), rows=settled),
        read_aborted=BulkStatement(sql=aborted, rows=settled),
        remove_ranges=BulkStatement(sql=delete(t.buffer_range).where(given_ranges), rows=ranges),
    )


def remove_ledgers_from_buffers(connection: Connection, removed: Any) -> None:  # noqa: ANN401 - a subquery of ledger ids
    """Remove the buffer rows of ledgers. The caller removes these ledgers in the same SQL transaction."""
    connection.execute(delete(t.buffer_range).where(_B.ledger_id.in_(removed)))
    connection.execute(delete(t.buffer_hidden).where(_H.ledger_id.in_(removed)))


def remove_topic_buffer(connection: Connection, topic_id: TopicId) -> int:
    ranges = connection.execute(delete(t.buffer_range).where(_B.topic_id == topic_id)).rowcount
    return ranges + connection.execute(delete(t.buffer_hidden).where(_H.topic_id == topic_id)).rowcount


def match_unsettled_ledgers(ledger_id: Any) -> Any:  # noqa: ANN401 - a column; an EXISTS
    return select(_B.ledger_id).where(_B.ledger_id == ledger_id).exists()


def build_transaction_id_parameter(dialect: str, columns: Any) -> tuple[BulkParameter, ColumnElement[bool]]:  # noqa: ANN401 - a table's columns
    """Return a bulk parameter of transaction ids, and the condition that joins the parameter with a table."""
    ids = build_bulk_parameter(dialect, "asked", {"tc_id": BIG, "sequence": BIG})
    c = ids.source.c
    return ids, and_(columns.tc_id == c.tc_id, columns.sequence == c.sequence)


def transaction_id_rows(txns: Iterable[TransactionId]) -> set[tuple[int, int]]:
    return {(txn.tc_id, txn.sequence) for txn in txns}
