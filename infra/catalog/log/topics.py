"""Topics in SQL."""

import json
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select

from infra.catalog import tables as t
from infra.catalog.engine.database import Database
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import AlreadyExists, PreconditionFailed, UnknownObject
from logstore.failpoints import effect
from logstore.log.ledgers import Component
from logstore.ports.catalog import Topic, TopicState
from logstore.positions import TopicId


class SqlTopics:
    """The `Topics` port."""

    def __init__(self, database: Database) -> None:
        """Work on `database`."""
        self._db = database

    def create(self, name: str, policy: RetentionPolicy) -> Topic:
        """See `Topics.create`; the name's unique key decides between racing creators."""
        with effect("catalog.create_topic"):
            return self._db.write(lambda connection: self._create(connection, name, policy))

    def _create(self, connection: Connection, name: str, policy: RetentionPolicy) -> Topic:
        found = connection.execute(select(t.topic.c.state).where(t.topic.c.name == name)).scalar_one_or_none()
        if found:
            raise AlreadyExists(f"topic {name!r}: expected a free name, found a topic that is {found}")
        now = self._db.now_us(connection)
        topic_id = connection.execute(
            ignoring_conflict(connection, t.topic)
            .values(
                name=name,
                state=TopicState.ACTIVE.value,
                retention_s=policy.retention_s,
                retention_bytes=policy.retention_bytes,
                created_us=now,
            )
            .returning(t.topic.c.topic_id)
        ).scalar_one_or_none()
        if topic_id is None:
            raise AlreadyExists(f"topic {name!r}: expected a free name, found a topic that was just created")
        connection.execute(
            insert(t.ledger_list).values(
                topic_id=topic_id, component=Component.MANAGED_LEDGER.value, owner=canonical({}), version=0
            )
        )
        return Topic(topic_id=topic_id, name=name, state=TopicState.ACTIVE, policy=policy, created_us=now)

    def get(self, name: str) -> Topic:
        """See `Topics.get`."""
        found = self._db.read(lambda connection: connection.execute(_SELECT.where(t.topic.c.name == name)).first())
        if found is None:
            raise UnknownObject("topic", expected="an existing topic", found=name)
        return _topic(found)

    def by_id(self, topic_id: TopicId) -> Topic:
        """See `Topics.by_id`."""
        return self._db.read(lambda connection: topic_row(connection, topic_id))

    def all(self) -> list[Topic]:
        """See `Topics.all`."""
        rows = self._db.read(lambda connection: connection.execute(_SELECT).all())
        return sorted(map(_topic, rows), key=attrgetter("name"))  # here, for a database sorts by its own locale

    def active(self, *, after: TopicId, limit: int) -> list[Topic]:
        """See `Topics.active`."""
        c = t.topic.c
        page = _SELECT.where(c.state == TopicState.ACTIVE.value, c.topic_id > after).order_by(c.topic_id).limit(limit)
        return [_topic(row) for row in self._db.read(lambda connection: connection.execute(page).all())]


_SELECT = select(t.topic)


def canonical(keys: Mapping[str, str]) -> str:
    """Keys of a component as one text, equal for equal keys."""
    return json.dumps(dict(keys), sort_keys=True, separators=(",", ":"))


def ignoring_conflict(connection: Connection, table: Any) -> Any:  # noqa: ANN401 - two dialects, one method
    """An insert that does nothing where a unique key is taken."""
    return inserting(connection.dialect.name, table).on_conflict_do_nothing()


def inserting(dialect: str, table: Any) -> Any:  # noqa: ANN401 - two dialects, one class
    """An insert that may say what happens where a unique key is taken."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)  # the other one's import is spared


def holding(topics: Select[Any]) -> Select[Any]:
    """The share lock of who works on topics: their deletion may begin meanwhile, but takes nothing away before we end.

    PostgreSQL lets further share locks pass whoever waits for an exclusive one, so the deletion of a busy topic
    would never begin if it had to wait for them. Source: PostgreSQL's README.tuplock.
    """
    return topics.with_for_update(read=True, key_share=True)


def topic_row(connection: Connection, topic_id: TopicId, *, share: bool = False) -> Topic:
    """Read a topic, under a share lock if asked: whoever takes its rows away waits for us or we for it.

    Raises:
        UnknownObject: There is none.
    """
    query = _SELECT.where(t.topic.c.topic_id == topic_id)
    found = connection.execute(holding(query) if share else query).first()
    if found is None:
        raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
    return _topic(found)


def active_topic(connection: Connection, topic_id: TopicId) -> Topic:
    """Lock a topic and require it ACTIVE; one that is not is not locked, for its deletion waits until nobody holds it.

    Raises:
        UnknownObject: There is none.
        PreconditionFailed: It is being deleted.
    """
    active = _SELECT.where(t.topic.c.topic_id == topic_id, t.topic.c.state == TopicState.ACTIVE.value)
    row = connection.execute(holding(active)).first()
    if row is not None:
        return _topic(row)
    found = topic_row(connection, topic_id)
    raise PreconditionFailed(f"topic {found.name}: expected state ACTIVE, found {found.state.value}")


def _topic(row: Row[Any]) -> Topic:
    return Topic(
        topic_id=TopicId(row.topic_id),
        name=row.name,
        state=TopicState(row.state),
        policy=RetentionPolicy(retention_s=row.retention_s, retention_bytes=row.retention_bytes),
        created_us=row.created_us,
    )
