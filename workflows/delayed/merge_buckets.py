"""`merge-buckets`: merge a topic's index buckets of delayed messages until the topic is within its limit.

Destroys the snapshots of merged index buckets, by two-phase deletion, after the new index bucket is in the topic's
list.
Invariant: no delayed message is lost. A merge leaves out only messages that have been due for a minute. Readers find
these messages in the log. To stop it, cancel or terminate it. The running merge leaves at most one ledger that is in no
list. A sweep removes this ledger. The next `seal-buckets` starts the topic's merges again.

1. Claim the topic's list of index buckets. If the topic is over its limit, choose the two neighbouring index buckets
   with the fewest messages. Otherwise go to step 3.
2. Merge the two index buckets. An index bucket that cannot be read is not chosen again. Repeat from step 1.
3. Release the claim.

Source: PIP-195; apache/pulsar#26251, #26241.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.delayed.seal_and_merge_buckets import (
        ChoiceReason,
        ChoosePairInput,
        IndexBucketActivities,
        MergePairInput,
        PairChoice,
        ReleaseListInput,
    )
    from logstore.delayed.services.bucket_merger import MergedPair
    from workflows import activity_options, search_attributes
    from workflows.delayed.job_definitions import (
        HELD_RETRY_PAUSE,
        MAX_HELD_RETRIES,
        MergeBucketsInput,
        MergeBucketsResult,
        MergeOutcome,
    )

_MERGE = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # enough for 100 million messages at a tenth of the measured speed
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # no limit: waits for storage to come back
)


@workflow.defn(name="merge-buckets", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class MergeBuckets:
    @workflow.init
    def __init__(self, request: MergeBucketsInput) -> None:
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: MergeBucketsInput) -> MergeBucketsResult:
        search_attributes.ensure_topic(request.topic)
        while (choice := await self._claim_list_and_choose_pair()).chosen is ChoiceReason.PAIR:
            self._set_result(replace(self._result, merging=choice.pair))
            self._add_merged_pair(await self._merge_pair(choice))
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, carried=self._result))
        release = ReleaseListInput(topic_id=request.topic_id, topic=request.topic)
        await workflow.execute_activity_method(
            IndexBucketActivities.release_bucket_list, release, **activity_options.CATALOG
        )
        outcome = MergeOutcome(choice.chosen.value)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([outcome.value])])
        return self._set_result(replace(self._result, outcome=outcome))

    @workflow.query
    def progress(self) -> MergeBucketsResult:
        """Return the number of merges so far, and the pair of index buckets that is being merged."""
        return self._result

    async def _claim_list_and_choose_pair(self) -> PairChoice:
        request = ChoosePairInput(
            topic_id=self._request.topic_id,
            topic=self._request.topic,
            max_buckets=self._request.max_buckets,
            damaged=self._result.damaged,
        )
        for _ in range(MAX_HELD_RETRIES):
            choice = await workflow.execute_activity_method(
                IndexBucketActivities.claim_list_and_choose_pair, request, **activity_options.CATALOG
            )
            if choice.chosen is not ChoiceReason.HELD:
                break
            await workflow.sleep(HELD_RETRY_PAUSE)
        if choice.chosen in {ChoiceReason.PAIR, ChoiceReason.WITHIN, ChoiceReason.DAMAGED}:
            self._result = replace(self._result, buckets=choice.buckets, limit=choice.limit)
        return choice

    async def _merge_pair(self, choice: PairChoice) -> MergedPair:
        request = MergePairInput(
            topic_id=self._request.topic_id,
            bucket_ids=[bucket.bucket_id for bucket in choice.pair],
            topic=self._request.topic,
        )
        return await workflow.execute_activity_method(IndexBucketActivities.merge_pair, request, **_MERGE)

    def _add_merged_pair(self, merged: MergedPair) -> None:
        before = self._result
        after = replace(
            before,
            merges=before.merges + merged.switched,
            messages=before.messages + merged.messages,
            passed=before.passed + merged.passed,
            merging=[],
            damaged=before.damaged if merged.damaged is None else [*before.damaged, merged.damaged],
        )
        self._set_result(after)

    def _set_result(self, result: MergeBucketsResult) -> MergeBucketsResult:
        self._result = result
        workflow.set_current_details(format_merges(result))
        return result


def format_merges(result: MergeBucketsResult) -> str:
    outcome = f"**{result.outcome.value}** — " if result.outcome else ""
    totals = (
        f"{outcome}{result.merges:,} merges, {result.messages:,} messages written, {result.passed:,} left out as due;"
        f" at the last look {result.buckets:,} buckets, of at most {result.limit:,}\n\n"
    )
    merging = "".join(
        f"- merging bucket **{bucket.bucket_id}**: {bucket.messages:,} messages, {bucket.first} to {bucket.last}\n"
        for bucket in result.merging
    )
    damaged = "".join(f"- bucket **{bucket_id}** cannot be read\n" for bucket_id in result.damaged)
    return f"{totals}{merging}{damaged}"
