"""Trimming many topics, page by page, into one batch: what retention does not keep; idle last ledgers are rolled."""

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from activities.deletion import metrics
from activities.deletion.claims import detach_arguments, report_detached
from activities.deletion.values import DetachResult
from activities.dispatch import check_topic_name
from activities.heartbeats import beating, defined
from logstore.errors import OutcomeUnknown, SextonError, StoreUnavailable, UnknownObject
from logstore.ports.catalog import Deletions, DetachedBatch, Ledgers, PhaseOne, Topic, Topics, TopicState
from logstore.positions import TopicId
from logstore.units import raise_if_stopped

_LOG = logging.getLogger(__name__)


class IdleRoller(Protocol):
    """Rolls the last ledger of a topic if it is past its age."""

    def topics_to_roll(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        """Those of the topics that it would roll now."""

    def roll_if_due(self, topic: Topic) -> bool:
        """Roll the ledger if it is due; returns whether it rolled. An empty ledger is never rolled."""


class Settler(Protocol):
    """Moves cursors over what is contiguous in their whole state."""

    def outgrown(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]:
        """Those of the topics in which there is something to settle."""

    def settle(self, topic_id: TopicId) -> Sequence[SextonError]:
        """Settle every cursor of the topic; returns what went wrong, by cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollIdleInput:
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
    def roll_idle(self, request: RollIdleInput) -> bool:
        """Roll the topic's last ledger if it has entries and is past its age, and settle its cursors.

        Both make deletable what was consumed, without traffic (apache/pulsar#9136). A cursor that cannot be settled
        is logged and keeps what it keeps; the trim goes on. So it does for a topic that is being deleted, which is
        left alone.

        Idempotency: a cursor that was settled stands where it stands; a ledger that rolled is no longer the last,
        and the new one is empty and is not rolled.
        Raises: InvalidInput, UnknownObject (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        check_topic_name(self._topics, request.topic_id, request.topic)
        return self.prepare(self._topics.get_by_id(TopicId(request.topic_id)))

    def due(self, topics: Sequence[Topic]) -> list[Topic]:
        """Those of the topics for which `prepare` has something to do, found in a few reads for all of them."""
        ids = [topic.topic_id for topic in topics]
        wanted = self._roller.topics_to_roll(ids) | self._settler.outgrown(ids)
        return [topic for topic in topics if topic.topic_id in wanted]

    def prepare(self, topic: Topic) -> bool:
        """What `roll_idle` does for a topic that was read already."""
        if topic.state is not TopicState.ACTIVE:
            return False
        rolled = self._roller.roll_if_due(topic)  # first: slow storage and many cursors must not keep it from that
        for trouble in self._settler.settle(topic.topic_id):
            _LOG.warning("topic %s: a cursor was not settled: %s", topic.name, trouble)
        return rolled


_SAMPLE = 5  # troubles told of a page
_TOLD = 300  # characters of each


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPagesInput:
    """Which pages of topics come next."""

    after: int  # topic id, exclusive
    topics: int  # in a page
    limit: int  # pages


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdRange:
    """ACTIVE topics by id, both ends inclusive."""

    first: int
    last: int
    topics: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPagesResult:
    """The pages of topics that come next; none at the end."""

    pages: list[TopicIdRange]  # at most `PagesInput.limit`


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPageInput:
    """One page, and the batch that its ledgers join."""

    page: TopicIdRange
    batch_id: str
    batch_workflow_id: str  # which workflow will do phase two: it gets the claim
    actor: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPageResult:
    """What became of a page."""

    topics: int  # looked at
    failed: int = 0  # of them, skipped
    ledgers: int = 0  # that left their lists
    intents: int = 0  # new ones and stalled ones taken up
    troubles: list[str] = field(default_factory=list)  # a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBatchInput:
    """Which batch."""

    batch_id: str


class Trimming:
    """The activities of a trim of all topics, over ports."""

    def __init__(
        self, *, topics: Topics, phase_one: PhaseOne, deletions: Deletions, ledgers: Ledgers, idle: Retention
    ) -> None:
        """Take the ports."""
        self._topics = topics
        self._phase_one = phase_one
        self._deletions = deletions
        self._ledgers = ledgers
        self._idle = idle

    @defined(name="trimming.next_pages")
    @beating()
    def next_pages(self, request: NextPagesInput) -> NextPagesResult:
        """Read which topics come next.

        Idempotency: reads only; pages go by topic id, so that none is left out or met twice while others come and go.
        Raises: StoreUnavailable (retry).
        """
        found = self._topics.list_active(after=TopicId(request.after), limit=request.topics * request.limit)
        cut = [found[at : at + request.topics] for at in range(0, len(found), request.topics)]
        return NextPagesResult(
            pages=[TopicIdRange(first=part[0].topic_id, last=part[-1].topic_id, topics=len(part)) for part in cut]
        )

    @defined(name="trimming.trim_page")
    @beating()
    def trim_page(self, request: TrimPageInput) -> TrimPageResult:
        """Roll what is idle and detach what retention does not keep, topic by topic, into the batch.

        A topic that fails is logged, counted and skipped: it neither keeps its neighbours nor ends the sweep
        (YahooArchive/bookkeeper#17). So is a roll that fails (apache/pulsar#26431).

        Idempotency: keyed by batch and topic; a topic whose intents are in the batch is counted and left alone.
        Raises: StoreUnavailable, OutcomeUnknown when the catalog is away (retry).
        """
        batch = detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason)
        with suppress(UnknownObject):  # nothing was detached into it yet
            self._deletions.renew(request.batch_id, batch["claim"])
        page = request.page  # topics that are still there; more than it had never come, because ids only grow
        active = self._topics.list_active(after=TopicId(page.first - 1), limit=page.topics)
        topics = [topic for topic in active if topic.topic_id <= page.last]
        troubles = self._prepare(topics)
        promising = self._phase_one.select_promising([topic.topic_id for topic in topics])
        done, failed = list[DetachedBatch](), 0
        for topic in [topic for topic in topics if topic.topic_id in promising]:
            raise_if_stopped()
            try:
                done.append(self._phase_one.detach_into(topic.topic_id, **batch))
                metrics.sent(done[-1].filed_counts)
            except (StoreUnavailable, OutcomeUnknown):
                raise  # the catalog is away, for all topics alike
            except SextonError as error:
                failed += 1
                troubles.append(_trouble(topic, "not trimmed", error))
        return TrimPageResult(
            topics=len(topics),
            failed=failed,
            ledgers=sum(one.ledgers for one in done),
            intents=sum(one.intents for one in done),
            troubles=troubles[:_SAMPLE],
        )

    @defined(name="trimming.count_batch")
    @beating()
    def count_batch(self, request: CountBatchInput) -> DetachResult:
        """Count the whole batch from its rows.

        Idempotency: reads only.
        Raises: StoreUnavailable (retry).
        """
        return report_detached(self._phase_one.count_detached(request.batch_id), self._ledgers.epoch())

    def _prepare(self, topics: list[Topic]) -> list[str]:
        """Settle and roll, best effort; once the store gives no answer, the other topics do not wait for it."""
        troubles: list[str] = []
        for topic in self._idle.due(topics):
            raise_if_stopped()
            try:
                self._idle.prepare(topic)
            except StoreUnavailable as error:
                return [*troubles, _trouble(topic, "not rolled, nor any behind it", error)]
            except SextonError as error:
                troubles.append(_trouble(topic, "not rolled", error))
        return troubles


def _trouble(topic: Topic, what: str, error: SextonError) -> str:
    _LOG.warning("topic %s: %s: %s", topic.name, what, error)
    return f"{topic.name}: {what}: {type(error).__name__}: {error}"[:_TOLD]
