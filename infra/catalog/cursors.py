"""Subscriptions in SQL."""

from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from infra.catalog import tables as t
from infra.catalog.database import Database
from infra.catalog.ledgers import data_list, raise_version
from infra.catalog.topics import active_topic
from logstore.cursors import CursorState, LedgerSpan, advance, pack_acknowledged, seek, unpack_acknowledged
from logstore.errors import UnknownObject
from logstore.failpoints import effect
from logstore.ports.catalog import Subscription
from logstore.positions import LedgerId, Position, TopicId


class SqlCursors:
    """The `Cursors` port."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def subscribe(self, topic_id: TopicId, name: str, *, latest: bool) -> Subscription:
        """See `Cursors.subscribe`."""
        with effect("catalog.subscribe"):
            return self._db.write(lambda connection: self._subscribe(connection, topic_id, name, latest))

    def _subscribe(self, connection: Connection, topic_id: TopicId, name: str, latest: bool) -> Subscription:
        active_topic(connection, topic_id)
        list_id = data_list(connection, topic_id, lock=True)
        existing = connection.execute(_one(topic_id, name)).first()
        if existing:
            return subscription(existing)
        state = _starting(spans(connection, topic_id), latest=latest)
        now = self._db.now_us(connection)
        connection.execute(insert(t.cursor).values(topic_id=topic_id, name=name, created_us=now, **columns(state)))
        raise_version(connection, list_id)
        return Subscription(name=name, state=state, created_us=now)

    def get(self, topic_id: TopicId, name: str) -> Subscription:
        """See `Cursors.get`."""
        return self._db.read(lambda connection: _existing(connection, _one(topic_id, name), name))

    def all(self, topic_id: TopicId) -> list[Subscription]:
        """See `Cursors.all`."""
        query = select(t.cursor).where(t.cursor.c.topic_id == topic_id)
        rows = self._db.read(lambda connection: connection.execute(query).all())
        return sorted(map(subscription, rows), key=attrgetter("name"))  # here, for a database sorts by its own locale

    def seek(self, topic_id: TopicId, name: str, position: Position) -> Subscription:
        """See `Cursors.seek`."""
        with effect("catalog.seek"):
            return self._db.write(lambda connection: _seek(connection, topic_id, name, position))


def _seek(connection: Connection, topic_id: TopicId, name: str, position: Position) -> Subscription:
    active_topic(connection, topic_id)
    list_id = data_list(connection, topic_id, lock=True)
    found = _existing(connection, _one(topic_id, name).with_for_update(), name)
    state = seek(position, spans(connection, topic_id))
    store(connection, topic_id, name, state)
    raise_version(connection, list_id)
    return Subscription(name=name, state=state, created_us=found.created_us)


def _one(topic_id: TopicId, name: str) -> Any:  # noqa: ANN401 - SQLAlchemy's select of many columns
    return select(t.cursor).where(t.cursor.c.topic_id == topic_id, t.cursor.c.name == name)


def _existing(connection: Connection, query: Any, name: str) -> Subscription:  # noqa: ANN401
    row = connection.execute(query).first()
    if row is None:
        raise UnknownObject("subscription", expected="an existing subscription", found=name)
    return subscription(row)


def _starting(listed: list[LedgerSpan], *, latest: bool) -> CursorState:
    if not listed:
        return CursorState(Position(LedgerId(-1), -1))
    start = listed[-1].last if latest else Position(listed[0].ledger_id, -1)
    return advance(CursorState(start), listed)


def spans(connection: Connection, topic_id: TopicId, *, from_ledger: int = -1) -> list[LedgerSpan]:
    """Listed data ledgers of the topic from an id on, ascending."""
    query = (
        select(t.ledger.c.ledger_id, t.ledger.c.entries)
        .where(
            t.ledger.c.list_id == data_list(connection, topic_id),
            t.ledger.c.place.is_not(None),
            t.ledger.c.ledger_id >= from_ledger,
        )
        .order_by(t.ledger.c.ledger_id)
    )
    return [LedgerSpan(LedgerId(row.ledger_id), row.entries) for row in connection.execute(query)]


def subscription(row: Row[Any]) -> Subscription:
    """A row of `cursor` as a value."""
    state = CursorState(Position(LedgerId(row.mark_ledger), row.mark_entry), unpack_acknowledged(row.acknowledged))
    return Subscription(name=row.name, state=state, created_us=row.created_us)


def columns(state: CursorState) -> dict[str, Any]:
    """What of a row the state decides."""
    return {
        "mark_ledger": state.mark_delete.ledger_id,
        "mark_entry": state.mark_delete.entry_id,
        "acknowledged": pack_acknowledged(state.acknowledged),
    }


def store(connection: Connection, topic_id: TopicId, name: str, state: CursorState) -> None:
    """Write a cursor whose row the caller has locked."""
    where = (t.cursor.c.topic_id == topic_id, t.cursor.c.name == name)
    connection.execute(update(t.cursor).where(*where).values(**columns(state)))
