"""Rows of snapshots of transaction buffers: nothing else writes `transaction_snapshot`.

Its locks come behind those of topic, list and ledgers.
"""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    select,
    true,
    update,
)

from infra.catalog import tables as t
from infra.catalog.engine.many import BIG, Statement, any_of, inserting, rows_of
from logstore.ports.catalog import SNAPSHOT_AFTER_S, SNAPSHOT_CHANGES, SnapshotSwitch, StoredSnapshot
from logstore.positions import LedgerId, Position, TopicId

_S = t.transaction_snapshot.c


def stored_snapshot(connection: Connection, topic_id: TopicId, *, lock: bool = False) -> StoredSnapshot:
    """What the row says; of a topic without one, nothing."""
    query = select(t.transaction_snapshot).where(_S.topic_id == topic_id)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        return StoredSnapshot()
    read_to = Position(LedgerId(row.read_ledger), row.read_entry)
    return StoredSnapshot(ledger_id=row.ledger_id, read_to=read_to, due_us=row.due_us)


def count_changes(connection: Connection, changes: Mapping[TopicId, int], *, now_us: int) -> None:
    """Count transactions that were settled in topics, which are share-locked, and say when their snapshots are due."""
    later = now_us + round(SNAPSHOT_AFTER_S * 1_000_000)
    if changes:
        _counting(connection.dialect.name).execute(connection, changes.items(), now=now_us, later=later)


@cache
def _counting(dialect: str) -> Statement:
    settled, now, later = rows_of(dialect, "settled", {"topic_id": BIG, "changes": BIG}), _time("now"), _time("later")
    c = settled.source.c
    new = {
        "topic_id": c.topic_id,
        "changes": c.changes,
        "due_us": case((c.changes >= SNAPSHOT_CHANGES, now), else_=later),
        "read_ledger": literal(-1),
        "read_entry": literal(-1),
    }
    rows = select(*new.values()).where(true())  # SQLite reads ON as a join's without a WHERE
    put = inserting(dialect, t.transaction_snapshot).from_select(list(new), rows)
    known = _S.changes + put.excluded.changes
    sooner = case((known >= SNAPSHOT_CHANGES, now), (func.coalesce(_S.due_us, later) < later, _S.due_us), else_=later)
    put = put.on_conflict_do_update(index_elements=["topic_id"], set_={"changes": known, "due_us": sooner})
    return Statement(sql=put, rows=settled)


def _time(name: str) -> ColumnElement[int]:
    return cast(bindparam(name), BIG)  # PostgreSQL would take a parameter among columns for a text


def take_due(connection: Connection, *, limit: int, now_us: int, until_us: int) -> list[TopicId]:
    """Take rows that are due, without waiting for those that somebody takes just now."""
    due = select(_S.topic_id).where(_S.due_us <= now_us).order_by(_S.due_us, _S.topic_id).limit(limit)
    found = [TopicId(one) for one in connection.execute(due.with_for_update(skip_locked=True)).scalars()]
    if found:
        connection.execute(_of(connection, found).values(changes=0, due_us=until_us))
    return found


def _of(connection: Connection, topic_ids: Collection[TopicId]) -> Any:  # noqa: ANN401 - SQLAlchemy's update
    return update(t.transaction_snapshot).where(_S.topic_id.in_(any_of(connection.dialect.name, topic_ids)))


def put_snapshot(connection: Connection, switch: SnapshotSwitch, ledger_id: LedgerId) -> None:
    """Name the topic's snapshot, under the lock of its list; the next one is due if there were changes meanwhile."""
    values = {"ledger_id": ledger_id, "read_ledger": switch.read_to.ledger_id, "read_entry": switch.read_to.entry_id}
    put = inserting(connection.dialect.name, t.transaction_snapshot)
    put = put.values(topic_id=switch.topic_id, changes=0, **values)
    due = case((_S.changes > 0, _S.due_us), else_=None)
    connection.execute(put.on_conflict_do_update(index_elements=["topic_id"], set_={**values, "due_us": due}))


def drop_snapshots(connection: Connection, gone: ColumnElement[bool]) -> int:
    """Forget snapshots of which nothing is stored, by a condition on `ledger_id`; returns how many there were."""
    values = {"ledger_id": None, "read_ledger": -1, "read_entry": -1}
    return connection.execute(update(t.transaction_snapshot).where(gone).values(values)).rowcount


def remove_snapshot(connection: Connection, topic_id: TopicId) -> int:
    """Remove the row of a topic that is being deleted, and say how many."""
    return connection.execute(delete(t.transaction_snapshot).where(_S.topic_id == topic_id)).rowcount
