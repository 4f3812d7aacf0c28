"""Snapshots of transaction buffers in SQL. Lock order: topic, list of the topic's snapshots, row of the snapshot."""

from collections.abc import Mapping
from functools import cache

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

from logstore.catalog import tables as t
from logstore.catalog.deletion.intent_rows import replace_ledgers_by_intents
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import (
    BIG,
    BulkStatement,
    build_bulk_parameter,
    build_dialect_insert,
    is_one_of,
)
from logstore.catalog.log.component_ledgers import (
    lock_topic_or_reopen_intent,
    read_newborn_or_reopen_intent,
    retire_component_ledger,
)
from logstore.catalog.log.ledger_rows import lock_component_list, publish_component_ledger
from logstore.catalog.log.totals_and_backlogs import read_last_position
from logstore.catalog.transactions.buffer_rows import read_buffers, read_open_entries
from logstore.log.ledgers import Component
from logstore.ports.catalog.log import TopicState
from logstore.ports.catalog.transactions import (
    SNAPSHOT_AFTER_S,
    SNAPSHOT_CHANGES,
    BufferSnapshotReplacement,
    StoredBufferSnapshot,
)
from logstore.positions import EARLIEST, LedgerId, Position, TopicId
from logstore.transactions.transaction_buffer import TransactionBuffer


class TransactionBufferSnapshots(CatalogAdapter):
    def get_snapshot(self, topic_id: TopicId) -> StoredBufferSnapshot:
        """Return the topic's snapshot. Without a snapshot, or for an unknown topic, all fields have default values."""
        return self._db.read(lambda connection: read_buffer_snapshot(connection, topic_id))

    def read_buffer(self, topic_id: TopicId) -> TransactionBuffer:
        """Return the topic's transaction buffer at one moment, as if every decision had its transaction marker."""
        return self._db.read(lambda connection: _read_buffer(connection, topic_id))

    @in_write_transaction("catalog.take_due_snapshots")
    def reserve_due_topics(self, connection: Connection, *, limit: int, reserved_for_s: float) -> list[TopicId]:
        """Return topics whose snapshot is due, earliest due time first, and reserve them for `reserved_for_s`.

        Other calls do not return reserved topics.

        Idempotency: if the worker dies, the topic is due again after `reserved_for_s`. A second snapshot does no harm.
        """
        now = self._db.now_us(connection)
        return reserve_due_topics(connection, limit=limit, now_us=now, until_us=now + round(reserved_for_s * 1_000_000))

    @in_write_transaction("catalog.publish_transaction_snapshot")
    def publish_snapshot(
        self,
        connection: Connection,
        switch: BufferSnapshotReplacement,
        ledger_id: LedgerId,
        *,
        size_bytes: int,
        sha256: str | None = None,
    ) -> bool:
        """Make a newborn ledger the topic's snapshot. Return whether the topic has this snapshot now.

        The ledger becomes listed and CLOSED. The same transaction unlists the ledger of the previous snapshot and files
        an intent for that ledger. The call is refused if the present snapshot is not the expected snapshot or covers
        more entries than the new one, or if the topic is not ACTIVE. A refused call files an intent for the newborn
        ledger. A repeated call returns the same result.
        """
        topic = lock_topic_or_reopen_intent(connection, switch.topic_id, ledger_id)
        if topic is None:
            return False
        list_id = lock_component_list(connection, switch.topic_id, Component.TXN_SNAPSHOT, {})
        row = read_newborn_or_reopen_intent(connection, ledger_id, list_id)
        if row is None or row.place is not None:
            return row is not None
        now, current = self._db.now_us(connection), read_buffer_snapshot(connection, switch.topic_id, lock=True)
        is_successor = current.ledger_id == switch.expected and current.read_to <= switch.read_to
        if not is_successor or topic.state is not TopicState.ACTIVE:
            replace_ledgers_by_intents(connection, t.ledger.c.ledger_id == ledger_id, batch_id="", now_us=now)
            return False
        publish_component_ledger(connection, row, size_bytes=size_bytes, sha256=sha256, now_us=now)
        if current.ledger_id is not None:
            retire_component_ledger(
                connection, current.ledger_id, topic, reason=f"superseded by ledger {ledger_id}", now_us=now
            )
        store_buffer_snapshot(connection, switch, ledger_id)
        return True


def _read_buffer(connection: Connection, topic_id: TopicId) -> TransactionBuffer:
    """Read the buffer of a topic. A transaction in the field `open` gets its transaction marker after `read_to`."""
    return TransactionBuffer(
        read_to=read_last_position(connection, topic_id, include_empty=True) or EARLIEST,
        open=read_open_entries(connection, topic_id),
        hidden=read_buffers(connection, [topic_id])[topic_id].hidden,
    )


_S = t.transaction_snapshot.c


def read_buffer_snapshot(connection: Connection, topic_id: TopicId, *, lock: bool = False) -> StoredBufferSnapshot:
    query = select(t.transaction_snapshot).where(_S.topic_id == topic_id)
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        return StoredBufferSnapshot()
    read_to = Position(LedgerId(row.read_ledger), row.read_entry)
    return StoredBufferSnapshot(ledger_id=row.ledger_id, read_to=read_to, due_us=row.due_us)


def add_settled_changes(connection: Connection, changes: Mapping[TopicId, int], *, now_us: int) -> None:
    """Add `changes` to the counts of settled transactions, and set when snapshots are due. Topics are share-locked."""
    later = now_us + round(SNAPSHOT_AFTER_S * 1_000_000)
    if changes:
        _compile_change_count(connection.dialect.name).execute(connection, changes.items(), now=now_us, later=later)


@cache
def _compile_change_count(dialect: str) -> BulkStatement:
    settled = build_bulk_parameter(dialect, "settled", {"topic_id": BIG, "changes": BIG})
    now, later = (cast(bindparam(name), BIG) for name in ("now", "later"))  # PostgreSQL treats uncast numbers as text
    c = settled.source.c
    new = {
        "topic_id": c.topic_id,
        "changes": c.changes,
        "due_us": case((c.changes >= SNAPSHOT_CHANGES, now), else_=later),
        "read_ledger": literal(-1),
        "read_entry": literal(-1),
    }
    rows = select(*new.values()).where(true())  # without WHERE, SQLite parses ON CONFLICT as the ON of a join
    put = build_dialect_insert(dialect, t.transaction_snapshot).from_select(list(new), rows)
    changes = _S.changes + put.excluded.changes
    due = case((changes >= SNAPSHOT_CHANGES, now), (func.coalesce(_S.due_us, later) < later, _S.due_us), else_=later)
    put = put.on_conflict_do_update(index_elements=["topic_id"], set_={"changes": changes, "due_us": due})
    return BulkStatement(sql=put, rows=settled)


def reserve_due_topics(connection: Connection, *, limit: int, now_us: int, until_us: int) -> list[TopicId]:
    """Return topics with due snapshots, and make these snapshots due again at `until_us`. Skip locked rows."""
    due = select(_S.topic_id).where(_S.due_us <= now_us).order_by(_S.due_us, _S.topic_id).limit(limit)
    topic_ids = [TopicId(topic_id) for topic_id in connection.execute(due.with_for_update(skip_locked=True)).scalars()]
    if topic_ids:
        reserved = update(t.transaction_snapshot).where(is_one_of(connection, _S.topic_id, topic_ids))
        connection.execute(reserved.values(changes=0, due_us=until_us))
    return topic_ids


def store_buffer_snapshot(connection: Connection, switch: BufferSnapshotReplacement, ledger_id: LedgerId) -> None:
    """Store the topic's snapshot. The caller has locked the list.

    If transactions were settled since the snapshot began, the next snapshot stays due.
    """
    values = {"ledger_id": ledger_id, "read_ledger": switch.read_to.ledger_id, "read_entry": switch.read_to.entry_id}
    put = build_dialect_insert(connection.dialect.name, t.transaction_snapshot)
    put = put.values(topic_id=switch.topic_id, changes=0, **values)
    due = case((_S.changes > 0, _S.due_us), else_=None)
    connection.execute(put.on_conflict_do_update(index_elements=["topic_id"], set_={**values, "due_us": due}))


def forget_buffer_snapshots(connection: Connection, is_lost: ColumnElement[bool]) -> int:
    """Remove references to lost snapshots. `is_lost` is a condition on `ledger_id`. Return the number of references."""
    values = {"ledger_id": None, "read_ledger": -1, "read_entry": -1}
    return connection.execute(update(t.transaction_snapshot).where(is_lost).values(values)).rowcount


def remove_buffer_snapshot(connection: Connection, topic_id: TopicId) -> int:
    return connection.execute(delete(t.transaction_snapshot).where(_S.topic_id == topic_id)).rowcount
