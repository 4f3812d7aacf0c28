"""`offload-ledger`: write a tiered copy of a ledger, read it back, and publish it.

Destroys no published copy. Two-phase deletion removes the objects of unpublished attempts. No reader uses these
objects. Invariant: a copy is published only after all its data was read back. A ledger is not deleted during its
offload. To stop it, cancel or terminate it. One of the topic's next trims deletes the uploaded objects. After a
termination, the trim waits for the deadline of the upload attempt.

1. Upload the copy under a new uuid, and read it back. Every retry is a new attempt.
2. Publish the copy, unless another attempt or a deletion came first.
3. If another attempt came first and the ledger still has no tiered copy, begin again.

Source: Pulsar's tiered storage; apache/pulsar#13219, #22839.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.offload import LedgerOffloadActivities, PublishCopyInput, UploadCopyInput, UploadCopyResult
    from logstore.ports.catalog.offload import OffloadStartOutcome
    from workflows import activity_options, search_attributes
    from workflows.offload.job_definitions import (
        OffloadLedgerInput,
        OffloadLedgerProgress,
        OffloadLedgerResult,
        OffloadLimits,
        OffloadOutcome,
    )

_MAX_TURNS = 3  # proved uploads that lost to another attempt; then the other attempt does the work


def _upload_options(policy: OffloadLimits) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=policy.queue or None,
        start_to_close_timeout=timedelta(seconds=2 * policy.timeout_s + 300),  # upload, then read all data back
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=5), maximum_attempts=policy.attempts),
    )


@workflow.defn(name="offload-ledger", versioning_behavior=VersioningBehavior.PINNED)
class OffloadLedger:
    def __init__(self) -> None:
        self._progress = OffloadLedgerProgress(step="uploading")

    @workflow.run
    async def run(self, request: OffloadLedgerInput) -> OffloadLedgerResult:
        search_attributes.ensure_topic(request.topic)
        workflow.set_current_details(f"Offloading ledger **{request.ledger_id}**")
        for turn in range(1, _MAX_TURNS + 1):
            self._progress = OffloadLedgerProgress(step="uploading", turn=turn)
            upload = UploadCopyInput(
                ledger_id=request.ledger_id, timeout_s=request.policy.timeout_s, topic=request.topic
            )
            uploaded = await workflow.execute_activity_method(
                LedgerOffloadActivities.upload_and_prove_copy, upload, **_upload_options(request.policy)
            )
            self._progress = OffloadLedgerProgress(step="publishing", turn=turn, size_bytes=uploaded.size_bytes)
            outcome = await self._publish_copy_unless_overtaken(request.ledger_id, uploaded)
            if outcome:
                return self._publish_result(outcome, uploaded)
        message = f"ledger {request.ledger_id}: {_MAX_TURNS} uploads lost to other attempts"
        raise ApplicationError(message, type="OffloadOvertaken", non_retryable=True)

    @workflow.query
    def progress(self) -> OffloadLedgerProgress:
        """Return the current step."""
        return self._progress

    async def _publish_copy_unless_overtaken(self, ledger_id: int, uploaded: UploadCopyResult) -> OffloadOutcome | None:
        if uploaded.answer is not OffloadStartOutcome.BEGUN:
            return OffloadOutcome(uploaded.answer.value)
        publish = PublishCopyInput(
            ledger_id=ledger_id, uuid=uploaded.uuid, size_bytes=uploaded.size_bytes, index_bytes=uploaded.index_bytes
        )
        answer = await workflow.execute_activity_method(
            LedgerOffloadActivities.publish_copy, publish, **activity_options.CATALOG
        )
        if answer is OffloadStartOutcome.BEGUN:
            return None
        return OffloadOutcome.GONE if answer is OffloadStartOutcome.GONE else OffloadOutcome.OFFLOADED

    def _publish_result(self, outcome: OffloadOutcome, uploaded: UploadCopyResult) -> OffloadLedgerResult:
        self._progress = OffloadLedgerProgress(step="ended", turn=self._progress.turn, size_bytes=uploaded.size_bytes)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([outcome.value])])
        if outcome is OffloadOutcome.GONE:
            workflow.set_current_details("**GONE** — the ledger was deleted")
            return OffloadLedgerResult(outcome=outcome)
        workflow.set_current_details(
            f"**{outcome.value}** — {uploaded.size_bytes:,} bytes, SHA-256 `{uploaded.sha256}`"
        )
        return OffloadLedgerResult(
            outcome=outcome,
            uuid=uploaded.uuid,
            entries=uploaded.entries,
            size_bytes=uploaded.size_bytes,
            sha256=uploaded.sha256,
        )
