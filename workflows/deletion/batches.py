"""Batches of deletions: how one is started and waited for, how far it is, and what it came to.

A job that filed a batch starts the batch's `delete-ledgers` as its child. The child goes on when its parent ends or is
cancelled: the intents are filed, so their deletion must not stop with the job that filed them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from activities.deletion.values import ChunkResult, DetachResult
    from logstore.deletion.intents import BatchCertificate, Outcome
    from logstore.errors import LedgerStillNeeded, PreconditionFailed, UnknownObject
    from workflows import refusals, search_attributes
    from workflows.deletion.values import (
        DELETE_LEDGERS,
        MAX_OBJECTS_PER_S,
        DeleteLedgersInput,
        DeleteLedgersProgress,
        DeleteTopicInput,
        DeletionPolicy,
        SetRate,
        SweepDeletionsResult,
        TrimTopicInput,
        TrimTopicResult,
    )

T = TypeVar("T", TrimTopicResult, SweepDeletionsResult)

GUARDS = frozenset({LedgerStillNeeded.__name__, UnknownObject.__name__})
"""Types of refusals by which a batch ends: nothing changed."""


def add_counts(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    """Counts by outcome, together."""
    return {name: left.get(name, 0) + right.get(name, 0) for name in sorted({*left, *right})}


def add_chunk(progress: DeleteLedgersProgress, result: ChunkResult) -> DeleteLedgersProgress:
    """The batch's progress, once a chunk has ended so."""
    return replace(
        progress,
        outcomes=add_counts(progress.outcomes, result.outcomes),
        objects=progress.objects + result.objects,
        size_bytes=progress.size_bytes + result.size_bytes,
    )


def stale_certificate(batch_id: str, progress: DeleteLedgersProgress) -> BatchCertificate:
    """The catalog was rebuilt meanwhile: its own rows say what is left to do, under the new epoch."""
    left = progress.intents - sum(progress.outcomes.values())
    return BatchCertificate(
        batch_id=batch_id,
        outcomes=add_counts(progress.outcomes, {Outcome.STALE_CATALOG.value: left} if left > 0 else {}),
        objects=progress.objects,
        size_bytes=progress.size_bytes,
    )


def complete_certificate(certificate: BatchCertificate, progress: DeleteLedgersProgress) -> BatchCertificate:
    """With what had ended before the batch, and what another batch took up from it."""
    outcomes = add_counts(certificate.outcomes, progress.finished)
    elsewhere = progress.intents - sum(certificate.outcomes.values())
    return replace(
        certificate, outcomes=add_counts(outcomes, {Outcome.RETRYING.value: elsewhere} if elsewhere > 0 else {})
    )


def require_rate(wanted: SetRate) -> None:
    """Refuse what is no rate.

    Raises:
        ApplicationError: `InvalidInput`, which no retry helps.
    """
    if not 0 <= wanted.objects_per_s <= MAX_OBJECTS_PER_S:
        message = f"rate: expected 0 (unlimited) to {MAX_OBJECTS_PER_S:,} objects a second"
        message = f"{message}, found {wanted.objects_per_s:,}"
        raise ApplicationError(message, {"field": "rate"}, type="InvalidInput", non_retryable=True)


def refusal_certificate(batch_id: str, error: ActivityError, *, compound: bool = False) -> BatchCertificate | None:
    """The result of a batch whose phase one a guard refused; None where it failed for another reason.

    A compound operation says what it expects of its ledger: that it is otherwise is a refusal, too.
    """
    why = refusals.find_refusal(error, {*GUARDS, PreconditionFailed.__name__} if compound else GUARDS)
    return BatchCertificate(batch_id=batch_id, outcomes={}, objects=0, size_bytes=0, refused=why) if why else None


def format_batch(done: DeleteLedgersProgress | BatchCertificate) -> str:
    """Markdown for an operator."""
    if isinstance(done, BatchCertificate) and done.refused:
        return refusals.format_refusal(done.refused)
    orders = []
    if isinstance(done, DeleteLedgersProgress):
        orders += ["**paused**"] if done.paused else []
        orders += [f"at most {done.rate:,} objects a second"] if done.rate else []
    told = ", ".join([f"{done.objects:,} objects", f"{done.size_bytes:,} bytes", *orders])
    rows = "".join(f"- **{name}** — {count:,} copies\n" for name, count in sorted(done.outcomes.items()))
    return f"{told}\n\n{rows}"  # a list: the Web UI draws tables without lines or space between columns


class DeletionRequest(Protocol):
    """What every job's input says of its deletions."""

    @property
    def actor(self) -> str:
        """The actor that asked."""

    @property
    def reason(self) -> str:
        """The reason that it gave."""

    @property
    def policy(self) -> DeletionPolicy:
        """How phase two works."""


def build_batch_input(
    request: DeletionRequest,
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


def add_certificate(before: T, done: BatchCertificate) -> T:
    """A job's result so far, and what one more of its batches came to."""
    return replace(
        before,
        outcomes=add_counts(before.outcomes, done.outcomes),
        deleted=before.deleted + done.deleted,
        objects=before.objects + done.objects,
        size_bytes=before.size_bytes + done.size_bytes,
    )


async def start_batch(
    request: DeleteLedgersInput, *, summary: str
) -> workflow.ChildWorkflowHandle[Any, BatchCertificate]:
    """Start `delete-ledgers` on a batch whose rows are claimed for it; await the handle for its certificate."""
    topic = [SearchAttributePair(search_attributes.TOPIC, request.topic)] if request.topic else []
    run = SearchAttributePair(search_attributes.RUN_ID, request.batch_id)
    return await workflow.start_child_workflow(
        DELETE_LEDGERS.name,
        request,
        id=DELETE_LEDGERS.id(request.batch_id),
        result_type=BatchCertificate,
        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
        static_summary=summary,
        static_details=request.details(),
        search_attributes=TypedSearchAttributes([*topic, run]),
    )


async def run_phase_two(
    request: DeletionRequest, batch_id: str, detached: DetachResult, *, summary: str, patience_s: float | None = None
) -> BatchCertificate | None:
    """Start the batch of what a job has detached, and wait for it; see `batch_of` and `certificate_within`."""
    started = await start_batch(build_batch_input(request, batch_id, detached), summary=summary)
    return await await_certificate(started, patience_s)


async def await_certificate(
    batch: workflow.ChildWorkflowHandle[Any, BatchCertificate], patience_s: float | None
) -> BatchCertificate | None:
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
