"""`seal-buckets`: put unsealed delayed messages into index buckets, for one topic or for all topics that need a seal.

Destroys snapshots of index buckets that are no longer needed, by two-phase deletion. An index bucket is needed until
each of its messages is trimmed, acknowledged by all subscriptions, or due for at least a minute. Messages that are not
trimmed stay in the log. Invariant: none, because the next run finds what this run misses. To stop it, cancel or
terminate it, and pause the schedule `sexton-delayed`. Readers then search more of the log.

1. If a topic is given, seal the topic up to the last entry that consumers may see.
2. Otherwise find the topics that need sealing, page by page, and seal each topic. A failed topic delays no other topic.
3. For each topic over its limit of index buckets, start `merge-buckets` unless the topic's `merge-buckets` runs.

Source: PIP-195.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.delayed.seal_and_merge_buckets import (
        IndexBucketActivities,
        IndexWorkTopicPages,
        SealTopicInput,
        SealTopicsInput,
        SealTopicsResult,
    )
    from activities.deletion.trim_by_retention import NextTopicPagesInput
    from workflows import activity_options, child_jobs, search_attributes
    from workflows.delayed.job_definitions import (
        HELD_RETRY_PAUSE,
        MAX_HELD_RETRIES,
        MERGE_BUCKETS,
        MergeBucketsInput,
        SealBucketsInput,
        SealBucketsResult,
    )

_MAX_CONCURRENT_PAGES = 4
_SEAL = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # a page of topics; one column of each topic's log is read
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # no limit: waits for the catalog to come back
)
_SEAL_ONE: workflow.ActivityConfig = {
    **_SEAL,
    "retry_policy": RetryPolicy(maximum_interval=timedelta(seconds=30), maximum_attempts=10),  # a person waits
}
_MAX_TROUBLES = 20


@workflow.defn(name="seal-buckets", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class SealBuckets:
    @workflow.init
    def __init__(self, request: SealBucketsInput) -> None:
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: SealBucketsInput) -> SealBucketsResult:
        search_attributes.ensure_topic(request.topic)
        if request.topic_id is None:
            await self._seal_due_topics()
        else:
            await self._seal_one_topic_with_retries(SealTopicInput(topic_id=request.topic_id, topic=request.topic))
        result = self._result
        counts = {"FAILED": result.failed, "HELD": result.held, "SEALED": result.buckets, "DROPPED": result.dropped}
        outcomes = [name for name, count in counts.items() if count]
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(outcomes or ["NOTHING"])])
        return self._result

    @workflow.query
    def progress(self) -> SealBucketsResult:
        """Return the numbers of checked topics and of new index buckets so far."""
        return self._result

    async def _seal_due_topics(self) -> None:
        after = self._request.after
        while pages := (await self._find_due_topics(after)).pages:
            await asyncio.gather(*map(self._seal_page, pages))
            after = pages[-1][-1]
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(self._request, after=after, carried=self._result))

    async def _find_due_topics(self, after: int) -> IndexWorkTopicPages:
        request = NextTopicPagesInput(after=after, topics=self._request.page, limit=_MAX_CONCURRENT_PAGES)
        return await workflow.execute_activity_method(
            IndexBucketActivities.list_topics_with_index_work, request, **activity_options.CATALOG
        )

    async def _seal_page(self, topic_ids: list[int]) -> None:
        seal_input = SealTopicsInput(topic_ids=topic_ids)
        await self._add_counts_and_start_merges(
            await workflow.execute_activity_method(IndexBucketActivities.drop_and_seal_topics, seal_input, **_SEAL)
        )

    async def _seal_one_topic_with_retries(self, request: SealTopicInput) -> None:
        for _ in range(MAX_HELD_RETRIES):
            sealed = await workflow.execute_activity_method(
                IndexBucketActivities.seal_whole_topic, request, **_SEAL_ONE
            )
            if not sealed.held:
                break
            await workflow.sleep(HELD_RETRY_PAUSE)
        await self._add_counts_and_start_merges(sealed)

    async def _add_counts_and_start_merges(self, sealed: SealTopicsResult) -> None:
        before = self._result
        merging = before.merging + len(sealed.over_limit)
        self._result = replace(before.plus(sealed, max_troubles=_MAX_TROUBLES), merging=merging)
        workflow.set_current_details(format_seals(self._result))
        for topic in sealed.over_limit:
            request = MergeBucketsInput(
                topic_id=topic.topic_id, topic=topic.topic, actor=self._request.actor, reason=self._request.reason
            )
            # A running merge reads the list again before it ends.
            await child_jobs.start_unless_running(MERGE_BUCKETS, request)


def format_seals(result: SealBucketsResult) -> str:
    troubles = "".join(f"- not sealed: {sentence}\n" for sentence in result.troubles)
    return (
        f"{result.topics:,} topics, {result.buckets:,} buckets with {result.messages:,} messages sealed,"
        f" {result.dropped:,} buckets dropped, {result.merging:,} topics to be merged, {result.failed:,} failed\n\n"
        f"{troubles}"
    )
