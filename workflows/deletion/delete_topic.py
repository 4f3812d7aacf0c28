"""`delete-topic`: delete a topic with all its ledgers. Only intents and audit rows remain.

Destroys the topic and its ledgers of all components. Invariant: a ledger has its row or an intent until its objects are
deleted. The topic's row is removed last. To stop it, cancel or terminate it. The topic stays DELETING, and a
`delete-ledgers` that has started continues. Start the job again to complete the deletion.

1. Set the topic DELETING. No ledger can be added to the topic afterwards.
2. Detach all ledgers of the topic (phase one), and take over the topic's stalled intents. The lock of the topic waits
   until every SQL transaction that writes to the topic has ended.
3. Run `delete-ledgers` on the batch (phase two). If `delete-ledgers` fails, continue: its rows are retried later.
4. Remove cursors, producers, schemas, lists and the topic. If a list still has a ledger, go back to step 2.

Source: PIP-186.
"""

from dataclasses import replace

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from activities.deletion.inputs_and_results import DetachResult
    from activities.deletion.topic_deletion import (
        DetachAllLedgersInput,
        RemovedTopicTally,
        RemoveTopicInput,
        TopicDeletingSince,
        TopicDeletionActivities,
        TopicDeletionOrder,
    )
    from logstore.deletion.intents import Outcome
    from workflows import activity_options, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.job_definitions import DELETE_LEDGERS, DeleteTopicInput, DeleteTopicResult


@workflow.defn(name="delete-topic", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class DeleteTopic:
    @workflow.init
    def __init__(self, request: DeleteTopicInput) -> None:
        self._request = request
        self._result = request.carried

    @workflow.run
    async def run(self, request: DeleteTopicInput) -> DeleteTopicResult:
        search_attributes.ensure_topic(request.topic)
        start: TopicDeletingSince = await workflow.execute_activity_method(
            TopicDeletionActivities.set_topic_deleting, self._make_order(), **activity_options.CATALOG
        )
        order = replace(self._make_order(), catalog_epoch=start.catalog_epoch)
        while True:
            await self._detach_all_and_delete_batch(order)
            self._change_and_show_result(step="removing")
            remove = RemoveTopicInput(order=order, since_us=start.since_us)
            removal = await workflow.execute_activity_method(
                TopicDeletionActivities.remove_topic_and_tally, remove, **activity_options.CATALOG
            )
            self._set_counts(removal)
            if removal.gone:
                return self._result
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, catalog_epoch=start.catalog_epoch, carried=self._result))

    @workflow.query
    def progress(self) -> DeleteTopicResult:
        """Return the present step, and the number of the topic's copies by outcome."""
        return self._result

    def _make_order(self) -> TopicDeletionOrder:
        request = self._request
        return TopicDeletionOrder(
            topic_id=request.topic_id,
            topic=request.topic,
            actor=request.actor,
            reason=request.reason,
            catalog_epoch=request.catalog_epoch,
            durable_delete=request.durable_delete,
        )

    async def _detach_all_and_delete_batch(self, order: TopicDeletionOrder) -> None:
        self._change_and_show_result(step="detaching", passes=self._result.passes + 1)
        batch_id = f"{order.topic_id}-{workflow.uuid4().hex[:12]}"
        detached = await workflow.execute_activity_method(
            TopicDeletionActivities.detach_all_ledgers,
            DetachAllLedgersInput(order=order, batch_id=batch_id, batch_workflow_id=DELETE_LEDGERS.id(batch_id)),
            **activity_options.CATALOG,
        )
        self._change_and_show_result(step="deleting", detached=self._result.detached + detached.ledgers)
        if detached.intents:
            await self._run_batch_despite_failure(batch_id, detached)

    async def _run_batch_despite_failure(self, batch_id: str, detached: DetachResult) -> None:
        request = self._request
        batch = batches.build_batch_input(request, batch_id, detached)
        try:
            await (await batches.start_batch(batch, summary=f"{detached.intents} copies of {request.topic}"))
        except ChildWorkflowError as error:
            if workflow.cancellation_reason() is not None:
                raise
            workflow.logger.warning("batch %s did not end well, its rows are taken up later: %s", batch_id, error.cause)

    def _set_counts(self, removal: RemovedTopicTally) -> None:
        outcomes = dict(sorted(removal.outcomes.items()))
        self._change_and_show_result(
            step="ended" if removal.gone else "detaching",
            outcomes=outcomes,
            deleted=sum(count for name, count in outcomes.items() if Outcome(name).is_success),
            objects=removal.objects,
            size_bytes=removal.size_bytes,
        )
        if removal.gone:
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(sorted(outcomes))])

    def _change_and_show_result(self, **changes: object) -> None:
        self._result = replace(self._result, **changes)  # type: ignore[arg-type]
        result = self._result
        workflow.set_current_details(
            f"**{result.step}** — {result.detached:,} ledgers detached, {result.deleted:,} copies deleted, "
            f"{result.objects:,} objects, {result.size_bytes:,} bytes"
        )
