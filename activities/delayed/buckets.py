"""Sealing and merging buckets, one step an activity.

Every change of a topic's list compares and sets its version, so that any step may run twice and two may overlap: one of
them is overtaken, and what it wrote is retired. Claims only save work: correctness does not rest on them. They are a
workflow's, are renewed while it works, and lapse by the catalog's clock: what a workflow that died has left is due
again.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from activities.delayed import metrics
from activities.delayed.values import (
    ChoiceReason,
    ChoosePairInput,
    DueTopicPages,
    DueTopicsInput,
    MergedPair,
    MergePairInput,
    OverLimit,
    PairChoice,
    ReleaseListInput,
    SealedTopics,
    SealTopicInput,
    SealTopicsInput,
)
from activities.deletion.claims import own_claim
from activities.dispatch import check_topic_name
from activities.heartbeats import beating, defined, renewing
from logstore.delayed.buckets import Bucket, BucketLimits, BucketList, BucketSummary, pair_to_merge
from logstore.delayed.services.merging import Merger, MergeResult
from logstore.delayed.services.sealing import Sealer, SealResult
from logstore.errors import PreconditionFailed, SextonError, UnknownObject
from logstore.ports.catalog import Claim, DelayedIndex, Topics, TopicState
from logstore.positions import LedgerId, TopicId
from logstore.units import raise_if_stopped

_SAMPLE: Final = 5  # troubles told of a page
_TOLD: Final = 300  # characters of each

_LOG: Final = logging.getLogger(__name__)


class DelayedBuckets:
    """The activities, over ports."""

    def __init__(
        self, *, index: DelayedIndex, topics: Topics, sealer: Sealer, merger: Merger, limits: BucketLimits
    ) -> None:
        """Take the lists of buckets, the services that change them, and the limits by which a change is due."""
        self._index, self._topics = index, topics
        self._sealer, self._merger, self._limits = sealer, merger, limits
        self._stuck: dict[TopicId, int] = {}  # versions of lists of which no two neighbours can be read

    @defined(name="delayed.due_topics")
    @beating()
    def due_topics(self, request: DueTopicsInput) -> DueTopicPages:
        """Topics with something to seal, to drop or to merge, on which no workflow works; ascending by id.

        Idempotency: reads only; pages go by topic id.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        most, after = request.topics * request.limit, TopicId(request.after)
        found = [int(topic_id) for topic_id in self._index.due_topics(self._limits, after=after, limit=most)]
        return DueTopicPages(pages=[found[at : at + request.topics] for at in range(0, len(found), request.topics)])

    @defined(name="delayed.seal_topics")
    def seal_topics(self, request: SealTopicsInput) -> SealedTopics:
        """Seal a page of topics, one after the other.

        A topic that fails is logged, counted, named and skipped: it keeps none of the others from being sealed.

        Idempotency: keyed by each topic's list; what is sealed is not sealed again.
        Heartbeat: topics done, every two seconds; each topic's claim is renewed with it.
        Raises: StoreUnavailable, CatalogBusy, where claims cannot be taken (retry).
        """
        done = SealedTopics()
        for topic_id in request.topic_ids:
            raise_if_stopped()
            done = _added(done, self._seal(TopicId(topic_id), lambda: (done.topics,), force=False))  # noqa: B023 - read here
        return done

    @defined(name="delayed.seal_topic")
    def seal_topic(self, request: SealTopicInput) -> SealedTopics:
        """Seal all of one topic that consumers may see, however little it is.

        Idempotency: keyed by the topic's list.
        Heartbeat: as `seal_topics`.
        Raises: InvalidInput, UnknownObject, PreconditionFailed, MissingData, CorruptData (terminal); StoreUnavailable,
            CatalogBusy, OutcomeUnknown (retry).
        """
        check_topic_name(self._topics, request.topic_id, request.topic)
        found = self._topics.get_by_id(TopicId(request.topic_id))
        if found.state is not TopicState.ACTIVE:
            raise PreconditionFailed(f"topic {found.name}: expected state ACTIVE, found {found.state.value}")
        return self._seal(found.topic_id, tuple, force=True)

    def _seal(self, topic_id: TopicId, details: Callable[[], Sequence[object]], *, force: bool) -> SealedTopics:
        """One topic under its claim; with `force`, its errors are raised."""
        with self._claimed(topic_id, details) as claimed:
            if not claimed:
                return SealedTopics(topics=1, held=1)
            try:
                done = self._sealer.seal(topic_id, force=force)
            except SextonError as error:
                if force:
                    raise
                if not self._stands(topic_id):
                    return SealedTopics(topics=1)
                _LOG.warning("topic %s: its delayed messages are not sealed: %s", topic_id, error)
                trouble = f"{self._name(topic_id)}: {type(error).__name__}: {error}"[:_TOLD]
                return SealedTopics(topics=1, failed=1, troubles=[trouble])
        metrics.sealed(done)
        return self._sealed(topic_id, done)

    def _sealed(self, topic_id: TopicId, done: SealResult) -> SealedTopics:
        over = done.listed > self._limits.buckets and not self._is_stuck(topic_id)
        return SealedTopics(
            topics=1,
            buckets=done.buckets,
            messages=done.messages,
            dropped=done.dropped,
            overtaken=int(done.overtaken),
            over_limit=[OverLimit(topic_id=topic_id, topic=self._name(topic_id))] if over else [],
        )

    def _is_stuck(self, topic_id: TopicId) -> bool:
        """Whether a merge here has found nothing that it can read, and the list is as it was then.

        Memory of this process. Where another one seals, or this one once it is started again, a merge is begun that
        ends so, until the last choice of one was made there. That costs a few reads and no promise: no row has it.
        """
        if topic_id in self._stuck and self._index.listed(topic_id).version != self._stuck[topic_id]:
            del self._stuck[topic_id]
        return topic_id in self._stuck

    def _tell_stuck(self, topic_id: TopicId, listed: BucketList, limit: int) -> None:
        if self._stuck.get(topic_id) != listed.version:
            self._stuck[topic_id] = listed.version
            _LOG.error(
                "DelayedBucketsStuck: topic %s: %d buckets, of at most %d, and no two neighbours can be read; no merge"
                " is started until the list changes: write them anew by `sexton delayed build %s`",
                self._name(topic_id),
                len(listed.buckets),
                limit,
                self._name(topic_id),
            )

    def _name(self, topic_id: TopicId) -> str:
        try:
            return self._topics.get_by_id(topic_id).name
        except UnknownObject:  # it was deleted meanwhile
            return str(topic_id)

    @contextmanager
    def _claimed(self, topic_id: TopicId, details: Callable[[], Sequence[object]]) -> Iterator[bool]:
        """Whether the topic's list is this workflow's to work on; while the block runs, if so."""
        claim = own_claim()
        with beating(details):
            claimed = self._index.claim(topic_id, claim)
        if not claimed:
            yield False
            return
        try:
            with renewing(lambda: self._index.claim(topic_id, claim), details):
                yield True
        except Exception:
            self._release(topic_id, claim)
            raise
        self._release(topic_id, claim)

    def _release(self, topic_id: TopicId, claim: Claim) -> None:
        """Release the claim, best effort: one that is not released lapses."""
        with suppress(SextonError):
            self._index.release(topic_id, claim.workflow_id)

    @defined(name="delayed.choose_pair")
    @beating()
    def choose_pair(self, request: ChoosePairInput) -> PairChoice:
        """Claim a topic's list for this workflow, and say which two neighbours are to be merged next, if any.

        Idempotency: reads, and renews the claim.
        Raises: InvalidInput (terminal); StoreUnavailable, CatalogBusy (retry).
        """
        check_topic_name(self._topics, request.topic_id, request.topic)
        topic_id, limit = TopicId(request.topic_id), request.max_buckets or self._limits.buckets
        if not self._index.claim(topic_id, own_claim()):
            return PairChoice(chosen=ChoiceReason.HELD if self._stands(topic_id) else ChoiceReason.GONE, limit=limit)
        listed = self._index.listed(topic_id)
        buckets = listed.buckets
        if len(buckets) <= limit:
            return PairChoice(chosen=ChoiceReason.WITHIN, buckets=len(buckets), limit=limit)
        pair = pair_to_merge(buckets, damaged={LedgerId(one) for one in request.damaged})
        if not pair:
            self._tell_stuck(topic_id, listed, limit)
        chosen = ChoiceReason.PAIR if pair else ChoiceReason.DAMAGED
        return PairChoice(chosen=chosen, pair=list(map(_facts, pair or ())), buckets=len(buckets), limit=limit)

    def _stands(self, topic_id: TopicId) -> bool:
        try:
            return self._topics.get_by_id(topic_id).state is TopicState.ACTIVE
        except UnknownObject:
            return False

    @defined(name="delayed.merge_pair")
    def merge_pair(self, request: MergePairInput) -> MergedPair:
        """Put one bucket in the place of two neighbours.

        Idempotency: keyed by the two; once they are merged they are not listed, and nothing changes.
        Heartbeat: messages written, every two seconds; the claim of the topic's list is renewed with it.
        Raises: StoreUnavailable, CatalogBusy, OutcomeUnknown (retry).
        """
        topic_id, claim, begun = TopicId(request.topic_id), own_claim(), time.monotonic()
        first, second = map(LedgerId, request.bucket_ids)
        written = 0

        def progress(messages: int) -> None:
            nonlocal written
            written = messages

        with renewing(lambda: self._index.claim(topic_id, claim), lambda: (written,)):
            try:
                done = self._merger.merge(topic_id, (first, second), progress=progress)
            except (PreconditionFailed, UnknownObject):
                if self._stands(topic_id):
                    raise
                done = MergeResult()
        metrics.merged(done, time.monotonic() - begun)
        damaged = None if done.damaged is None else int(done.damaged)
        return MergedPair(switched=done.switched, messages=done.messages, passed=done.passed, damaged=damaged)

    @defined(name="delayed.let_go")
    @beating()
    def let_go(self, request: ReleaseListInput) -> None:
        """Release the claim of a topic's list, if it is this workflow's.

        Idempotency: a claim that is gone is gone.
        Raises: StoreUnavailable, CatalogBusy (retry).
        """
        self._index.release(TopicId(request.topic_id), own_claim().workflow_id)


def _facts(bucket: Bucket) -> BucketSummary:
    return BucketSummary(
        bucket_id=bucket.bucket_id, messages=bucket.messages, first=str(bucket.first), last=str(bucket.last)
    )


def _added(before: SealedTopics, one: SealedTopics) -> SealedTopics:
    return SealedTopics(
        topics=before.topics + one.topics,
        buckets=before.buckets + one.buckets,
        messages=before.messages + one.messages,
        dropped=before.dropped + one.dropped,
        held=before.held + one.held,
        overtaken=before.overtaken + one.overtaken,
        failed=before.failed + one.failed,
        troubles=[*before.troubles, *one.troubles][:_SAMPLE],
        over_limit=[*before.over_limit, *one.over_limit],
    )
