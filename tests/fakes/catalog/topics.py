"""Topics in memory."""

from typing import TYPE_CHECKING

from logstore.deletion.retention import RetentionPolicy
from logstore.errors import (
    AlreadyExists,
    UnknownObject,
)
from logstore.failpoints import effect
from logstore.ports.catalog.log import SubscriptionSummary, Topic, TopicState, TopicSummary, TopicSummaryPage
from logstore.positions import TopicId

if TYPE_CHECKING:
    from tests.fakes.catalog.fake_catalog import FakeCatalog


class FakeTopics:
    """The `Topics` port."""

    def __init__(self, catalog: "FakeCatalog") -> None:
        self._catalog = catalog

    def create_topic(self, name: str, policy: RetentionPolicy, *, durable_delete: bool | None = None) -> Topic:
        with effect("catalog.create_topic"), self._catalog.lock:
            rows = self._catalog.topic_rows
            existing_state = next((topic.state for topic in rows.values() if topic.name == name), None)
            if existing_state:
                raise AlreadyExists(
                    f"topic {name!r}: expected a free name, found a topic that is {existing_state.value}"
                )
            topic = Topic(
                topic_id=TopicId(self._catalog.next_topic),
                name=name,
                state=TopicState.ACTIVE,
                policy=policy,
                created_us=self._catalog.now_us,
                durable_delete=durable_delete,
            )
            self._catalog.next_topic += 1
            rows[topic.topic_id] = topic
            self._catalog.lists[topic.topic_id] = []
            self._catalog.versions[topic.topic_id] = 0
            return topic

    def get_topic(self, name: str) -> Topic:
        with self._catalog.lock:
            topic_or_none = next((topic for topic in self._catalog.topic_rows.values() if topic.name == name), None)
        if topic_or_none is None:
            raise UnknownObject("topic", expected="an existing topic", found=name)
        return topic_or_none

    def get_topic_by_id(self, topic_id: TopicId) -> Topic:
        with self._catalog.lock:
            return self._catalog.topic(topic_id)

    def list_active_topics(self, *, after: TopicId, limit: int) -> list[Topic]:
        with self._catalog.lock:
            rows = sorted(self._catalog.topic_rows.items())
        return [row for topic_id, row in rows if topic_id > after and row.state is TopicState.ACTIVE][:limit]

    def list_topic_summaries(
        self, *, prefix: str = "", state: TopicState | None = None, after: str = "", limit: int
    ) -> TopicSummaryPage:
        matching = [
            topic_row
            for topic_row in sorted(self._catalog.topic_rows.values(), key=lambda topic: topic.name)
            if topic_row.name.startswith(prefix) and topic_row.name > after and state in {None, topic_row.state}
        ]
        return TopicSummaryPage(
            topics=[self.summarize_topic(topic_row) for topic_row in matching[:limit]], more=len(matching[limit:])
        )

    def summarize_topic(self, topic: Topic) -> TopicSummary:
        ledgers, cursors = self._catalog.ledgers, self._catalog.cursors.list_cursors(topic.topic_id)
        backlogs = ledgers.count_backlogs(topic.topic_id, [cursor.state for cursor in cursors])
        return TopicSummary(
            topic=topic,
            totals=ledgers.get_topic_totals(topic.topic_id),
            subscriptions=[
                SubscriptionSummary(
                    name=cursor.name,
                    mark_delete=cursor.state.mark_delete,
                    created_us=cursor.created_us,
                    backlog=backlog if cursor.snapshot_ledger is None else None,
                )
                for cursor, backlog in zip(cursors, backlogs, strict=True)
            ],
        )
