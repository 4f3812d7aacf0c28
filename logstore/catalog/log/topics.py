"""Topics in SQL: single topics, and pages of summaries."""

from collections.abc import Sequence
from operator import attrgetter

from sqlalchemy import Connection, func, select

from logstore.catalog import tables as t
from logstore.catalog.cursors.cursor_rows import stored_cursor_from_row
from logstore.catalog.engine.database import CatalogAdapter, in_write_transaction
from logstore.catalog.engine.dialect_sql import is_one_of
from logstore.catalog.log.topic_rows import TOPIC_QUERY, insert_topic, read_topic, topic_from_row
from logstore.catalog.log.totals_and_backlogs import count_topic_backlogs, read_topic_totals
from logstore.catalog.transactions.buffer_rows import read_buffers
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import UnknownObject
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.log import SubscriptionSummary, Topic, TopicState, TopicSummary, TopicSummaryPage
from logstore.positions import TopicId


class Topics(CatalogAdapter):
    @in_write_transaction("catalog.create_topic")
    def create_topic(
        self, connection: Connection, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None
    ) -> Topic:
        """Create a topic without ledgers. Raise `AlreadyExists` if the name is taken. `name` is encoded.

        `durable_delete` decides whether deletions of this topic leave tombstones by default. With `None`, each
        operation has its own default.
        """
        return insert_topic(connection, name, policy, durable_delete=durable_delete, now_us=self._db.now_us(connection))

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

    def list_topic_summaries(
        self, *, prefix: str = "", state: TopicState | None = None, after: str = "", limit: int
    ) -> TopicSummaryPage:
        """Return a page of topic summaries, read in one transaction. `limit` is 1 or more.

        `prefix` and `after` are encoded. The page begins after the name `after`, compared by bytes.
        """
        return self._db.read(lambda c: _read_summary_page(c, prefix=prefix, state=state, after=after, limit=limit))

    def summarize_topic(self, topic: Topic) -> TopicSummary:
        """Return the summary of one topic. For a deleted topic, all totals are zero, and there are no subscriptions."""
        return self._db.read(lambda connection: _summarize_topics(connection, [topic])[0])


_PAST_ASCII = "\x7f"  # encoded names are printable ASCII


def _read_summary_page(
    connection: Connection, *, prefix: str, state: TopicState | None, after: str, limit: int
) -> TopicSummaryPage:
    # Compare by bytes, like SQLite. PostgreSQL compares by its locale unless a collation is given.
    name = t.topic.c.name if connection.dialect.name == "sqlite" else t.topic.c.name.collate("C")
    conditions = [name > after, name >= prefix, name < prefix + _PAST_ASCII]
    if state is not None:
        conditions.append(t.topic.c.state == state.value)
    rows = connection.execute(select(t.topic).where(*conditions).order_by(name).limit(limit)).all()
    count = connection.execute(select(func.count()).select_from(t.topic).where(*conditions)).scalar_one()
    return TopicSummaryPage(
        topics=_summarize_topics(connection, [topic_from_row(row) for row in rows]), more=count - len(rows)
    )


def _summarize_topics(connection: Connection, topics: Sequence[Topic]) -> list[TopicSummary]:
    ids = [topic.topic_id for topic in topics]
    query = select(t.cursor).where(is_one_of(connection, t.cursor.c.topic_id, ids))
    rows = connection.execute(query).all()
    cursors = {(TopicId(row.topic_id), row.name): stored_cursor_from_row(row) for row in rows}
    buffers = read_buffers(connection, ids)
    totals = read_topic_totals(connection, ids, buffers)
    backlogs = count_topic_backlogs(connection, ids, {key: cursor.state for key, cursor in cursors.items()}, buffers)
    cursors_by_topic: dict[TopicId, list[StoredCursor]] = {topic_id: [] for topic_id in ids}
    for (topic_id, _), cursor in cursors.items():
        cursors_by_topic[topic_id].append(cursor)
    return [
        TopicSummary(
            topic=topic,
            totals=totals[topic.topic_id],
            subscriptions=[
                _summarize_subscription(cursor, backlogs[topic.topic_id, cursor.name])
                for cursor in sorted(
                    cursors_by_topic[topic.topic_id], key=attrgetter("name")
                )  # a database sorts by its locale
            ],
        )
        for topic in topics
    ]


def _summarize_subscription(cursor: StoredCursor, backlog: int) -> SubscriptionSummary:
    return SubscriptionSummary(
        name=cursor.name,
        mark_delete=cursor.state.mark_delete,
        created_us=cursor.created_us,
        backlog=backlog if cursor.snapshot_ledger is None else None,
    )
