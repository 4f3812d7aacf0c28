"""What `offload-topic` has done so far: sums, and samples of what went wrong that stay small however much did."""

from dataclasses import replace

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from activities.offload import RemovePrimariesResult
    from workflows.offload.values import OffloadLedgerResult, OffloadOutcome, OffloadTopicResult

_SAMPLE = 20  # of each kind, told by name


def with_ledger(before: OffloadTopicResult, done: OffloadLedgerResult) -> OffloadTopicResult:
    """One more ledger whose offload ended."""
    uploaded = done.outcome is OffloadOutcome.OFFLOADED
    return replace(
        before,
        offloaded=before.offloaded + uploaded,
        already=before.already + (done.outcome is OffloadOutcome.ALREADY),
        gone=before.gone + (done.outcome is OffloadOutcome.GONE),
        size_bytes=before.size_bytes + done.size_bytes * uploaded,
    )


def with_failure(before: OffloadTopicResult, ledger_id: int, error: BaseException) -> OffloadTopicResult:
    """One more ledger whose offload failed."""
    told = before.errors if len(before.errors) >= _SAMPLE else {**before.errors, ledger_id: sentence(error)}
    return replace(before, failed=before.failed + 1, errors=told)


def with_refusal(before: OffloadTopicResult, reason: str) -> OffloadTopicResult:
    """One more ask that was not done, or not to its end."""
    return replace(before, refused=before.refused + 1, refusals=[*before.refusals, reason[:500]][:_SAMPLE])


def with_removal(before: OffloadTopicResult, found: RemovePrimariesResult) -> OffloadTopicResult:
    """One more page of primary copies."""
    return replace(
        before,
        removed=before.removed + found.ledgers,
        unproved=before.unproved + found.unproved,
        doubts=dict([*before.doubts.items(), *found.doubts.items()][:_SAMPLE]),
    )


def details(done: OffloadTopicResult) -> str:
    """In a line, for operators."""
    return (
        f"{done.offloaded:,} ledgers offloaded, {done.size_bytes:,} bytes; {done.failed:,} failed; "
        f"{done.removed:,} primary copies removed, {done.unproved:,} kept: their tiered copy was not proved"
    )


def sentence(error: BaseException) -> str:
    """The innermost cause that says something."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    name = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    text = cause.message if isinstance(cause, FailureError) else str(cause)
    return f"{name}: {text}"[:500]
