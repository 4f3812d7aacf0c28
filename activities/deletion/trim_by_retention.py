"""Activities that roll idle ledgers, and that trim all topics by retention into one batch."""

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from activities.deletion import metrics
from activities.deletion.claims_and_causes import count_and_summarize_detach, detach_arguments
from activities.deletion.inputs_and_results import DetachResult
from activities.heartbeats import define_activity, send_heartbeats
from activities.owner_routing import require_topic_name_if_known
from logstore.catalog.log.topics import Topics
from logstore.catalog.sql_catalog import Catalog
from logstore.errors import OutcomeUnknown, SextonError, StoreUnavailable, UnknownObject
from logstore.ports.catalog.deletion import DetachedBatch
from logstore.ports.catalog.log import Topic, TopicState
from logstore.positions import TopicId
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasBatch, HasSubject, HasTopic, HasTopicsAfter, Subject

_LOG = logging.getLogger(__name__)


class IdleLedgerRoller(Protocol):
    def select_topics_to_roll(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]: ...

    def roll_if_due(self, topic: Topic) -> bool:
        """Roll the last ledger if it has entries and has reached its maximum age. Return whether it was rolled."""


class CursorAdvancer(Protocol):
    """Service that moves mark-delete positions forward over acknowledgements in cursor snapshots."""

    def select_topics_to_advance(self, topic_ids: Collection[TopicId]) -> frozenset[TopicId]: ...

    def advance_and_fold_cursors_with_snapshots(self, topic_id: TopicId) -> Sequence[SextonError]:
        """Advance each cursor that has a snapshot, and fold small snapshots. Return the error of each failed cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollIdleLedgerInput(HasTopic):
    topic_id: int
    topic: str = ""  # encoded; must be the name of `topic_id`


class RetentionPreparation:
    def __init__(self, *, topics: Topics, roller: IdleLedgerRoller, settler: CursorAdvancer) -> None:
        self._topics = topics
        self._roller = roller
        self._settler = settler

    @define_activity(name="retention.roll_idle")
    @send_heartbeats()
    def roll_idle_ledger(self, request: RollIdleLedgerInput) -> bool:
        """Roll the topic's last ledger if it has entries and has reached its maximum age.

        Also advance cursors that have a snapshot. Acknowledged ledgers thus become deletable even without traffic
        (apache/pulsar#9136). A cursor that fails is logged. A topic that is being deleted does not change.

        Idempotency: an advanced cursor does not move again. After a roll the last ledger is empty and is not rolled.
        Raises: InvalidInput, UnknownObject (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        require_topic_name_if_known(self._topics, request.topic_id, request.topic)
        return self.roll_and_advance_cursors(self._topics.get_topic_by_id(TopicId(request.topic_id)))

    def select_topics_to_prepare(self, topics: Sequence[Topic]) -> list[Topic]:
        """Return the topics that `roll_and_advance_cursors` would change. All topics together need only a few reads."""
        ids = [topic.topic_id for topic in topics]
        due_ids = self._roller.select_topics_to_roll(ids) | self._settler.select_topics_to_advance(ids)
        return [topic for topic in topics if topic.topic_id in due_ids]

    def roll_and_advance_cursors(self, topic: Topic) -> bool:
        """Roll the topic's idle ledger, and advance cursors with a snapshot. Return whether a ledger was rolled."""
        if topic.state is not TopicState.ACTIVE:
            return False
        rolled = self._roller.roll_if_due(topic)  # before the cursors, which may be many and on slow storage
        for error in self._settler.advance_and_fold_cursors_with_snapshots(topic.topic_id):
            _LOG.warning("topic %s: a cursor was not settled: %s", topic.name, error)
        return rolled


_MAX_TROUBLES_PER_PAGE = 5
_MAX_TROUBLE_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTopicPagesInput(HasTopicsAfter):
    after: int  # topic id, exclusive
    topics: int  # topics per page
    limit: int  # maximum number of pages


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdRange:
    """Range of ids of ACTIVE topics, both ends inclusive."""

    first: int
    last: int
    topics: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTopicPagesResult:
    pages: list[TopicIdRange]  # at most `NextTopicPagesInput.limit`


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPageInput(HasSubject):
    page: TopicIdRange
    batch_id: str
    batch_workflow_id: str  # workflow of phase two, which gets the claim
    actor: str
    reason: str

    def subject(self) -> Subject:
        return Subject(parts=(f"topics {self.page.first} to {self.page.last}",), batch_id=self.batch_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPageResult:
    topics: int  # topics of the page
    failed: int = 0  # topics that were skipped
    ledgers: int = 0  # detached ledgers
    intents: int = 0  # new intents, and stalled intents that were taken over
    troubles: list[str] = field(default_factory=list)  # sample of errors


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBatchInput(HasBatch):
    batch_id: str


class TrimAllTopicsActivities:
    def __init__(self, *, catalog: Catalog, retention: RetentionPreparation) -> None:
        self._topics, self._phase_one = catalog.topics, catalog.phase_one
        self._deletions, self._ledgers, self._retention = catalog.deletions, catalog.ledgers, retention

    @define_activity(name="trimming.next_pages")
    @send_heartbeats()
    def list_next_topic_pages(self, request: NextTopicPagesInput) -> NextTopicPagesResult:
        """Return the next pages of ACTIVE topics.

        Idempotency: reads only; pages are ranges of topic ids, so that created and deleted topics shift no page.
        Raises: StoreUnavailable (retry).
        """
        topics = self._topics.list_active_topics(after=TopicId(request.after), limit=request.topics * request.limit)
        pages = [topics[start : start + request.topics] for start in range(0, len(topics), request.topics)]
        return NextTopicPagesResult(
            pages=[TopicIdRange(first=page[0].topic_id, last=page[-1].topic_id, topics=len(page)) for page in pages]
        )

    @define_activity(name="trimming.trim_page")
    @send_heartbeats()
    def trim_page(self, request: TrimPageInput) -> TrimPageResult:
        """For each topic of the page, roll an idle ledger, then detach the ledgers that retention does not keep.

        A topic that fails is logged, counted and skipped, so that other topics are trimmed
        (YahooArchive/bookkeeper#17). A failed roll does not stop the trim either (apache/pulsar#26431).

        Idempotency: keyed by batch and topic; a topic whose intents are in the batch is only counted.
        Raises: StoreUnavailable, OutcomeUnknown (retry; the catalog does not answer).
        """
        arguments = detach_arguments(request.batch_id, request.batch_workflow_id, request.actor, request.reason)
        with suppress(UnknownObject):  # no page has filed intents yet
            self._deletions.renew_batch_claim(request.batch_id, arguments["claim"])
        page = request.page  # topics of the page may be deleted by now; ids only grow, so none was added
        active_topics = self._topics.list_active_topics(after=TopicId(page.first - 1), limit=page.topics)
        topics = [topic for topic in active_topics if topic.topic_id <= page.last]
        troubles = self._roll_topics_and_describe_failures(topics)
        promising_ids = self._phase_one.select_detachable_topics([topic.topic_id for topic in topics])
        batches, failed = list[DetachedBatch](), 0
        for topic in [topic for topic in topics if topic.topic_id in promising_ids]:
            raise_if_stopped()
            try:
                batches.append(self._phase_one.detach_by_retention_into_batch(topic.topic_id, **arguments))
                metrics.count_filed_intents(batches[-1].filed_counts)
            except (StoreUnavailable, OutcomeUnknown):
                raise  # the catalog does not answer, for any topic
            except SextonError as error:
                failed += 1
                troubles.append(_report_trouble(topic, "not trimmed", error))
        return TrimPageResult(
            topics=len(topics),
            failed=failed,
            ledgers=sum(batch.ledgers for batch in batches),
            intents=sum(batch.intents for batch in batches),
            troubles=troubles[:_MAX_TROUBLES_PER_PAGE],
        )

    @define_activity(name="trimming.count_batch")
    @send_heartbeats()
    def count_batch(self, request: CountBatchInput) -> DetachResult:
        """Count the ledgers and intents of the batch.

        Idempotency: reads only.
        Raises: StoreUnavailable (retry).
        """
        return count_and_summarize_detach(
            self._phase_one.count_detached_batch(request.batch_id), self._ledgers.catalog_epoch()
        )

    def _roll_topics_and_describe_failures(self, topics: list[Topic]) -> list[str]:
        troubles: list[str] = []
        for topic in self._retention.select_topics_to_prepare(topics):
            raise_if_stopped()
            try:
                self._retention.roll_and_advance_cursors(topic)
            except StoreUnavailable as error:
                return [*troubles, _report_trouble(topic, "not rolled, nor any behind it", error)]
            except SextonError as error:
                troubles.append(_report_trouble(topic, "not rolled", error))
        return troubles


def _report_trouble(topic: Topic, problem: str, error: SextonError) -> str:
    _LOG.warning("topic %s: %s: %s", topic.name, problem, error)
    return f"{topic.name}: {problem}: {type(error).__name__}: {error}"[:_MAX_TROUBLE_CHARACTERS]
