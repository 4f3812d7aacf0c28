"""Activities that seal and merge index buckets.

A change of an index is refused if the list version of the topic's list has changed. If two changes overlap, one of the
changes is therefore refused, and its new ledgers are deleted. Claims only avoid repeated work.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from temporalio import activity

from activities.deletion.claims_and_causes import own_workflow_claim
from activities.deletion.trim_by_retention import NextTopicPagesInput
from activities.heartbeats import define_activity, send_heartbeats, send_heartbeats_and_renew
from activities.owner_routing import require_topic_name_if_known
from logstore.catalog.delayed.delayed_index import DelayedIndex
from logstore.catalog.log.topics import Topics
from logstore.delayed.index_buckets import (
    IndexBucket,
    IndexBucketList,
    IndexBucketToMerge,
    SealAndMergeLimits,
    SealCounts,
    find_pair_to_merge,
)
from logstore.delayed.services.bucket_merger import IndexMergeResult, MergedPair, Merger
from logstore.delayed.services.log_sealer import Sealer, SealResult
from logstore.errors import PreconditionFailed, SextonError, UnknownObject
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, TopicId
from logstore.stop_checks import raise_if_stopped
from logstore.subjects import HasSubject, HasTopic, HasTopics, Subject, list_ids

_MAX_TROUBLES_PER_PAGE: Final = 5
_MAX_TROUBLE_CHARACTERS: Final = 300
_LOG: Final = logging.getLogger(__name__)
_DESCRIPTION_BY_COUNTER: Final = {
    "sexton_delayed_sealed_buckets_total": "Buckets that were sealed",
    "sexton_delayed_sealed_messages_total": "Messages in buckets that were sealed",
    "sexton_delayed_dropped_buckets_total": "Buckets that were dropped, because their messages need no index any more",
    "sexton_delayed_merges_total": "Merges of two buckets, by outcome",
    "sexton_delayed_merged_messages_total": "Messages in buckets that merges wrote",
    "sexton_delayed_merge_milliseconds_total": "Time that merges took",
    "sexton_delayed_loads_total": "Segments of snapshots that merges have read",
    "sexton_delayed_load_milliseconds_total": "Time that reading them took",
    "sexton_delayed_alarms_total": "Snapshots of buckets that could not be read, and that are listed all the same",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWorkTopicPages:
    """Pages of topics whose index needs work, ascending by id."""

    pages: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicsInput(HasTopics):
    topic_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicInput(HasTopic):
    """Topic to seal, even if the index needs no work."""

    topic_id: int
    topic: str = ""  # encoded name that the topic must have


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOverBucketLimit:
    topic_id: int
    topic: str  # encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class SealTopicsResult(SealCounts):
    over_limit: list[TopicOverBucketLimit] = field(default_factory=list)  # topics to merge


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosePairInput(HasTopic):
    topic_id: int
    topic: str = ""  # encoded name that the topic must have
    max_buckets: int | None = None  # None: the limit of the settings
    damaged: list[int] = field(default_factory=list)  # unreadable index buckets, not to be chosen


class ChoiceReason(StrEnum):
    PAIR = "PAIR"
    WITHIN = "WITHIN"  # the topic is within its limit
    DAMAGED = "DAMAGED"  # the topic is over its limit, and no two neighbouring index buckets can be read
    HELD = "HELD"  # another job has claimed the list
    GONE = "GONE"  # the topic is deleted or being deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class PairChoice:
    chosen: ChoiceReason
    pair: list[IndexBucketToMerge] = field(default_factory=list)  # two neighbouring index buckets, or none
    buckets: int = 0  # index buckets of the topic
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePairInput(HasSubject):
    topic_id: int
    bucket_ids: list[int]  # two neighbouring index buckets
    topic: str = ""  # encoded; only for display

    def subject(self) -> Subject:
        return Subject(parts=(list_ids("buckets", self.bucket_ids),), topic=self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseListInput(HasTopic):
    topic_id: int
    topic: str = ""  # encoded; only for display


class IndexBucketActivities:
    def __init__(
        self, *, index: DelayedIndex, topics: Topics, sealer: Sealer, merger: Merger, limits: SealAndMergeLimits
    ) -> None:
        self._index, self._topics = index, topics
        self._sealer, self._merger, self._limits = sealer, merger, limits
        self._unreadable_version_by_topic: dict[
            TopicId, int
        ] = {}  # list version in which no two neighbours can be read

    @define_activity(name="delayed.due_topics")
    @send_heartbeats()
    def list_topics_with_index_work(self, request: NextTopicPagesInput) -> IndexWorkTopicPages:
        """Return pages of topics whose index needs work and that no job has claimed, ascending by id.

        The work is a seal, a merge, or the removal of index buckets that are not needed any more.

        Idempotency: reads only.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        limit, after = request.topics * request.limit, TopicId(request.after)
        topic_ids = [
            int(topic_id) for topic_id in self._index.list_topics_with_work(self._limits, after=after, limit=limit)
        ]
        starts = range(0, len(topic_ids), request.topics)
        return IndexWorkTopicPages(pages=[topic_ids[start : start + request.topics] for start in starts])

    @define_activity(name="delayed.seal_topics")
    def drop_and_seal_topics(self, request: SealTopicsInput) -> SealTopicsResult:
        """For each topic, drop unneeded index buckets, then seal the topic. A topic that fails is counted and skipped.

        Idempotency: sealed entries are not sealed again.
        Heartbeat: topics done, every two seconds. The claim on the topic's list is renewed every 15 s.
        Raises: StoreUnavailable, CatalogBusy (retry), if the catalog does not answer the claim on a list.
        """
        totals = SealTopicsResult()
        for topic_id in request.topic_ids:
            raise_if_stopped()
            sealed = self._claim_and_seal_topic(TopicId(topic_id), lambda: (totals.topics,), force=False)  # noqa: B023 - called at once
            over_limit = [*totals.over_limit, *sealed.over_limit]
            totals = replace(totals.plus(sealed, max_troubles=_MAX_TROUBLES_PER_PAGE), over_limit=over_limit)
        return totals

    @define_activity(name="delayed.seal_topic")
    def seal_whole_topic(self, request: SealTopicInput) -> SealTopicsResult:
        """Seal one topic up to the last entry that consumers may see, even if the index needs no work.

        Idempotency: sealed entries are not sealed again.
        Heartbeat: every two seconds. The claim on the topic's list is renewed every 15 s.
        Raises: InvalidInput, UnknownObject, PreconditionFailed, MissingData, CorruptData (terminal); StoreUnavailable,
            CatalogBusy, OutcomeUnknown (retry).
        """
        require_topic_name_if_known(self._topics, request.topic_id, request.topic)
        topic = self._topics.get_topic_by_id(TopicId(request.topic_id))
        if topic.state is not TopicState.ACTIVE:
            raise PreconditionFailed(f"topic {topic.name}: expected state ACTIVE, found {topic.state.value}")
        return self._claim_and_seal_topic(topic.topic_id, tuple, force=True)

    def _claim_and_seal_topic(
        self, topic_id: TopicId, details: Callable[[], Sequence[object]], *, force: bool
    ) -> SealTopicsResult:
        """Seal one topic under a claim on the topic's list. With `force`, raise errors instead of counting them."""
        with self._claim_list(topic_id, details) as is_claimed:
            if not is_claimed:
                return SealTopicsResult(topics=1, held=1)
            try:
                result = self._sealer.drop_buckets_and_seal(topic_id, force=force)
            except SextonError as error:
                if force:
                    raise
                if not self._is_topic_active(topic_id):
                    return SealTopicsResult(topics=1)
                _LOG.warning("topic %s: its delayed messages are not sealed: %s", topic_id, error)
                trouble = f"{self._find_topic_name(topic_id)}: {type(error).__name__}: {error}"[
                    :_MAX_TROUBLE_CHARACTERS
                ]
                return SealTopicsResult(topics=1, failed=1, troubles=[trouble])
        _count_seal(result)
        should_merge = result.listed > self._limits.buckets and not self._has_no_readable_pair(topic_id)
        return SealTopicsResult(
            topics=1,
            buckets=result.buckets,
            messages=result.messages,
            dropped=result.dropped,
            overtaken=int(result.overtaken),
            over_limit=[TopicOverBucketLimit(topic_id=topic_id, topic=self._find_topic_name(topic_id))]
            if should_merge
            else [],
        )

    def _has_no_readable_pair(self, topic_id: TopicId) -> bool:
        """Return whether, as this process knows, no two neighbouring index buckets of the present list can be read."""
        version = self._unreadable_version_by_topic.get(topic_id)
        if version is not None and self._index.get_bucket_list(topic_id).version != version:
            del self._unreadable_version_by_topic[topic_id]
        return topic_id in self._unreadable_version_by_topic

    def _remember_and_log_no_readable_pair(self, topic_id: TopicId, listed: IndexBucketList, limit: int) -> None:
        if self._unreadable_version_by_topic.get(topic_id) != listed.version:
            self._unreadable_version_by_topic[topic_id] = listed.version
            _LOG.error(
                "DelayedBucketsStuck: topic %s: %d buckets, of at most %d, and no two neighbours can be read; no merge"
                " is started until the list changes: write them anew by `sexton delayed build %s`",
                self._find_topic_name(topic_id),
                len(listed.buckets),
                limit,
                self._find_topic_name(topic_id),
            )

    def _find_topic_name(self, topic_id: TopicId) -> str:
        try:
            return self._topics.get_topic_by_id(topic_id).name
        except UnknownObject:  # deleted meanwhile
            return str(topic_id)

    @contextmanager
    def _claim_list(self, topic_id: TopicId, details: Callable[[], Sequence[object]]) -> Iterator[bool]:
        claim = own_workflow_claim()
        with send_heartbeats(details):
            is_claimed = self._index.claim_bucket_list(topic_id, claim)
        if not is_claimed:
            yield False
            return
        try:
            with send_heartbeats_and_renew(lambda: self._index.claim_bucket_list(topic_id, claim), details):
                yield True
        except Exception:
            self._release_list(topic_id, claim)
            raise
        self._release_list(topic_id, claim)

    def _release_list(self, topic_id: TopicId, claim: Claim) -> None:
        with suppress(SextonError):  # the claim then expires
            self._index.release_claim(topic_id, claim.workflow_id)

    @define_activity(name="delayed.choose_pair")
    @send_heartbeats()
    def claim_list_and_choose_pair(self, request: ChoosePairInput) -> PairChoice:
        """Claim a topic's list for this workflow, and choose the next two index buckets to merge.

        Idempotency: a repeated call renews the claim and reads the list again.
        Raises: InvalidInput (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        require_topic_name_if_known(self._topics, request.topic_id, request.topic)
        topic_id, limit = TopicId(request.topic_id), request.max_buckets or self._limits.buckets
        if not self._index.claim_bucket_list(topic_id, own_workflow_claim()):
            return PairChoice(
                chosen=ChoiceReason.HELD if self._is_topic_active(topic_id) else ChoiceReason.GONE, limit=limit
            )
        listed = self._index.get_bucket_list(topic_id)
        buckets = listed.buckets
        if len(buckets) <= limit:
            return PairChoice(chosen=ChoiceReason.WITHIN, buckets=len(buckets), limit=limit)
        pair = find_pair_to_merge(buckets, damaged=set(map(LedgerId, request.damaged)))
        if not pair:
            self._remember_and_log_no_readable_pair(topic_id, listed, limit)
        chosen = ChoiceReason.PAIR if pair else ChoiceReason.DAMAGED
        return PairChoice(
            chosen=chosen, pair=list(map(_summarize_bucket, pair or ())), buckets=len(buckets), limit=limit
        )

    def _is_topic_active(self, topic_id: TopicId) -> bool:
        try:
            return self._topics.get_topic_by_id(topic_id).state is TopicState.ACTIVE
        except UnknownObject:
            return False

    @define_activity(name="delayed.merge_pair")
    def merge_pair(self, request: MergePairInput) -> MergedPair:
        """Replace two neighbouring index buckets by one.

        Idempotency: keyed by the pair. After the merge the pair is not listed, and a repeated call changes nothing.
        Heartbeat: messages written, every two seconds. The claim on the topic's list is renewed every 15 s.
        Raises: StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        topic_id, claim, begun_s = TopicId(request.topic_id), own_workflow_claim(), time.monotonic()
        first, second = map(LedgerId, request.bucket_ids)
        written = 0

        def progress(messages: int) -> None:
            nonlocal written
            written = messages

        with send_heartbeats_and_renew(lambda: self._index.claim_bucket_list(topic_id, claim), lambda: (written,)):
            try:
                result = self._merger.merge_pair(topic_id, (first, second), progress=progress)
            except (PreconditionFailed, UnknownObject):
                if self._is_topic_active(topic_id):
                    raise
                result = IndexMergeResult()
        _count_merge(result, time.monotonic() - begun_s)
        return MergedPair(
            switched=result.switched, messages=result.messages, passed=result.passed, damaged=result.damaged
        )

    @define_activity(name="delayed.let_go")
    @send_heartbeats()
    def release_bucket_list(self, request: ReleaseListInput) -> None:
        """Release this workflow's claim on a topic's list.

        Idempotency: without a claim the call changes nothing.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        self._index.release_claim(TopicId(request.topic_id), own_workflow_claim().workflow_id)


def _summarize_bucket(bucket: IndexBucket) -> IndexBucketToMerge:
    return IndexBucketToMerge(
        bucket_id=bucket.bucket_id, messages=bucket.messages, first=str(bucket.first), last=str(bucket.last)
    )


def _count_seal(result: SealResult) -> None:
    _add_to_counter("sexton_delayed_sealed_buckets_total", result.buckets)
    _add_to_counter("sexton_delayed_sealed_messages_total", result.messages)
    _add_to_counter("sexton_delayed_dropped_buckets_total", result.dropped)


def _count_merge(result: IndexMergeResult, duration_s: float) -> None:
    """Count a merge by outcome: MERGED, OVERTAKEN (the list has changed) or DAMAGED (a snapshot is unreadable)."""
    outcome = "MERGED" if result.switched else "OVERTAKEN" if result.damaged is None else "DAMAGED"
    _add_to_counter("sexton_delayed_merges_total", 1, outcome=outcome)
    _add_to_counter("sexton_delayed_merged_messages_total", result.messages)
    _add_to_counter("sexton_delayed_merge_milliseconds_total", round(1_000 * duration_s))
    _add_to_counter("sexton_delayed_loads_total", result.loads)
    _add_to_counter("sexton_delayed_load_milliseconds_total", round(1_000 * result.load_s))
    _add_to_counter("sexton_delayed_alarms_total", int(result.damaged is not None))


def _add_to_counter(name: str, amount: int, **labels: str) -> None:
    if amount:
        activity.metric_meter().create_counter(name, _DESCRIPTION_BY_COUNTER[name]).add(amount, labels)
