"""Subscriptions in SQL. A cursor's state that is too large for the cursor's row is stored in a ledger.

Lock order: topic, list of message ledgers (to subscribe or to seek), list of the cursor's snapshots, cursor.
"""

from collections.abc import Collection
from dataclasses import replace
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, select

from logstore.catalog import tables as t
from logstore.catalog.catalog_row import read_epoch
from logstore.catalog.cursors.cursor_rows import (
    insert_cursor,
    read_visible_spans,
    select_cursor,
    store_cursors,
    stored_cursor_from_row,
)
from logstore.catalog.deletion.intent_rows import replace_ledgers_by_intents
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.component_ledgers import (
    lock_topic_or_reopen_intent,
    read_newborn_or_reopen_intent,
    retire_component_ledger,
)
from logstore.catalog.log.ledger_rows import (
    lock_component_list,
    publish_component_ledger,
    raise_list_version,
    read_message_list_id,
)
from logstore.catalog.log.topics import read_topic, share_lock_active_topic
from logstore.cursors.cursor_state import (
    CursorSnapshot,
    advance_mark_delete,
    complete_state,
    first_releases,
    initial_state,
    pack_acknowledged,
    seek,
    state_without_snapshot,
)
from logstore.errors import UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog.cursors import CursorSnapshotCondition, StoredCursor
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import LedgerId, Position, TopicId


class Cursors(CatalogAdapter):
    @in_write_transaction("catalog.subscribe")
    def create_subscription(
        self, connection: Connection, topic_id: TopicId, name: str, *, latest: bool
    ) -> StoredCursor:
        """Create a subscription, or return the existing subscription unchanged.

        The cursor begins before the first listed entry, or with `latest` after the last listed entry. The call locks
        the topic's list and raises the list version, so a concurrent detach runs entirely before or after the call.

        Raises:
            UnknownObject, PreconditionFailed: The topic does not exist or is not ACTIVE.
        """
        share_lock_active_topic(connection, topic_id)
        list_id = read_message_list_id(connection, topic_id, lock=True)
        existing = connection.execute(select_cursor(topic_id, name)).first()
        if existing:
            return stored_cursor_from_row(existing)
        state = initial_state(read_visible_spans(connection, topic_id), latest=latest)
        now = self._db.now_us(connection)
        releases = first_releases(read_epoch(connection))  # the lost catalog may have had a subscription of this name
        insert_cursor(connection, topic_id, name, state, releases=releases, now_us=now)
        raise_list_version(connection, list_id)
        return StoredCursor(name=name, state=state, created_us=now, releases=releases)

    def get_cursor(self, topic_id: TopicId, name: str) -> StoredCursor:
        """Return the subscription. Raise `UnknownObject` if the topic or the subscription does not exist."""
        return self._db.read(
            lambda connection: stored_cursor_from_row(
                _require_cursor_row(connection, select_cursor(topic_id, name), name)
            )
        )

    def list_cursors(self, topic_id: TopicId) -> list[StoredCursor]:
        """Return the topic's subscriptions, ascending by name."""
        query = select(t.cursor).where(t.cursor.c.topic_id == topic_id)
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return sorted(
            map(stored_cursor_from_row, rows), key=attrgetter("name")
        )  # sorted here, because a database sorts by its own locale

    @in_read_transaction
    def find_cursors_with_snapshot(
        self, connection: Connection, topic_ids: Collection[TopicId]
    ) -> dict[TopicId, list[str]]:
        """Return the names of subscriptions with a snapshot, ascending, by topic. Skip topics without a snapshot."""
        c, names_by_topic = t.cursor.c, dict[TopicId, list[str]]()
        has_snapshot = (is_one_of(connection, c.topic_id, topic_ids), c.snapshot_ledger.is_not(None))
        for row in sorted(connection.execute(select(c.topic_id, c.name).where(*has_snapshot)).all()):
            names_by_topic.setdefault(TopicId(row.topic_id), []).append(row.name)
        return names_by_topic

    @in_write_transaction("catalog.seek")
    def seek_cursor(self, connection: Connection, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        """Replace the cursor's state, so that `position` is the next entry.

        `seeks` and `releases` rise. The call locks the topic's list and raises the list version. If the cursor has a
        snapshot, the same transaction files an intent for the snapshot's ledger.

        Raises:
            UnknownObject: The topic or the subscription does not exist.
            PreconditionFailed: The topic is not ACTIVE.
            InvalidInput: The position is after the end of the log.
        """
        now_us = self._db.now_us(connection)
        topic = share_lock_active_topic(connection, topic_id)
        list_id = read_message_list_id(connection, topic_id, lock=True)
        _lock_cursor_list(connection, topic_id, name)
        row = _require_cursor_row(connection, select_cursor(topic_id, name).with_for_update(), name)
        stored = stored_cursor_from_row(row)
        moved = replace(
            stored,
            state=seek(position, read_visible_spans(connection, topic_id)),
            seeks=stored.seeks + 1,
            releases=stored.releases + 1,
        )
        reason = "the cursor was moved by a seek"
        moved = _store_and_retire_snapshot(connection, row, moved, topic, None, reason=reason, now_us=now_us)
        raise_list_version(connection, list_id)
        return moved

    @in_write_transaction("catalog.publish_snapshot")
    def publish_snapshot(
        self,
        connection: Connection,
        condition: CursorSnapshotCondition,
        snapshot: CursorSnapshot,
        *,
        size_bytes: int,
        sha256: str | None = None,
    ) -> bool:
        """Make a newborn cursor ledger the cursor's snapshot. Return whether the cursor has this snapshot now.

        The ledger becomes listed and CLOSED. The same transaction files an intent for the previous snapshot's ledger
        (apache/pulsar#982). The row keeps acknowledgements that are newer than the snapshot.

        `condition` has two values of the row from which the snapshot was made: the ledger of the present snapshot, and
        the number of seeks. Acknowledgements may be added meanwhile. The snapshot is refused if one of the two values
        has changed, if the row does not exist, or if the topic is not ACTIVE. A refused call files an intent for the
        newborn ledger (apache/pulsar#350). A repeated call returns the same result.
        """
        topic = lock_topic_or_reopen_intent(connection, condition.topic_id, snapshot.ledger_id)
        if topic is None:
            return False
        row = read_newborn_or_reopen_intent(
            connection, snapshot.ledger_id, _lock_cursor_list(connection, condition.topic_id, condition.subscription)
        )
        if row is None or row.place is not None:
            return row is not None
        now = self._db.now_us(connection)
        locked = _lock_cursor_if_unchanged(connection, condition, topic)
        if locked is None:
            newborn = t.ledger.c.ledger_id == snapshot.ledger_id
            replace_ledgers_by_intents(connection, newborn, batch_id="", now_us=now)
            return False
        publish_component_ledger(connection, row, size_bytes=size_bytes, sha256=sha256, now_us=now)
        cursor = stored_cursor_from_row(locked)
        cursor = replace(cursor, state=state_without_snapshot(cursor.state, snapshot))
        reason = f"superseded by ledger {snapshot.ledger_id}"
        _store_and_retire_snapshot(connection, locked, cursor, topic, snapshot.ledger_id, reason=reason, now_us=now)
        return True

    @in_write_transaction("catalog.fold_snapshot")
    def move_snapshot_into_row(
        self, connection: Connection, condition: CursorSnapshotCondition, snapshot: CursorSnapshot, *, limit_bytes: int
    ) -> bool:
        """Move a small snapshot back into the row, and file an intent for the snapshot's ledger.

        Return whether this call moved the snapshot. Nothing changes if the row differs from `condition`, if the
        complete state takes more than `limit_bytes`, or if the topic is not ACTIVE.
        """
        topic = read_topic(connection, condition.topic_id, share_lock=True)
        _lock_cursor_list(connection, condition.topic_id, condition.subscription)
        row = _lock_cursor_if_unchanged(connection, condition, topic)
        if row is None or row.snapshot_ledger != snapshot.ledger_id:
            return False
        cursor = stored_cursor_from_row(row)
        complete, listed = complete_state(cursor.state, snapshot), read_visible_spans(connection, condition.topic_id)
        cursor = replace(cursor, state=advance_mark_delete(complete, listed))
        if len(pack_acknowledged(cursor.state.acknowledged)) > limit_bytes:
            return False
        reason, now = "folded into its cursor's row", self._db.now_us(connection)
        _store_and_retire_snapshot(connection, row, cursor, topic, None, reason=reason, now_us=now)
        return True


def _lock_cursor_list(connection: Connection, topic_id: TopicId, name: str) -> int:
    return lock_component_list(connection, topic_id, Component.MANAGED_CURSOR, {"cursor": name})


def _lock_cursor_if_unchanged(connection: Connection, change: CursorSnapshotCondition, topic: Topic) -> Row[Any] | None:
    row = connection.execute(select_cursor(change.topic_id, change.subscription).with_for_update()).first()
    is_unchanged = row is not None and (row.snapshot_ledger, row.seeks) == (change.expected, change.seeks)
    return row if is_unchanged and topic.state is TopicState.ACTIVE else None


def _store_and_retire_snapshot(
    connection: Connection,
    row: Row[Any],
    cursor: StoredCursor,
    topic: Topic,
    snapshot: LedgerId | None,
    *,
    reason: str,
    now_us: int,
) -> StoredCursor:
    """Store `cursor` with another snapshot, and file an intent for the snapshot in `row`. Return the stored cursor."""
    if row.snapshot_ledger is not None:
        retire_component_ledger(connection, row.snapshot_ledger, topic, reason=reason, now_us=now_us)
    stored = replace(cursor, snapshot_ledger=snapshot)
    store_cursors(connection, {row.cursor_id: stored})
    return stored


def _require_cursor_row(connection: Connection, query: Any, name: str) -> Row[Any]:  # noqa: ANN401
    row: Row[Any] | None = connection.execute(query).first()
    if row is None:
        raise UnknownObject("subscription", expected="an existing subscription", found=name)
    return row
