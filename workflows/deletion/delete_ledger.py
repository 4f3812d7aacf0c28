"""`delete-ledger`: delete one copy of one ledger from storage, or store in the intent why that failed.

Destroys only the objects of this copy. Invariant: storage and catalog are read again just before the delete.
To stop it, terminate it. The intent stays unfinished, and a sweep or a trim takes over the intent later. If the
deletion does not succeed, the workflow fails with the outcome as its error type. The Web UI shows this run as *Failed*.

1. Claim the row and delete the copy, at the bundle owner. Retry every `retry_interval_s`. The batch's workflow has
   made the first attempt. If `max_attempts` is 1, this workflow makes no attempt.
2. If no attempt is left, or repeated deletes leave the same number of keys (`NoProgress`), turn the row into a dead
   letter with the last error.
3. If a sweep or a trim has given the row to another batch, complete with outcome RETRYING.

Source: PIP-186, second phase; 10 attempts, 600 s apart.
"""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import (
    RetryPolicy,
    SearchAttributePair,
    TypedSearchAttributes,
    VersioningBehavior,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.deletion.inputs_and_results import DeadLetterInput, DeleteIntentInput
    from activities.deletion.ledger_deletion import LedgerDeletionActivities
    from logstore.deletion.intents import DeleteIntentResult, Outcome
    from workflows import activity_options, search_attributes
    from workflows.deletion.job_definitions import (
        DELETE_LEDGER,
        FAILED_OUTCOMES,
        DeleteLedgerInput,
        DeleteLedgerProgress,
    )
    from workflows.owner_routing import OWNERSHIP_FAILURES, OwnerRouter

_STUCK = "NoProgress"  # type of the error that allows no further attempt
_CLAIM_HELD = "ClaimHeld"  # type of the error for a row that another workflow has claimed
_NOT_THE_ROWS_FAULT = OWNERSHIP_FAILURES | {_CLAIM_HELD, "InvalidInput"}  # the row does not become a dead letter


def _delete_options(request: DeleteLedgerInput) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        start_to_close_timeout=timedelta(hours=1),  # 100,000 segments, throttled to 30 a second
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1),  # after a lost worker; other failures set their own delay
            maximum_interval=timedelta(seconds=10),
            maximum_attempts=max(1, request.max_attempts - 1),
        ),
    )


@workflow.defn(name="delete-ledger", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class DeleteLedger:
    @workflow.init
    def __init__(self, request: DeleteLedgerInput) -> None:
        self._router = OwnerRouter(request.topic, patience_s=request.owner_patience_s)
        self._progress = DeleteLedgerProgress(step="deleting")

    @workflow.run
    async def run(self, request: DeleteLedgerInput) -> DeleteIntentResult:
        search_attributes.ensure_topic(request.topic)
        workflow.set_current_details(f"Deleting the `{request.key.copy}` copy of ledger **{request.key.ledger_id}**")
        try:
            result = await self._delete_or_dead_letter(request)
        except ActivityError as error:
            if _find_error_type(error) != _CLAIM_HELD:
                raise
            result = DeleteIntentResult(
                outcome=Outcome.RETRYING, detail=f"taken over by another workflow: {error.cause}"
            )
        self._progress = DeleteLedgerProgress(step="ended", outcome=result.outcome)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([result.outcome.value])])
        workflow.set_current_details(f"**{result.outcome.value}** — {result.objects} objects. {result.detail}")
        if result.outcome in FAILED_OUTCOMES:
            kind = _STUCK if result.stuck else result.outcome.value
            raise ApplicationError(result.detail, type=kind, non_retryable=True)
        return result

    @workflow.query
    def progress(self) -> DeleteLedgerProgress:
        """Return the current step, and the outcome if the workflow has ended."""
        return self._progress

    async def _delete_or_dead_letter(self, request: DeleteLedgerInput) -> DeleteIntentResult:
        if request.max_attempts == 1:
            return await self._turn_into_dead_letter(request, "")
        delete = DeleteIntentInput(
            key=request.key, catalog_epoch=request.catalog_epoch, retry_interval_s=request.retry_interval_s
        )
        try:
            return await self._router.execute_at_owner(
                LedgerDeletionActivities.claim_and_delete_copy, delete, _delete_options(request)
            )
        except ActivityError as error:
            if is_cancelled_exception(error) or _find_error_type(error) in _NOT_THE_ROWS_FAULT:
                raise
            return await self._turn_into_dead_letter(request, str(error.cause or error))

    async def _turn_into_dead_letter(self, request: DeleteLedgerInput, error: str) -> DeleteIntentResult:
        self._progress = DeleteLedgerProgress(step="giving up")
        letter = DeadLetterInput(key=request.key, catalog_epoch=request.catalog_epoch, error=error)
        return await self._router.execute_at_owner(
            LedgerDeletionActivities.dead_letter_intent, letter, activity_options.CATALOG
        )


def _find_error_type(error: ActivityError) -> str | None:
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


async def start_delete_ledger(request: DeleteLedgerInput, *, batch_id: str) -> None:
    """Start `delete-ledger` for a row of a batch, unless it already runs.

    The child continues after its parent ends, because its retries may outlast the batch. The workflow id may be used
    again: a run on a finished row returns the row's outcome.
    """
    key = request.key
    try:
        child = await workflow.start_child_workflow(
            DeleteLedger.run,
            request,
            id=DELETE_LEDGER.id_of_request(request),
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            static_summary=DELETE_LEDGER.summary(request),
            static_details=request.details(),
            search_attributes=TypedSearchAttributes(
                [
                    *search_attributes.list_attributes_of_request(request),
                    SearchAttributePair(search_attributes.RUN_ID, batch_id),
                ]
            ),
        )
    except WorkflowAlreadyStartedError:
        workflow.logger.info("already at work alone: %s", key)
    else:
        child.add_done_callback(_retrieve_exception)


def _retrieve_exception(child: asyncio.Task[DeleteIntentResult]) -> None:
    """Retrieve the child's exception, so that asyncio logs no warning. The row has the same error."""
    if not child.cancelled():
        child.exception()
