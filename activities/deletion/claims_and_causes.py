"""Claims and audit causes that name the workflow of an activity."""

from typing import Final, TypedDict

from temporalio import activity

from activities.deletion import metrics
from activities.deletion.inputs_and_results import DetachResult
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch

CLAIM_S: Final = 60.0
"""Duration of a row's claim in seconds. Heartbeats renew the claim."""

BATCH_CLAIM_S: Final = 120.0
"""Duration of a batch's claim in seconds: 60 s more than the longest wait between attempts of a chunk."""


def own_workflow_claim(ttl_s: float = CLAIM_S) -> Claim:
    info = activity.info()
    return Claim(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "", ttl_s=ttl_s)


def batch_workflow_claim(workflow_id: str) -> Claim:
    """Return a claim for the batch's workflow `workflow_id`, with Temporal's run id of the calling workflow."""
    return Claim(workflow_id=workflow_id, run_id=activity.info().workflow_run_id or "", ttl_s=BATCH_CLAIM_S)


def own_workflow_cause(actor: str, reason: str) -> AuditCause:
    return AuditCause(actor=actor, reason=reason, workflow_id=activity.info().workflow_id or "")


class DetachArguments(TypedDict):
    batch_id: str
    claim: Claim
    cause: AuditCause


def detach_arguments(batch_id: str, workflow_id: str, actor: str, reason: str) -> DetachArguments:
    """Build the arguments of phase one. The workflow `workflow_id` gets the claim and is named in the audit log."""
    cause = AuditCause(actor=actor, reason=reason, workflow_id=workflow_id)
    return DetachArguments(batch_id=batch_id, claim=batch_workflow_claim(workflow_id), cause=cause)


def count_and_summarize_detach(batch: DetachedBatch, catalog_epoch: int) -> DetachResult:
    """Add the batch's filed intents to the Prometheus counter. Return the result of the detach."""
    metrics.count_filed_intents(batch.filed_counts)
    return DetachResult(
        ledgers=batch.ledgers, intents=batch.intents, catalog_epoch=catalog_epoch, finished=dict(batch.finished)
    )
