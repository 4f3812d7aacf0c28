"""`seal-buckets`: delayed messages of the log's end are in buckets, for every topic for which it is time, or for one.

Destroys, by two-phase deletion, snapshots of buckets whose messages have all been due for a minute, were acknowledged
by every subscription, or were trimmed: the log knows all of them. Invariant: none; what it misses, the next one finds.
To stop it, cancel or terminate it, and pause the schedule `sexton-delayed`: messages that are in no bucket are found in
the log, by reading more of it.

1. Of one topic: seal all of it that consumers may see.
2. Otherwise find topics that are due, page by page, and seal each; one that fails keeps no other from being sealed.
3. For each topic with more buckets than it may have, start `merge-buckets`, unless it runs.

Source: PIP-195.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributePair, TypedSearchAttributes, VersioningBehavior
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from activities.delayed.buckets import DelayedBuckets
    from activities.delayed.values import (
        DueTopicPages,
        DueTopicsInput,
        OverLimit,
        SealedTopics,
        SealTopicInput,
        SealTopicsInput,
    )
    from workflows import options, search_attributes
    from workflows.delayed.values import (
        HELD,
        MAX_HELD_RETRIES,
        MERGE_BUCKETS,
        MergeBucketsInput,
        SealBucketsInput,
        SealBucketsResult,
    )

_AT_ONCE = 4  # pages
_SEAL = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # a page of topics, each with the column of a whole log to read
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)
_SEAL_ONE: workflow.ActivityConfig = {
    **_SEAL,
    "retry_policy": RetryPolicy(maximum_interval=timedelta(seconds=30), maximum_attempts=10),  # a person waits for it
}
_SAMPLE = 20


@workflow.defn(name="seal-buckets", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class SealBuckets:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: SealBucketsInput) -> None:
        """Start from what an earlier run carried over."""
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: SealBucketsInput) -> SealBucketsResult:
        """Do the numbered steps."""
        search_attributes.ensure_topic(request.topic)
        if request.topic_id is None:
            await self._seal_due()
        else:
            await self._seal_one(SealTopicInput(topic_id=request.topic_id, topic=request.topic))
        done = self._result
        counts = {"FAILED": done.failed, "HELD": done.held, "SEALED": done.buckets, "DROPPED": done.dropped}
        outcomes = [name for name, count in counts.items() if count]
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(outcomes or ["NOTHING"])])
        return self._result

    @workflow.query
    def progress(self) -> SealBucketsResult:
        """What was done so far."""
        return self._result

    async def _seal_due(self) -> None:
        after = self._request.after
        while pages := (await self._due(after)).pages:
            await asyncio.gather(*map(self._seal_page, pages))
            after = pages[-1][-1]
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(self._request, after=after, carried=self._result))

    async def _due(self, after: int) -> DueTopicPages:
        asked = DueTopicsInput(after=after, topics=self._request.page, limit=_AT_ONCE)
        return await workflow.execute_activity_method(DelayedBuckets.due_topics, asked, **options.CATALOG)

    async def _seal_page(self, topic_ids: list[int]) -> None:
        page = SealTopicsInput(topic_ids=topic_ids)
        await self._add(await workflow.execute_activity_method(DelayedBuckets.seal_topics, page, **_SEAL))

    async def _seal_one(self, one: SealTopicInput) -> None:
        for _ in range(MAX_HELD_RETRIES):
            done = await workflow.execute_activity_method(DelayedBuckets.seal_topic, one, **_SEAL_ONE)
            if not done.held:
                break
            await workflow.sleep(HELD)
        await self._add(done)

    async def _add(self, done: SealedTopics) -> None:
        before = self._result
        self._result = SealBucketsResult(
            topics=before.topics + done.topics,
            buckets=before.buckets + done.buckets,
            messages=before.messages + done.messages,
            dropped=before.dropped + done.dropped,
            held=before.held + done.held,
            overtaken=before.overtaken + done.overtaken,
            failed=before.failed + done.failed,
            troubles=[*before.troubles, *done.troubles][:_SAMPLE],
            merging=before.merging + len(done.over_limit),
        )
        workflow.set_current_details(shown(self._result))
        for topic in done.over_limit:
            await self._start_merges(topic)

    async def _start_merges(self, over: OverLimit) -> None:
        request = MergeBucketsInput(
            topic_id=over.topic_id, topic=over.topic, actor=self._request.actor, reason=self._request.reason
        )
        with suppress(WorkflowAlreadyStartedError):  # it looks at the list again before it ends
            await workflow.start_child_workflow(
                MERGE_BUCKETS.name,
                request,
                id=MERGE_BUCKETS.id(over.topic_id),
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                search_attributes=TypedSearchAttributes([SearchAttributePair(search_attributes.TOPIC, over.topic)]),
                static_summary=f"merge buckets of {over.topic}",
                static_details=request.details(),
            )


def shown(result: SealBucketsResult) -> str:
    """What was done, as the Web UI shows it."""
    troubles = "".join(f"- not sealed: {sentence}\n" for sentence in result.troubles)
    return (
        f"{result.topics:,} topics, {result.buckets:,} buckets with {result.messages:,} messages sealed,"
        f" {result.dropped:,} buckets dropped, {result.merging:,} topics to be merged, {result.failed:,} failed\n\n"
        f"{troubles}"
    )
