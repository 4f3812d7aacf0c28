"""Transaction buffers of topics: nothing else writes `buffer_range` and `buffer_hidden`.

A range is a run of entries of one transaction. It stands until the topic is settled; until then the state of the
transaction's row says whether readers see it, wait for it or skip it. What was aborted is then hidden for good, as
markers are from the moment at which they exist: bitmaps of entry ids, one row a ledger, gone with the ledger.

Source: Pulsar's TopicTransactionBuffer (maxReadPosition, aborted transactions), which keeps ids where this keeps
entries: a reader then subtracts bitmaps, and asks nothing of each entry.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from pyroaring import BitMap
from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, select, tuple_

from infra.catalog import tables as t
from infra.catalog.engine.dialects import BIG, BulkParameter, Statement, among, bulk_parameter, dialect_insert
from logstore.cursors.state import unite_entries
from logstore.positions import LedgerId, Position, TopicId
from logstore.transactions.transactions import TransactionId, TransactionState

_B = t.buffer_range.c
_H = t.buffer_hidden.c
_T = t.transaction.c
_SAME = and_(_T.tc_id == _B.tc_id, _T.sequence == _B.sequence)
_RANGE = ("ledger_id", "first_entry", "entries", "topic_id", "tc_id", "sequence")


@dataclass(slots=True)
class BufferView:
    """A topic's buffer at one moment."""

    first_open: Position | None = None  # the first message of the oldest open transaction
    hidden: dict[LedgerId, BitMap] = field(default_factory=dict)


def views(
    connection: Connection, topic_ids: Collection[TopicId], *, from_ledger: int = -1
) -> dict[TopicId, BufferView]:
    """The buffers of topics; hidden entries of earlier ledgers are left out.

    Read what was registered first: what is registered later is then not taken for committed. Ranges are read before
    bitmaps, because an abort that is settled in between moves from the former into the latter.
    """
    found = {topic_id: BufferView() for topic_id in topic_ids}
    is_open = _T.state == TransactionState.OPEN.value
    at = case((is_open, -1), else_=_B.first_entry)
    columns = (_B.topic_id, _B.ledger_id, is_open.label("is_open"), func.min(_B.first_entry), func.sum(_B.entries))
    states = (TransactionState.OPEN.value, TransactionState.ABORTING.value)
    unsettled = (among(connection, _B.topic_id, topic_ids), _T.state.in_(states))
    ranges = select(*columns).join(t.transaction, _SAME).where(*unsettled)
    for topic_id, ledger_id, open_, first, entries in connection.execute(
        ranges.group_by(_B.topic_id, _B.ledger_id, is_open, at)
    ):
        view, position = found[TopicId(topic_id)], Position(LedgerId(ledger_id), first)
        if open_:
            view.first_open = min(view.first_open or position, position)
        else:
            unite_entries(view.hidden, {position.ledger_id: BitMap(range(first, first + int(entries)))})
    hidden = (among(connection, _H.topic_id, topic_ids), _H.ledger_id >= from_ledger)
    bitmaps = select(_H.topic_id, _H.ledger_id, _H.entries).where(*hidden)
    for topic_id, ledger_id, packed in connection.execute(bitmaps):
        unite_entries(found[TopicId(topic_id)].hidden, {LedgerId(ledger_id): BitMap.deserialize(packed)})
    return found


def open_entries(connection: Connection, topic_id: TopicId) -> dict[TransactionId, dict[LedgerId, BitMap]]:
    """Entries of each open transaction in a topic."""
    columns = (_B.tc_id, _B.sequence, _B.ledger_id, _B.first_entry, _B.entries)
    mine = (_B.topic_id == topic_id, _T.state == TransactionState.OPEN.value)
    found: dict[TransactionId, dict[LedgerId, BitMap]] = {}
    for tc_id, sequence, ledger_id, first, entries in connection.execute(
        select(*columns).join(t.transaction, _SAME).where(*mine)
    ):
        bits = BitMap(range(first, first + entries))
        unite_entries(found.setdefault(TransactionId(tc_id, sequence), {}), {LedgerId(ledger_id): bits})
    return found


def insert_ranges(connection: Connection, ranges: Collection[tuple[int, ...]]) -> None:
    """Insert rows of `buffer_range`, their columns in order, under the locks of ledgers and open transactions."""
    if ranges:
        _inserting(connection.dialect.name).execute(connection, ranges)


@cache
def _inserting(dialect: str) -> Statement:
    added = bulk_parameter(dialect, "added", dict.fromkeys(_RANGE, BIG))
    columns = select(*(added.source.c[name] for name in added.columns))
    return Statement(sql=insert(t.buffer_range).from_select(added.columns, columns), rows=added)


def hide(connection: Connection, topics: Mapping[LedgerId, TopicId], more: Mapping[LedgerId, BitMap]) -> None:
    """Hide entries of ledgers, by topic, whose rows are locked."""
    if not more:
        return
    mine = among(connection, _H.ledger_id, more)
    known = connection.execute(select(t.buffer_hidden).where(mine))
    before = {row.ledger_id: BitMap.deserialize(row.entries) for row in known}
    rows = [
        {"ledger_id": one, "topic_id": topics[one], "entries": (before.get(one, BitMap()) | bits).serialize()}
        for one, bits in sorted(more.items())
    ]
    put = dialect_insert(connection.dialect.name, t.buffer_hidden)
    put = put.on_conflict_do_update(index_elements=["ledger_id"], set_={"entries": put.excluded.entries})
    connection.execute(put, rows)


def settle_ranges(connection: Connection, done: Collection[tuple[TopicId, TransactionId]]) -> None:
    """Remove the ranges of decided transactions in topics; those of aborted ones are hidden first.

    The ledgers are locked, ascending, as an append locks them: a marker may be hidden in them meanwhile.
    """
    asked = {(topic_id, txn.tc_id, txn.sequence) for topic_id, txn in done}
    settling = _settling(connection.dialect.name)
    settling.committed.execute(connection, asked)
    rows = settling.aborted.execute(connection, asked).all()
    if not rows:
        return
    aborted: dict[LedgerId, BitMap] = {}
    for row in rows:
        unite_entries(aborted, {LedgerId(row.ledger_id): BitMap(range(row.first_entry, row.first_entry + row.entries))})
    ids = t.ledger.c.ledger_id
    wanted = among(connection, ids, aborted)
    standing = set(connection.execute(select(ids).where(wanted).order_by(ids).with_for_update()).scalars())
    left = {one: bits for one, bits in aborted.items() if one in standing}  # not of ledgers that are gone
    hide(connection, {LedgerId(row.ledger_id): TopicId(row.topic_id) for row in rows}, left)
    settling.gone.execute(connection, [(row.ledger_id, row.first_entry) for row in rows])


class _Settling(NamedTuple):
    """Ranges of decided transactions in topics; those that are hidden go by their own keys, as they were read."""

    committed: Statement  # removes them
    aborted: Statement  # reads them
    gone: Statement  # removes ranges


@cache
def _settling(dialect: str) -> _Settling:
    asked = bulk_parameter(dialect, "asked", {"topic_id": BIG, "tc_id": BIG, "sequence": BIG})
    same = and_(*(_B[name] == asked.source.c[name] for name in asked.columns))
    keys = (_B.ledger_id, _B.first_entry)
    commits, aborts = ([one.value for one in TransactionState if one.is_commit is kept] for kept in (True, False))
    kept = select(*keys).join(asked.source, same).join(t.transaction, _SAME).where(_T.state.in_(commits))
    lost = select(*keys, _B.entries, _B.topic_id).join(asked.source, same).join(t.transaction, _SAME)
    lost = lost.where(_T.state.in_(aborts), _T.state != TransactionState.OPEN.value)
    gone = bulk_parameter(dialect, "gone", {"ledger_id": BIG, "first_entry": BIG})
    named = select(gone.source.c.ledger_id, gone.source.c.first_entry)
    return _Settling(
        committed=Statement(sql=delete(t.buffer_range).where(tuple_(*keys).in_(kept)), rows=asked),
        aborted=Statement(sql=lost, rows=asked),
        gone=Statement(sql=delete(t.buffer_range).where(tuple_(*keys).in_(named)), rows=gone),
    )


def forget_ledgers(connection: Connection, gone: Any) -> None:  # noqa: ANN401 - a subquery of ledger ids
    """Remove what buffers say of ledgers that go, in the transaction in which they do."""
    connection.execute(delete(t.buffer_range).where(_B.ledger_id.in_(gone)))
    connection.execute(delete(t.buffer_hidden).where(_H.ledger_id.in_(gone)))


def remove_buffer(connection: Connection, topic_id: TopicId) -> int:
    """Remove the buffer of a topic that is being deleted, and say how many rows."""
    ranges = connection.execute(delete(t.buffer_range).where(_B.topic_id == topic_id)).rowcount
    return ranges + connection.execute(delete(t.buffer_hidden).where(_H.topic_id == topic_id)).rowcount


def unsettled_in(ledger_id: Any) -> Any:  # noqa: ANN401 - a column; an EXISTS
    """Whether the ledger has messages of a transaction whose end is not in the log yet."""
    return select(_B.ledger_id).where(_B.ledger_id == ledger_id).exists()


def asked_for(dialect: str, columns: Any) -> tuple[BulkParameter, ColumnElement[bool]]:  # noqa: ANN401 - a table's columns
    """Ids of transactions as rows that travel with a statement, and what joins a table's rows to them."""
    asked = bulk_parameter(dialect, "asked", {"tc_id": BIG, "sequence": BIG})
    c = asked.source.c
    return asked, and_(columns.tc_id == c.tc_id, columns.sequence == c.sequence)


def txn_pairs(txns: Iterable[TransactionId]) -> set[tuple[int, int]]:
    """Ids as rows that travel with a statement."""
    return {(one.tc_id, one.sequence) for one in txns}
