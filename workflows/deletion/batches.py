"""Start, progress and batch certificates of `delete-ledgers`.

A `delete-ledgers` continues when its parent workflow ends, because filed intents must be finished in any case.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from temporalio import workflow
from temporalio.common import TypedSearchAttributes
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError

with workflow.unsafe.imports_passed_through():
    from activities.deletion.inputs_and_results import ChunkResult, DetachResult
    from logstore.deletion.intents import BatchCertificate, Outcome
    from logstore.errors import PreconditionFailed
    from workflows import guard_refusal_results, search_attributes
    from workflows.deletion.job_definitions import (
        DELETE_LEDGERS,
        MAX_OBJECTS_PER_S,
        DeleteLedgersInput,
        DeleteLedgersProgress,
        DeleteTopicInput,
        DeletionPolicy,
        SetRateInput,
        SweepDeletionsResult,
        TrimTopicInput,
        TrimTopicResult,
    )

T = TypeVar("T", TrimTopicResult, SweepDeletionsResult)


def add_counts(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in sorted({*left, *right})}


def add_chunk_result(progress: DeleteLedgersProgress, result: ChunkResult) -> DeleteLedgersProgress:
    return replace(
        progress,
        outcomes=add_counts(progress.outcomes, result.outcomes),
        objects=progress.objects + result.objects,
        size_bytes=progress.size_bytes + result.size_bytes,
    )


def batch_certificate_after_rebuild(batch_id: str, progress: DeleteLedgersProgress) -> BatchCertificate:
    """Return the batch certificate after a rebuild of the catalog. Unfinished intents count as `STALE_CATALOG`."""
    remaining = progress.intents - sum(progress.outcomes.values())
    return BatchCertificate(
        batch_id=batch_id,
        outcomes=add_counts(progress.outcomes, {Outcome.STALE_CATALOG.value: remaining} if remaining > 0 else {}),
        objects=progress.objects,
        size_bytes=progress.size_bytes,
    )


def add_rows_ended_elsewhere(certificate: BatchCertificate, progress: DeleteLedgersProgress) -> BatchCertificate:
    """Add to the certificate the rows that ended before the batch, and the rows that another batch has taken over."""
    outcomes = add_counts(certificate.outcomes, progress.finished)
    taken_over_rows = progress.intents - sum(certificate.outcomes.values())
    return replace(
        certificate,
        outcomes=add_counts(outcomes, {Outcome.RETRYING.value: taken_over_rows} if taken_over_rows > 0 else {}),
    )


def require_rate_within_bounds(request: SetRateInput) -> None:
    """Raise `ApplicationError` of type `InvalidInput` unless the rate is within its bounds."""
    if not 0 <= request.objects_per_s <= MAX_OBJECTS_PER_S:
        message = f"rate: expected 0 (unlimited) to {MAX_OBJECTS_PER_S:,} objects a second"
        message = f"{message}, found {request.objects_per_s:,}"
        raise ApplicationError(message, {"field": "rate"}, type="InvalidInput", non_retryable=True)


def refusal_batch_certificate(
    batch_id: str, error: ActivityError, *, compound: bool = False
) -> BatchCertificate | None:
    """Return the batch certificate if a guard refused phase one, or `None` after any other error.

    For a compound operation, `PreconditionFailed` is a refusal too.
    """
    types = {*DELETE_LEDGERS.guards, PreconditionFailed.__name__} if compound else DELETE_LEDGERS.guards
    refusal = guard_refusal_results.refusal_from_error(error, types)
    return (
        BatchCertificate(batch_id=batch_id, outcomes={}, objects=0, size_bytes=0, refused=refusal) if refusal else None
    )


def format_batch(batch: DeleteLedgersProgress | BatchCertificate) -> str:
    if isinstance(batch, BatchCertificate) and batch.refused:
        return guard_refusal_results.format_refusal(batch.refused)
    parts = [f"{batch.objects:,} objects", f"{batch.size_bytes:,} bytes"]
    if isinstance(batch, DeleteLedgersProgress):
        parts += ["**paused**"] if batch.paused else []
        parts += [f"at most {batch.rate:,} objects a second"] if batch.rate else []
    rows = "".join(f"- **{name}** — {count:,} copies\n" for name, count in sorted(batch.outcomes.items()))
    return f"{', '.join(parts)}\n\n{rows}"  # a list, because the Web UI draws tables without lines between columns


class PhaseTwoRequest(Protocol):
    @property
    def actor(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def policy(self) -> DeletionPolicy: ...


def build_batch_input(
    request: PhaseTwoRequest, batch_id: str, detached: DetachResult, *, owner: str = ""
) -> DeleteLedgersInput:
    """Build the input of `delete-ledgers`. `owner` is the bundle owner that detached the ledgers, or empty."""
    topic_request = request if isinstance(request, TrimTopicInput | DeleteTopicInput) else None
    return DeleteLedgersInput(
        batch_id=batch_id,
        topic_id=topic_request.topic_id if topic_request else 0,
        topic=topic_request.topic if topic_request else "",
        catalog_epoch=detached.catalog_epoch,
        actor=request.actor,
        reason=request.reason,
        policy=request.policy,
        carried=DeleteLedgersProgress(intents=detached.intents, detached=detached.ledgers),
        owner=owner,
    )


def add_batch_certificate(before: T, certificate: BatchCertificate) -> T:
    return replace(
        before,
        outcomes=add_counts(before.outcomes, certificate.outcomes),
        deleted=before.deleted + certificate.deleted,
        objects=before.objects + certificate.objects,
        size_bytes=before.size_bytes + certificate.size_bytes,
    )


async def start_batch(
    request: DeleteLedgersInput, *, summary: str
) -> workflow.ChildWorkflowHandle[Any, BatchCertificate]:
    """Start `delete-ledgers` on a batch whose rows are claimed already. The child's result is the batch certificate."""
    return await workflow.start_child_workflow(
        DELETE_LEDGERS.name,
        request,
        id=DELETE_LEDGERS.id_of_request(request),
        result_type=BatchCertificate,
        parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
        static_summary=summary,
        static_details=request.details(),
        search_attributes=TypedSearchAttributes(search_attributes.list_attributes_of_request(request)),
    )


async def run_phase_two(
    request: PhaseTwoRequest, batch_id: str, detached: DetachResult, *, summary: str, patience_s: float | None = None
) -> BatchCertificate | None:
    started = await start_batch(build_batch_input(request, batch_id, detached), summary=summary)
    return await try_await_batch_certificate(started, patience_s)


async def try_await_batch_certificate(
    batch: workflow.ChildWorkflowHandle[Any, BatchCertificate], patience_s: float | None
) -> BatchCertificate | None:
    """Return the batch certificate, or `None` if the batch failed or took longer than `patience_s`.

    A scheduled job passes `patience_s`, because a batch may be paused. A sweep takes over the rows of a failed batch.
    """
    ended, _ = await workflow.wait([batch], timeout=patience_s)
    if not ended:
        return None
    try:
        return await batch
    except ChildWorkflowError as error:
        workflow.logger.warning("%s ended early, its rows are found again: %s", batch.id, error.cause)
        return None
