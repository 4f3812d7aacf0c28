"""`trim-topic`: delete those ledgers of a topic that neither retention nor a subscription needs.

Destroys ledgers that every subscription has acknowledged and no limit of retention keeps. Invariant: the detached
ledgers are a prefix of the topic's list, selected under the list's lock. To stop it, cancel or terminate it. A
`delete-ledgers` that has started continues.

Repeat these steps until a pass detaches nothing and no signal `again` has arrived during the pass:
1. Roll the last ledger if it has entries and has reached its maximum age. A failure does not stop the trim.
2. At the bundle owner, detach the unneeded ledgers (phase one). Take over the topic's stalled intents.
3. Run `delete-ledgers` on the batch (phase two).

Source: PIP-186; Pulsar's retention.
"""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.deletion.inputs_and_results import DetachInput
    from activities.deletion.ledger_deletion import LedgerDeletionActivities
    from activities.deletion.trim_by_retention import RetentionPreparation, RollIdleLedgerInput
    from logstore.deletion.intents import BatchCertificate
    from workflows import activity_options, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.job_definitions import (
        DELETE_LEDGERS,
        TrimTopicInput,
        TrimTopicResult,
    )
    from workflows.owner_routing import OwnerRouter

_ROLL = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=5),  # one small object and three small transactions
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_attempts=3),  # the next trim tries again
)


@workflow.defn(name="trim-topic", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TrimTopic:
    @workflow.init
    def __init__(self, request: TrimTopicInput) -> None:
        self._request = request
        self._result = request.carried
        self._asked_again = False
        self._router = OwnerRouter(request.topic, patience_s=request.policy.owner_patience_s)

    @workflow.run
    async def run(self, request: TrimTopicInput) -> TrimTopicResult:
        search_attributes.ensure_topic(request.topic)
        while True:
            self._asked_again = False
            await self._roll_idle_ledger()
            batch_id = f"{request.topic_id}-{workflow.uuid4().hex[:12]}"
            detach = DetachInput(
                topic_id=request.topic_id,
                batch_id=batch_id,
                batch_workflow_id=DELETE_LEDGERS.id(batch_id),
                actor=request.actor,
                reason=request.reason,
            )
            detached = await self._router.execute_at_owner(
                LedgerDeletionActivities.detach, detach, activity_options.CATALOG
            )
            before = self._result
            self._result = replace(before, detached=before.detached + detached.ledgers, passes=before.passes + 1)
            if detached.intents:
                batch = batches.build_batch_input(request, batch_id, detached, owner=self._router.owner)
                self._add_batch_certificate(
                    await (await batches.start_batch(batch, summary=f"{detached.intents} copies of {request.topic}"))
                )
            elif not self._asked_again:
                return self._result
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, carried=self._result))

    @workflow.signal
    def again(self) -> None:
        """Request one more pass that begins after this signal."""
        self._asked_again = True

    @workflow.query
    def progress(self) -> TrimTopicResult:
        """Return the numbers of ledgers detached and of copies deleted by all passes so far."""
        return self._result

    async def _roll_idle_ledger(self) -> None:
        try:
            roll = RollIdleLedgerInput(topic_id=self._request.topic_id, topic=self._request.topic)
            await workflow.execute_activity_method(RetentionPreparation.roll_idle_ledger, roll, **_ROLL)
        except ActivityError as error:
            cause = error.cause
            is_misnamed = isinstance(cause, ApplicationError) and cause.type == "InvalidInput"
            if is_misnamed or is_cancelled_exception(error):
                raise
            workflow.logger.warning("not rolled, the next trim tries again: %s", error.cause)

    def _add_batch_certificate(self, certificate: BatchCertificate) -> None:
        if certificate.owner:  # the bundle owner may have changed since the detach
            self._router.owner = certificate.owner
        self._result = batches.add_batch_certificate(self._result, certificate)
        workflow.set_current_details(
            f"{self._result.detached:,} ledgers detached, {self._result.deleted:,} copies deleted, "
            f"{self._result.objects:,} objects, in {self._result.passes} passes"
        )
