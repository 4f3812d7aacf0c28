"""Subscriptions in SQL."""

from collections.abc import Collection
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import columns, one_cursor, spans, store, stored
from infra.catalog.cursors.snapshots import SqlSnapshots, cursor_list, forget_snapshot
from infra.catalog.engine.database import Database
from infra.catalog.engine.many import any_of
from infra.catalog.log.ledgers import data_list, raise_version
from infra.catalog.log.topics import active_topic
from logstore.cursors.state import CursorState, LedgerSpan, advance, seek
from logstore.errors import UnknownObject
from logstore.failpoints import effect
from logstore.ports.catalog import StoredCursor
from logstore.positions import LedgerId, Position, TopicId


class SqlCursors(SqlSnapshots):
    """The `Cursors` port; what speaks of snapshots is inherited."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        super().__init__(database)
        self._db = database

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> StoredCursor:
        """See `Cursors.subscribe`."""
        with effect("catalog.subscribe"):
            return self._db.write(lambda connection: self._subscribe(connection, topic_id, name, latest))

    def _subscribe(self, connection: Connection, topic_id: TopicId, name: str, latest: bool) -> StoredCursor:
        active_topic(connection, topic_id)
        list_id = data_list(connection, topic_id, lock=True)
        existing = connection.execute(one_cursor(topic_id, name)).first()
        if existing:
            return stored(existing)
        state = _starting(spans(connection, topic_id), latest=latest)
        now = self._db.now_us(connection)
        connection.execute(insert(t.cursor).values(topic_id=topic_id, name=name, created_us=now, **columns(state)))
        raise_version(connection, list_id)
        return StoredCursor(name=name, state=state, created_us=now)

    def get(self, topic_id: TopicId, name: str) -> StoredCursor:
        """See `Cursors.get`."""
        return self._db.read(lambda connection: stored(_existing(connection, one_cursor(topic_id, name), name)))

    def all(self, topic_id: TopicId) -> list[StoredCursor]:
        """See `Cursors.all`."""
        query = select(t.cursor).where(t.cursor.c.topic_id == topic_id)
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return sorted(map(stored, rows), key=attrgetter("name"))  # here, for a database sorts by its own locale

    def outgrown(self, topic_ids: Collection[TopicId]) -> dict[TopicId, list[str]]:
        """See `Cursors.outgrown`."""
        c, asked = t.cursor.c, any_of(self._db.engine.dialect.name, topic_ids)
        query = select(c.topic_id, c.name).where(c.topic_id.in_(asked), c.snapshot_ledger.is_not(None))
        found: dict[TopicId, list[str]] = {}
        for row in sorted(self._db.read(lambda connection: connection.execute(query).all())):
            found.setdefault(TopicId(row.topic_id), []).append(row.name)
        return found

    def seek(self, topic_id: TopicId, name: str, position: Position) -> StoredCursor:
        """See `Cursors.seek`."""
        with effect("catalog.seek"):
            return self._db.write(lambda c: _seek(c, topic_id, name, position, self._db.now_us(c)))


def _seek(connection: Connection, topic_id: TopicId, name: str, position: Position, now_us: int) -> StoredCursor:
    topic = active_topic(connection, topic_id)
    list_id = data_list(connection, topic_id, lock=True)
    cursor_list(connection, topic_id, name)
    row = _existing(connection, one_cursor(topic_id, name).with_for_update(), name)
    state = seek(position, spans(connection, topic_id))
    store(connection, topic_id, name, state, **forget_snapshot(connection, row, topic, now_us=now_us))
    raise_version(connection, list_id)
    return StoredCursor(name=name, state=state, created_us=row.created_us, seeks=row.seeks + 1)


def _existing(connection: Connection, query: Any, name: str) -> Row[Any]:  # noqa: ANN401
    row: Row[Any] | None = connection.execute(query).first()
    if row is None:
        raise UnknownObject("subscription", expected="an existing subscription", found=name)
    return row


def _starting(listed: list[LedgerSpan], *, latest: bool) -> CursorState:
    if not listed:
        return CursorState(Position(LedgerId(-1), -1))
    start = listed[-1].last if latest else Position(listed[0].ledger_id, -1)
    return advance(CursorState(start), listed)
