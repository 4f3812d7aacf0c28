"""How a workflow that filed a batch starts the batch's `delete-ledgers` as a child, and waits for it.

The child goes on when its parent ends or is cancelled: the intents are filed, so their deletion must not stop with the
job that filed them.
"""

from dataclasses import replace
from typing import Protocol, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from activities.deletion.values import DetachResult
    from logstore.deletion.intents import Certificate
    from workflows import search_attributes
    from workflows.deletion.delete_ledgers import DeleteLedgers
    from workflows.deletion.progress import added
    from workflows.deletion.values import (
        DELETE_LEDGERS,
        DeleteLedgersInput,
        DeleteLedgersProgress,
        DeleteTopicInput,
        DeletionPolicy,
        SweepDeletionsResult,
        TrimTopicInput,
        TrimTopicResult,
    )


class Asked(Protocol):
    """What every job's input says of its deletions."""

    @property
    def actor(self) -> str:
        """Who asked."""

    @property
    def reason(self) -> str:
        """Why."""

    @property
    def policy(self) -> DeletionPolicy:
        """How phase two works."""


def batch_of(
    request: Asked,
    batch_id: str,
    detached: DetachResult,
    *,
    owner: str = "",
) -> DeleteLedgersInput:
    """The input of `delete-ledgers` for what a job has detached, in the name of that job's own request.

    Args:
        request: The job's input; of one topic or of many.
        batch_id: Under which the intents are filed.
        detached: What phase one did.
        owner: The worker that detached as the topic's owner, if one did.
    """
    one = request if isinstance(request, TrimTopicInput | DeleteTopicInput) else None
    return DeleteLedgersInput(
        batch_id=batch_id,
        topic_id=one.topic_id if one else 0,
        topic=one.topic if one else "",
        catalog_epoch=detached.catalog_epoch,
        actor=request.actor,
        reason=request.reason,
        policy=request.policy,
        carried=DeleteLedgersProgress(intents=detached.intents, detached=detached.ledgers),
        owner=owner,
    )


T = TypeVar("T", TrimTopicResult, SweepDeletionsResult)


def with_certificate(before: T, done: Certificate) -> T:
    """A job's result so far, and what one more of its batches came to."""
    return replace(
        before,
        outcomes=added(before.outcomes, done.outcomes),
        deleted=before.deleted + done.deleted,
        objects=before.objects + done.objects,
        size_bytes=before.size_bytes + done.size_bytes,
    )


async def start_batch(
    request: DeleteLedgersInput, *, summary: str
) -> workflow.ChildWorkflowHandle[DeleteLedgers, Certificate]:
    """Start `delete-ledgers` on a batch whose rows are claimed for it; await the handle for its certificate."""
    topic = [SearchAttributePair(search_attributes.TOPIC, request.topic)] if request.topic else []
    run = SearchAttributePair(search_attributes.RUN_ID, request.batch_id)
    return await workflow.start_child_workflow(
        DeleteLedgers.run,
        request,
        id=DELETE_LEDGERS.id(request.batch_id),
        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
        static_summary=summary,
        static_details=request.details(),
        search_attributes=TypedSearchAttributes([*topic, run]),
    )


async def certificate_within(
    batch: workflow.ChildWorkflowHandle[DeleteLedgers, Certificate], patience_s: float | None
) -> Certificate | None:
    """The batch's certificate, or None if it takes longer or ended early: its rows are listed, and found again.

    A batch that is paused must not keep a recurring job from what comes after it; None waits for it.
    """
    ended, _ = await workflow.wait([batch], timeout=patience_s)
    if not ended:
        return None
    try:
        return await batch
    except ChildWorkflowError as error:
        workflow.logger.warning("%s ended early, its rows are found again: %s", batch.id, error.cause)
        return None
