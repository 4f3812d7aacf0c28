"""`delete-ledger`: nothing of one copy of one ledger is left in storage, or its row says why.

Destroys the objects of exactly that copy. Invariant: storage and catalog are both asked again just before the
delete. To stop it, terminate it: its row stays listed as unfinished and is taken up again. It fails, with the
outcome as its error type, when the outcome is not a success, so that the Failed filter shows the dead letters.

1. Delete the copy under a claim, at the topic's owner; retry what may help, `retry_interval_s` apart. The batch's own
   attempt counts: where it was the only one allowed, none is made here.
2. Attempts exhausted, or storage keeps the same number of keys again and again (`NoProgress`): keep the row as a
   dead letter with its error.
3. Where a sweep or a trim gave the row to another batch meanwhile, it is that one's: complete as taken over.

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
    from activities.deletion.ledger_deletion import LedgerDeletion
    from activities.deletion.phase_two import delete_ledger_id
    from activities.deletion.values import DeadLetterInput, DeleteIntentInput, DeleteIntentResult
    from logstore.deletion.intents import Outcome
    from workflows import options, search_attributes
    from workflows.deletion.values import DeleteLedgerInput, DeleteLedgerProgress
    from workflows.dispatch import OWNERSHIP_FAILURES, Dispatch

_STUCK = "NoProgress"  # type of the error after which no further attempt is made
_HELD = "ClaimHeld"  # another workflow is at work on the row
_NOT_OF_THE_ROW = OWNERSHIP_FAILURES | {_HELD, "InvalidInput"}  # another workflow has it, or there is none: no failure
_FAILED = frozenset(one for one in Outcome if not one.is_success and one is not Outcome.RETRYING)
FAILURES = frozenset({*_FAILED, _STUCK, *_NOT_OF_THE_ROW} - {_HELD, "NotOwner"})
"""Types that it fails with: outcomes, and what says that there is no such row, or no worker to do the work."""


def _delete_one(request: DeleteLedgerInput) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        start_to_close_timeout=timedelta(hours=1),  # 100,000 segments in pages of 1,000, throttled to 30 a second
        heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=1),  # after a lost worker; an answered failure says its own delay
            maximum_interval=timedelta(seconds=10),
            maximum_attempts=max(1, request.max_attempts - 1),
        ),
    )


@workflow.defn(name="delete-ledger", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class DeleteLedger:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: DeleteLedgerInput) -> None:
        """Begin at the first step."""
        self._dispatch = Dispatch(request.topic, patience_s=request.owner_patience_s)
        self._progress = DeleteLedgerProgress(step="deleting")

    @workflow.run
    async def run(self, request: DeleteLedgerInput) -> DeleteIntentResult:
        """Do the numbered steps."""
        search_attributes.ensure_topic(request.topic)
        workflow.set_current_details(f"Deleting the `{request.key.copy}` copy of ledger **{request.key.ledger_id}**")
        try:
            result = await self._ended(request)
        except ActivityError as error:
            if _type(error) != _HELD:
                raise
            result = DeleteIntentResult(
                outcome=Outcome.RETRYING, detail=f"taken over by another workflow: {error.cause}"
            )
        self._progress = DeleteLedgerProgress(step="ended", outcome=result.outcome)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([result.outcome.value])])
        workflow.set_current_details(f"**{result.outcome.value}** — {result.objects} objects. {result.detail}")
        if result.outcome in _FAILED:
            kind = _STUCK if result.stuck else result.outcome.value
            raise ApplicationError(result.detail, type=kind, non_retryable=True)
        return result

    @workflow.query
    def progress(self) -> DeleteLedgerProgress:
        """Which step it is at, and how it ended."""
        return self._progress

    async def _ended(self, request: DeleteLedgerInput) -> DeleteIntentResult:
        if request.max_attempts == 1:
            return await self._give_up(request, "")
        one = DeleteIntentInput(
            key=request.key, catalog_epoch=request.catalog_epoch, retry_interval_s=request.retry_interval_s
        )
        try:
            return await self._dispatch.execute(LedgerDeletion.delete_one, one, _delete_one(request))
        except ActivityError as error:
            if is_cancelled_exception(error) or _type(error) in _NOT_OF_THE_ROW:
                raise
            return await self._give_up(request, str(error.cause or error))

    async def _give_up(self, request: DeleteLedgerInput, error: str) -> DeleteIntentResult:
        self._progress = DeleteLedgerProgress(step="giving up")
        letter = DeadLetterInput(key=request.key, catalog_epoch=request.catalog_epoch, error=error)
        return await self._dispatch.execute(LedgerDeletion.dead_letter, letter, options.CATALOG)


def _type(error: ActivityError) -> str | None:
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


async def start_delete_ledger(request: DeleteLedgerInput, *, batch_id: str) -> None:
    """Give a row of a batch a workflow that an operator can open, or leave it to the one it has.

    Abandoned, because it may retry longer than the batch lives; and it may be started again once it has ended, because
    it may have failed, or have been told that the row was another's: one that finds the row ended says so again.
    """
    key = request.key
    try:
        child = await workflow.start_child_workflow(
            DeleteLedger.run,
            request,
            id=delete_ledger_id(key),
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            static_summary=f"ledger {key.ledger_id} of {request.topic}",
            static_details=request.details(),
            search_attributes=TypedSearchAttributes(
                [
                    SearchAttributePair(search_attributes.TOPIC, request.topic),
                    SearchAttributePair(search_attributes.LEDGER_ID, key.ledger_id),
                    SearchAttributePair(search_attributes.RUN_ID, batch_id),
                ]
            ),
        )
    except WorkflowAlreadyStartedError:
        workflow.logger.info("already at work alone: %s", key)
    else:
        child.add_done_callback(_heard)


def _heard(child: asyncio.Task[DeleteIntentResult]) -> None:
    """Observe how a child ended, so that no warning is logged; its row says the same."""
    if not child.cancelled():
        child.exception()
