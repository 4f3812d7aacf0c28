"""Sole writer of the table `topic`."""

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, delete, insert, select, update

from logstore.catalog import tables as t
from logstore.catalog.engine.dialect_sql import build_insert_if_absent, dataclass_from_row, is_one_of
from logstore.catalog.log.ledger_rows import ensure_ledger_list
from logstore.deletion.retention import MAX_RETENTION_S, RetentionPolicy
from logstore.errors import AlreadyExists, IdsExhausted, PreconditionFailed, UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import TopicId

TOPIC_QUERY: Final = select(t.topic)
"""Query whose rows `topic_from_row` converts."""


def insert_topic(
    connection: Connection, name: str, policy: RetentionPolicy, *, durable_delete: bool | None, now_us: int
) -> Topic:
    """Insert an ACTIVE topic with an empty list of message ledgers. Raise `AlreadyExists` if the name is taken."""
    existing_state = connection.execute(select(t.topic.c.state).where(t.topic.c.name == name)).scalar_one_or_none()
    if existing_state:
        raise AlreadyExists(f"topic {name!r}: expected a free name, found a topic that is {existing_state}")
    inserted = connection.execute(
        build_insert_if_absent(connection, t.topic)
        .values(
            name=name,
            state=TopicState.ACTIVE.value,
            retention_s=policy.retention_s,
            retention_bytes=policy.retention_bytes,
            durable_delete=None if durable_delete is None else int(durable_delete),
            created_us=now_us,
        )
        .returning(t.topic.c.topic_id, select(t.record_log.c.topic_ceiling).scalar_subquery())
    ).one_or_none()
    if inserted is None:
        raise AlreadyExists(f"topic {name!r}: expected a free name, found a topic that was just created")
    topic_id, ceiling = inserted
    if topic_id >= ceiling:
        raise IdsExhausted(f"topic ids: expected one below {ceiling}, found {topic_id}; flush the record log")
    ensure_ledger_list(connection, topic_id, Component.MANAGED_LEDGER, {})
    return Topic(
        topic_id=topic_id,
        name=name,
        state=TopicState.ACTIVE,
        policy=policy,
        created_us=now_us,
        durable_delete=durable_delete,
    )


def insert_topic_found_in_storage(connection: Connection, topic_id: TopicId, name: str, *, now_us: int) -> None:
    """Insert an ACTIVE topic that only storage has. `name` must not be taken.

    The topic keeps all entries until an operator sets limits.
    """
    policy = RetentionPolicy(retention_s=MAX_RETENTION_S)
    values = {"retention_s": policy.retention_s, "retention_bytes": policy.retention_bytes, "created_us": now_us}
    row = {"topic_id": topic_id, "name": name, "state": TopicState.ACTIVE.value, **values}
    connection.execute(insert(t.topic).values(row))


def add_share_lock(topics: Select[Any]) -> Select[Any]:
    """Add the share lock for work on topics. It delays the removal of a topic, but not the change to DELETING.

    In PostgreSQL, new share locks overtake a waiting exclusive lock. If the change to DELETING waited for share locks,
    the deletion of a busy topic would never begin. Source: PostgreSQL's README.tuplock.
    """
    return topics.with_for_update(read=True, key_share=True)


def share_lock_and_filter_active_topics(connection: Connection, ids: Iterable[int]) -> set[int]:
    """Share-lock topics, ascending, so that their removal waits. Return the ids of ACTIVE topics."""
    c = t.topic.c
    locked = add_share_lock(
        select(c.topic_id, c.state).where(is_one_of(connection, c.topic_id, ids)).order_by(c.topic_id)
    )
    return {row.topic_id for row in connection.execute(locked) if row.state == TopicState.ACTIVE.value}


def read_topic(connection: Connection, topic_id: TopicId, *, share_lock: bool = False) -> Topic:
    """Return a topic. With `share_lock`, the removal of the topic waits for this transaction."""
    query = TOPIC_QUERY.where(t.topic.c.topic_id == topic_id)
    row = connection.execute(add_share_lock(query) if share_lock else query).first()
    if row is None:
        raise UnknownObject("topic_id", expected="an existing topic", found=topic_id)
    return topic_from_row(row)


def share_lock_active_topic(connection: Connection, topic_id: TopicId) -> Topic:
    """Share-lock a topic and require that it is ACTIVE.

    A DELETING topic is not locked, because its removal would wait for the lock.
    """
    active = TOPIC_QUERY.where(t.topic.c.topic_id == topic_id, t.topic.c.state == TopicState.ACTIVE.value)
    row = connection.execute(add_share_lock(active)).first()
    if row is not None:
        return topic_from_row(row)
    topic = read_topic(connection, topic_id)
    raise PreconditionFailed(f"topic {topic.name}: expected state ACTIVE, found {topic.state.value}")


def mark_topic_deleting(connection: Connection, topic_id: TopicId) -> None:
    """Set the topic DELETING, which is final. The caller has locked the row."""
    change = update(t.topic).where(t.topic.c.topic_id == topic_id)
    connection.execute(change.values(state=TopicState.DELETING.value))


def remove_topic(connection: Connection, topic_id: TopicId) -> None:
    """Remove the row of a DELETING topic. The caller has the exclusive lock, and no ledger refers to the topic."""
    connection.execute(delete(t.topic).where(t.topic.c.topic_id == topic_id))


def topic_from_row(row: Row[Any]) -> Topic:
    policy = RetentionPolicy(retention_s=row.retention_s, retention_bytes=row.retention_bytes)
    durable = None if row.durable_delete is None else bool(row.durable_delete)
    return dataclass_from_row(Topic, row, state=TopicState(row.state), policy=policy, durable_delete=durable)
