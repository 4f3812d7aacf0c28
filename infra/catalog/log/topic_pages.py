"""Pages of topics with what is told of each: every query is of the whole page."""

from collections.abc import Sequence
from operator import attrgetter

from sqlalchemy import ColumnElement, Connection, func, select

from infra.catalog import tables as t
from infra.catalog.cursors.cursor_rows import stored
from infra.catalog.engine.many import any_of
from infra.catalog.log.sums import backlogs_of, totals_of
from infra.catalog.log.topics import topic_of
from logstore.ports.catalog import StoredCursor, SubscriptionSummary, Topic, TopicPage, TopicState, TopicSummary
from logstore.positions import TopicId

_PAST_ASCII = "\x7f"  # encoded names are ASCII that can be printed


def page_of(connection: Connection, *, prefix: str, state: TopicState | None, after: str, limit: int) -> TopicPage:
    """See `Topics.page`."""
    name = _by_bytes(connection)
    asked = [name > after, name >= prefix, name < prefix + _PAST_ASCII]
    if state is not None:
        asked.append(t.topic.c.state == state.value)
    rows = connection.execute(select(t.topic).where(*asked).order_by(name).limit(limit)).all()
    count = connection.execute(select(func.count()).select_from(t.topic).where(*asked)).scalar_one()
    return TopicPage(topics=summaries(connection, [topic_of(row) for row in rows]), more=count - len(rows))


def _by_bytes(connection: Connection) -> ColumnElement[str]:
    """Names as SQLite orders them; PostgreSQL has the order of its locale, unless told."""
    return t.topic.c.name if connection.dialect.name == "sqlite" else t.topic.c.name.collate("C")


def summaries(connection: Connection, topics: Sequence[Topic]) -> list[TopicSummary]:
    """What is told of the topics, in their order."""
    ids = [topic.topic_id for topic in topics]
    query = select(t.cursor).where(t.cursor.c.topic_id.in_(any_of(connection.dialect.name, ids)))
    rows = connection.execute(query).all()
    cursors = {(TopicId(row.topic_id), row.name): stored(row) for row in rows}
    totals = totals_of(connection, ids)
    backlogs = backlogs_of(connection, ids, {key: one.state for key, one in cursors.items()})
    of_topic: dict[TopicId, list[StoredCursor]] = {topic_id: [] for topic_id in ids}
    for (topic_id, _), cursor in cursors.items():
        of_topic[topic_id].append(cursor)
    return [
        TopicSummary(
            topic=topic,
            totals=totals[topic.topic_id],
            subscriptions=[
                _told(one, backlogs[topic.topic_id, one.name])
                for one in sorted(of_topic[topic.topic_id], key=attrgetter("name"))  # here: a database has its locale
            ],
        )
        for topic in topics
    ]


def _told(one: StoredCursor, backlog: int) -> SubscriptionSummary:
    return SubscriptionSummary(
        name=one.name,
        mark_delete=one.state.mark_delete,
        created_us=one.created_us,
        backlog=backlog if one.snapshot_ledger is None else None,
    )
