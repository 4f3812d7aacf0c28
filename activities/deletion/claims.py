"""Claims of rows and batches, and causes for the audit log, in the name of the workflow that an activity runs for."""

from typing import Final, TypedDict

from temporalio import activity

from activities.deletion import metrics
from activities.deletion.values import DetachResult
from logstore.ports.catalog import Cause, Claim, DetachedBatch

CLAIM_S: Final = 60.0
"""Of a row, while work runs; renewed with heartbeats."""

BATCH_CLAIM_S: Final = 120.0
"""Of a batch, until its own workflow renews it: the longest wait of a chunk before its next attempt, and 60 s more."""


def own_claim(ttl_s: float = CLAIM_S) -> Claim:
    """The claim of the workflow that the activity runs for."""
    info = activity.info()
    return Claim(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "", ttl_s=ttl_s)


def batch_claim(workflow_id: str) -> Claim:
    """The claim of the workflow that will work on the batch, taken for it by the run that files the intents."""
    return Claim(workflow_id=workflow_id, run_id=activity.info().workflow_run_id or "", ttl_s=BATCH_CLAIM_S)


def own_cause(actor: str, reason: str) -> Cause:
    """Why the workflow that the activity runs for destroys something."""
    return Cause(actor=actor, reason=reason, workflow_id=activity.info().workflow_id or "")


class DetachArguments(TypedDict):
    """Under which batch phase one files intents, for which workflow, and why."""

    batch_id: str
    claim: Claim
    cause: Cause


def detach_arguments(batch_id: str, workflow_id: str, actor: str, reason: str) -> DetachArguments:
    """What every call of phase one says; the batch's own workflow has the claim, and stands in the audit log."""
    cause = Cause(actor=actor, reason=reason, workflow_id=workflow_id)
    return DetachArguments(batch_id=batch_id, claim=batch_claim(workflow_id), cause=cause)


def report_detached(detached: DetachedBatch, catalog_epoch: int) -> DetachResult:
    """What phase one did, counted for Prometheus as far as this very call did it."""
    metrics.sent(detached.filed_counts)
    return DetachResult(
        ledgers=detached.ledgers,
        intents=detached.intents,
        catalog_epoch=catalog_epoch,
        finished=dict(detached.finished),
    )
