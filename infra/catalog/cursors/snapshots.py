"""Snapshots of cursors in SQL: a ledger takes a cursor's place for its state, or gives it back to the row.

Locks: topic, the cursor's own list, the cursor.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, update

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import columns, one_cursor, spans, stored
from infra.catalog.deletion.intents import file_intents
from infra.catalog.engine.database import Database
from infra.catalog.log.components import born, component_list, publish, retire, topic_of_newborn
from infra.catalog.log.ledgers import raise_version
from infra.catalog.log.topics import topic_row
from logstore.cursors.state import Snapshot, advance, since, whole
from logstore.failpoints import effect
from logstore.log.ledgers import Component
from logstore.ports.catalog import SnapshotChange, Topic, TopicState
from logstore.positions import LedgerId, TopicId


class SqlSnapshots:
    """What of the `Cursors` port speaks of snapshots; a part of `SqlCursors`."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def publish_snapshot(
        self, change: SnapshotChange, snapshot: Snapshot, *, size_bytes: int, sha256: str | None = None
    ) -> bool:
        """See `Cursors.publish_snapshot`."""
        with effect("catalog.publish_snapshot"):
            return self._db.write(lambda connection: self._publish(connection, change, snapshot, size_bytes, sha256))

    def _publish(
        self,
        connection: Connection,
        change: SnapshotChange,
        snapshot: Snapshot,
        size_bytes: int,
        sha256: str | None,
    ) -> bool:
        topic = topic_of_newborn(connection, change.topic_id, snapshot.ledger_id)
        if topic is None:
            return False
        row = born(connection, snapshot.ledger_id, cursor_list(connection, change.topic_id, change.subscription))
        if row is None or row.place is not None:
            return row is not None
        now = self._db.now_us(connection)
        cursor = _unchanged(connection, change, topic)
        if cursor is None:
            newborn = t.ledger.c.ledger_id == snapshot.ledger_id
            file_intents(connection, newborn, batch_id="", now_us=now)
            return False
        publish(connection, row, size_bytes=size_bytes, sha256=sha256, now_us=now)
        _retire_snapshot(connection, cursor, topic, f"superseded by ledger {snapshot.ledger_id}", now)
        _store(connection, cursor, columns(since(stored(cursor).state, snapshot)), snapshot.ledger_id)
        return True

    def fold_snapshot(self, change: SnapshotChange, snapshot: Snapshot, *, limit_bytes: int) -> bool:
        """See `Cursors.fold_snapshot`."""
        with effect("catalog.fold_snapshot"):
            return self._db.write(lambda connection: self._fold(connection, change, snapshot, limit_bytes))

    def _fold(self, connection: Connection, change: SnapshotChange, snapshot: Snapshot, limit_bytes: int) -> bool:
        topic = topic_row(connection, change.topic_id, share=True)
        list_id = cursor_list(connection, change.topic_id, change.subscription)
        cursor = _unchanged(connection, change, topic)
        if cursor is None or cursor.snapshot_ledger != snapshot.ledger_id:
            return False
        values = columns(advance(whole(stored(cursor).state, snapshot), spans(connection, change.topic_id)))
        if len(values["acknowledged"]) > limit_bytes:
            return False
        _retire_snapshot(connection, cursor, topic, "folded into its cursor's row", self._db.now_us(connection))
        _store(connection, cursor, values, None)
        raise_version(connection, list_id)
        return True


def cursor_list(connection: Connection, topic_id: TopicId, name: str) -> int:
    """Lock the list of a cursor's ledgers and return its id; -1 when there never was one."""
    return component_list(connection, topic_id, Component.MANAGED_CURSOR, {"cursor": name})


def forget_snapshot(connection: Connection, cursor: Row[Any], topic: Topic, *, now_us: int) -> dict[str, Any]:
    """Retire the ledger of a locked cursor whose state is replaced; the columns that say so."""
    _retire_snapshot(connection, cursor, topic, "the cursor was moved by a seek", now_us)
    return {"snapshot_ledger": None, "seeks": cursor.seeks + 1}


def _unchanged(connection: Connection, change: SnapshotChange, topic: Topic) -> Row[Any] | None:
    """The cursor's row, locked, if it still is what the change was made from and the topic is ACTIVE."""
    found = connection.execute(one_cursor(change.topic_id, change.subscription).with_for_update()).first()
    same = found is not None and (found.snapshot_ledger, found.seeks) == (change.expected, change.seeks)
    return found if same and topic.state is TopicState.ACTIVE else None


def _retire_snapshot(connection: Connection, cursor: Row[Any], topic: Topic, reason: str, now_us: int) -> None:
    if cursor.snapshot_ledger is not None:
        retire(connection, LedgerId(cursor.snapshot_ledger), topic, reason=reason, now_us=now_us)


def _store(connection: Connection, cursor: Row[Any], values: Mapping[str, Any], snapshot_ledger: int | None) -> None:
    where = t.cursor.c.cursor_id == cursor.cursor_id
    connection.execute(update(t.cursor).where(where).values(**values, snapshot_ledger=snapshot_ledger))
