"""`merge-buckets`: a topic has no more buckets of delayed messages than it may have.

Destroys the snapshots of buckets that were merged, by two-phase deletion, after the one that holds their messages is
stored and listed. Invariant: what is pending is the same before and after each merge, less what has been due for a
minute, which the log hands out. To stop it, cancel or terminate it: the merge in hand leaves at most a ledger that is
in no list, which a sweep takes away, and the next `seal-buckets` starts the topic's merges again.

1. Claim the topic's list, and choose the two neighbours with the fewest messages; end where there are few enough.
2. Merge them; one that cannot be read is left out from then on. Go on from 1.
3. Release the claim.

Source: PIP-195; apache/pulsar#26251, #26241.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.delayed.buckets import DelayedBuckets
    from activities.delayed.values import (
        ChoiceReason,
        ChoosePairInput,
        MergedPair,
        MergePairInput,
        PairChoice,
        ReleaseListInput,
    )
    from workflows import options, search_attributes
    from workflows.delayed.values import HELD, MAX_HELD_RETRIES, MergeBucketsInput, MergeBucketsResult, MergeOutcome

_MERGE = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=2),  # a hundred million messages, at a tenth of the speed that was measured
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for storage to come back
)


@workflow.defn(name="merge-buckets", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class MergeBuckets:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: MergeBucketsInput) -> None:
        """Start from what an earlier run carried over."""
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: MergeBucketsInput) -> MergeBucketsResult:
        """Do the numbered steps."""
        search_attributes.ensure_topic(request.topic)
        while (choice := await self._choose()).chosen is ChoiceReason.PAIR:
            self._tell(replace(self._result, merging=choice.pair))
            self._add(await self._merge(choice))
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, carried=self._result))
        let_go = ReleaseListInput(topic_id=request.topic_id, topic=request.topic)
        await workflow.execute_activity_method(DelayedBuckets.let_go, let_go, **options.CATALOG)
        outcome = MergeOutcome(choice.chosen.value)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([outcome.value])])
        return self._tell(replace(self._result, outcome=outcome))

    @workflow.query
    def progress(self) -> MergeBucketsResult:
        """Which two buckets are being merged, and what was done so far."""
        return self._result

    async def _choose(self) -> PairChoice:
        """The next pair, or why there is none; another job that works on the list is waited for."""
        asked = ChoosePairInput(
            topic_id=self._request.topic_id,
            topic=self._request.topic,
            max_buckets=self._request.max_buckets,
            damaged=self._result.damaged,
        )
        for _ in range(MAX_HELD_RETRIES):
            choice = await workflow.execute_activity_method(DelayedBuckets.choose_pair, asked, **options.CATALOG)
            if choice.chosen is not ChoiceReason.HELD:
                break
            await workflow.sleep(HELD)
        if choice.chosen in {ChoiceReason.PAIR, ChoiceReason.WITHIN, ChoiceReason.DAMAGED}:
            self._result = replace(self._result, buckets=choice.buckets, limit=choice.limit)
        return choice

    async def _merge(self, choice: PairChoice) -> MergedPair:
        request = MergePairInput(
            topic_id=self._request.topic_id,
            bucket_ids=[one.bucket_id for one in choice.pair],
            topic=self._request.topic,
        )
        return await workflow.execute_activity_method(DelayedBuckets.merge_pair, request, **_MERGE)

    def _add(self, done: MergedPair) -> None:
        before = self._result
        after = replace(
            before,
            merges=before.merges + done.switched,
            messages=before.messages + done.messages,
            passed=before.passed + done.passed,
            merging=[],
            damaged=before.damaged if done.damaged is None else [*before.damaged, done.damaged],
        )
        self._tell(after)

    def _tell(self, result: MergeBucketsResult) -> MergeBucketsResult:
        self._result = result
        workflow.set_current_details(shown(result))
        return result


def shown(result: MergeBucketsResult) -> str:
    """How far it is, as the Web UI shows it."""
    head = f"**{result.outcome.value}** — " if result.outcome else ""
    done = (
        f"{head}{result.merges:,} merges, {result.messages:,} messages written, {result.passed:,} left out as due;"
        f" at the last look {result.buckets:,} buckets, of at most {result.limit:,}\n\n"
    )
    merging = "".join(
        f"- merging bucket **{one.bucket_id}**: {one.messages:,} messages, {one.first} to {one.last}\n"
        for one in result.merging
    )
    damaged = "".join(f"- bucket **{bucket_id}** cannot be read\n" for bucket_id in result.damaged)
    return f"{done}{merging}{damaged}"
