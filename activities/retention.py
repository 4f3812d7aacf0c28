"""Retention: roll an idle last ledger, so that what it holds can become deletable."""

from dataclasses import dataclass
from typing import Protocol

from temporalio import activity

from activities.beating import beating
from logstore.ports.catalog import Topic, Topics, TopicState
from logstore.positions import TopicId


class IdleRoller(Protocol):
    """Rolls the last ledger of a topic if it is past its age."""

    def roll_if_due(self, topic: Topic) -> bool:
        """Whether it rolled; an empty ledger is never rolled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollInput:
    """Which topic."""

    topic_id: int


class Retention:
    """Activities around retention, over ports."""

    def __init__(self, *, topics: Topics, roller: IdleRoller) -> None:
        """Take the ports."""
        self._topics = topics
        self._roller = roller

    @activity.defn(name="retention.roll_idle")
    @beating()
    def roll_idle(self, request: RollInput) -> bool:
        """Roll the topic's last ledger if it has entries and is past its age (apache/pulsar#9136).

        A topic that is being deleted is not rolled, and its trim goes on.

        Idempotency: a ledger that rolled is no longer the last; the new one is empty and is not rolled.
        Raises: UnknownObject (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        topic = self._topics.by_id(TopicId(request.topic_id))
        return topic.state is TopicState.ACTIVE and self._roller.roll_if_due(topic)
