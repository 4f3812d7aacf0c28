"""Retention: what must happen to an idle topic, so that what was consumed can become deletable."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from activities.beating import beating
from activities.defined import defined
from activities.dispatch import check_topic_name
from logstore.errors import SextonError
from logstore.ports.catalog import Topic, Topics, TopicState
from logstore.positions import TopicId

_LOG = logging.getLogger(__name__)


class IdleRoller(Protocol):
    """Rolls the last ledger of a topic if it is past its age."""

    def due(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        """Those of the topics that it would roll now."""

    def roll_if_due(self, topic: Topic) -> bool:
        """Whether it rolled; an empty ledger is never rolled."""


class Settler(Protocol):
    """Moves cursors over what is contiguous in their whole state."""

    def outgrown(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        """Those of the topics in which there is something to settle."""

    def settle(self, topic_id: TopicId) -> Sequence[SextonError]:
        """Settle every cursor of the topic; what went wrong with which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollInput:
    """Which topic."""

    topic_id: int
    topic: str = ""  # encoded; the topic of that id must bear it


class Retention:
    """Activities around retention, over ports."""

    def __init__(self, *, topics: Topics, roller: IdleRoller, settler: Settler) -> None:
        """Take the ports."""
        self._topics = topics
        self._roller = roller
        self._settler = settler

    @defined(name="retention.roll_idle")
    @beating()
    def roll_idle(self, request: RollInput) -> bool:
        """Roll the topic's last ledger if it has entries and is past its age, and settle its cursors.

        Both make deletable what was consumed, without traffic (apache/pulsar#9136). A cursor that cannot be settled
        is logged and keeps what it keeps; the trim goes on. So it does for a topic that is being deleted, which is
        left alone.

        Idempotency: a cursor that was settled stands where it stands; a ledger that rolled is no longer the last,
        and the new one is empty and is not rolled.
        Raises: InvalidInput (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        check_topic_name(self._topics, request.topic_id, request.topic)
        return self.prepare(self._topics.by_id(TopicId(request.topic_id)))

    def due(self, topics: Sequence[Topic]) -> list[Topic]:
        """Those of the topics for which `prepare` has something to do, found in a few reads for all of them."""
        ids = [topic.topic_id for topic in topics]
        wanted = self._roller.due(ids) | self._settler.outgrown(ids)
        return [topic for topic in topics if topic.topic_id in wanted]

    def prepare(self, topic: Topic) -> bool:
        """What `roll_idle` does for a topic that was read already."""
        if topic.state is not TopicState.ACTIVE:
            return False
        rolled = self._roller.roll_if_due(topic)  # first: slow storage and many cursors must not keep it from that
        for trouble in self._settler.settle(topic.topic_id):
            _LOG.warning("topic %s: a cursor was not settled: %s", topic.name, trouble)
        return rolled
