"""Topics in SQL: single topics, and pages of summaries. Sole writer of the table `topic`."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from logstore.catalog import tables as t
from logstore.catalog.cursors.cursor_rows import stored_cursor_from_row
from logstore.catalog.engine.database import CatalogAdapter, in_read_transaction, in_write_transaction
from logstore.catalog.engine.dialect_sql import build_insert_if_absent, dataclass_from_row, is_one_of
from logstore.catalog.log.ledger_rows import ensure_ledger_list
from logstore.catalog.log.totals_and_backlogs import count_topic_backlogs, read_topic_totals
from logstore.catalog.transactions.buffer_rows import read_buffers
from logstore.deletion.retention import MAX_RETENTION_S, RetentionPolicy
from logstore.errors import AlreadyExists, IdsExhausted, PreconditionFailed, UnknownObject
from logstore.log.ledgers import Component
from logstore.ports.catalog.log import SubscriptionSummary, Topic, TopicState, TopicSummary, TopicSummaryPage
from logstore.positions import TopicId

TOPIC_QUERY: Final = select(t.topic)
"""Query whose rows `topic_from_row` converts."""

_PAST_ASCII: Final = "\x7f"  # encoded names are printable ASCII


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


class Topics(CatalogAdapter):
    @in_write_transaction("catalog.create_topic")
    def create_topic(
        self, connection: Connection, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None
    ) -> Topic:
        """Create a topic without ledgers. Raise `AlreadyExists` if the name is taken. `name` is encoded.

        `durable_delete` decides whether deletions of this topic leave tombstones by default. With `None`, each
        operation has its own default.
        """
        existing_state = connection.execute(select(t.topic.c.state).where(t.topic.c.name == name)).scalar_one_or_none()
        if existing_state:
            raise AlreadyExists(f"topic {name!r}: expected a free name, found a topic that is {existing_state}")
        row = {
            "name": name,
            "state": TopicState.ACTIVE.value,
            "retention_s": policy.retention_s,
            "retention_bytes": policy.retention_bytes,
            "durable_delete": None if durable_delete is None else int(durable_delete),
            "created_us": self._db.now_us(connection),
        }
        ceiling = select(t.record_log.c.topic_ceiling).scalar_subquery()
        insertion = build_insert_if_absent(connection, t.topic).values(row).returning(t.topic, ceiling.label("ceiling"))
        inserted = connection.execute(insertion).one_or_none()
        if inserted is None:
            raise AlreadyExists(f"topic {name!r}: expected a free name, found a topic that was just created")
        if inserted.topic_id >= inserted.ceiling:
            expected = f"expected one below {inserted.ceiling}, found {inserted.topic_id}"
            raise IdsExhausted(f"topic ids: {expected}; flush the record log")
        ensure_ledger_list(connection, inserted.topic_id, Component.MANAGED_LEDGER, {})
        return topic_from_row(inserted)

    def get_topic(self, name: str) -> Topic:
        """Return the topic with this encoded name. Raise `UnknownObject` if the topic does not exist."""
        row = self._db.read(lambda connection: connection.execute(TOPIC_QUERY.where(t.topic.c.name == name)).first())
        if row is None:
            raise UnknownObject("topic", expected="an existing topic", found=name)
        return topic_from_row(row)

    def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        """Return the topic with this id. Raise `UnknownObject` if the topic does not exist."""
        return self._db.read(lambda connection: read_topic(connection, topic_id))

    def list_active_topics(self, *, after: TopicId, limit: int) -> list[Topic]:
        """Return up to `limit` ACTIVE topics with ids above `after`, ascending by id.

        A topic that exists while all pages are read is in exactly one page.
        """
        c = t.topic.c
        page = (
            TOPIC_QUERY.where(c.state == TopicState.ACTIVE.value, c.topic_id > after).order_by(c.topic_id).limit(limit)
        )
        return [topic_from_row(row) for row in self._db.read(lambda connection: connection.execute(page).all())]

    @in_read_transaction
    def list_topic_summaries(
        self,
        connection: Connection,
        *,
        prefix: str = "",
        state: TopicState | None = None,
        after: str = "",
        limit: int,
    ) -> TopicSummaryPage:
        """Return a page of topic summaries, read in one transaction. `limit` is 1 or more.

        `prefix` and `after` are encoded. The page begins after the name `after`, compared by bytes.
        """
        # Compare by bytes, like SQLite. PostgreSQL compares by its locale unless a collation is given.
        name = t.topic.c.name if connection.dialect.name == "sqlite" else t.topic.c.name.collate("C")
        conditions = [name > after, name >= prefix, name < prefix + _PAST_ASCII]
        if state is not None:
            conditions.append(t.topic.c.state == state.value)
        rows = connection.execute(TOPIC_QUERY.where(*conditions).order_by(name).limit(limit)).all()
        count = connection.execute(select(func.count()).select_from(t.topic).where(*conditions)).scalar_one()
        topics = _summarize_topics(connection, [topic_from_row(row) for row in rows])
        return TopicSummaryPage(topics=topics, more=count - len(rows))

    def summarize_topic(self, topic: Topic) -> TopicSummary:
        """Return the summary of one topic. For a deleted topic, all totals are zero, and there are no subscriptions."""
        return self._db.read(lambda connection: _summarize_topics(connection, [topic])[0])


def _summarize_topics(connection: Connection, topics: Sequence[Topic]) -> list[TopicSummary]:
    ids = [topic.topic_id for topic in topics]
    rows = connection.execute(select(t.cursor).where(is_one_of(connection, t.cursor.c.topic_id, ids))).all()
    # sorted here, because a database sorts by its locale
    cursors = {
        (TopicId(row.topic_id), row.name): stored_cursor_from_row(row) for row in sorted(rows, key=attrgetter("name"))
    }
    buffers = read_buffers(connection, ids)
    totals = read_topic_totals(connection, ids, buffers)
    backlogs = count_topic_backlogs(connection, ids, {key: cursor.state for key, cursor in cursors.items()}, buffers)
    subscriptions_by_topic: dict[TopicId, list[SubscriptionSummary]] = {topic_id: [] for topic_id in ids}
    for (topic_id, name), cursor in cursors.items():
        summary = SubscriptionSummary(
            name=name,
            mark_delete=cursor.state.mark_delete,
            created_us=cursor.created_us,
            backlog=backlogs[topic_id, name] if cursor.snapshot_ledger is None else None,
        )
        subscriptions_by_topic[topic_id].append(summary)
    return [
        TopicSummary(topic=topic, totals=totals[topic.topic_id], subscriptions=subscriptions_by_topic[topic.topic_id])
        for topic in topics
    ]
