"""`delete-ledgers`: finish every intent of one batch, or start a `delete-ledger` for an intent that fails.

Destroys the copies that the batch's intents name. Invariant: rows, claims and outcomes are in SQL, and this workflow
only decides the order of the work. To stop it for a while, pause it. To stop it for good, terminate it. Unfinished rows
stay in SQL. The next sweep, or the topic's next trim, takes over these rows.

1. If `detach` is set, detach the given ledgers (phase one). Otherwise the starter has detached the ledgers. If a guard
   refuses phase one, the batch ends. Nothing has changed then, and the result has the reason.
2. Page by page, delete chunks of rows, `parallelism` chunks at a time. Start a `delete-ledger` for each row that fails.
   - While the batch is paused, start no chunk. The catalog stores the pause before the operator gets an answer.
   - At a limited rate, process each chunk by several activities, one after the other.
   - If the batch has one topic, the topic's bundle owner does the work. Otherwise any worker does the work.
3. Certify: count the batch's rows by outcome, close the batch run, and write the audit row.

Source: PIP-186, second phase.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.deletion.deletion_queue import DeletionQueueActivities
    from activities.deletion.inputs_and_results import (
        CertifyInput,
        ChunkInput,
        ChunkResult,
        ClaimPausedBatchInput,
        DetachInput,
        PauseOrResumeBatchInput,
        RowRangesInput,
        RowRangesPage,
    )
    from activities.deletion.ledger_deletion import LedgerDeletionActivities
    from logstore.deletion.intents import BatchCertificate, IntentKey
    from logstore.ports.catalog.deletion import IntentRowRange
    from workflows import activity_options, search_attributes
    from workflows.deletion import delete_ledger
    from workflows.deletion.batches import (
        add_chunk_result,
        add_rows_ended_elsewhere,
        batch_certificate_after_rebuild,
        format_batch,
        refusal_batch_certificate,
        require_rate_within_bounds,
    )
    from workflows.deletion.job_definitions import (
        DeleteLedgerInput,
        DeleteLedgersInput,
        DeleteLedgersProgress,
        ExplicitDetach,
        SetRateInput,
    )
    from workflows.owner_routing import OWNERSHIP_FAILURES, OwnerRouter

_RANGES_PER_PAGE = 50  # some 500 events of history
_MIN_ROWS_PER_CHUNK = 5  # an activity costs as much as a few listings
_MAX_CONCURRENT_ROWS = 1_000  # in all running chunks; each row that fails starts a child
_MAX_CONCURRENT_ROWS_OF_MANY_TOPICS = 500  # results contain a topic name of 200 characters for each failed row

_CHUNK = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),  # 100 ledgers of 1,000 segments at 30 objects a second
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=60), maximum_attempts=10),  # then row by row
)
_SLICE: workflow.ActivityConfig = {
    **_CHUNK,
    "start_to_close_timeout": timedelta(hours=24),  # at 1 object a second, one ledger of 86,400 objects
}
_HOLD_INTERVAL = timedelta(minutes=10)  # while paused; two thirds of the claim


@workflow.defn(name="delete-ledgers", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class DeleteLedgers:
    @workflow.init
    def __init__(self, request: DeleteLedgersInput) -> None:
        self._request = request
        self._progress = request.carried
        self._router = OwnerRouter(request.topic, owner=request.owner, patience_s=request.policy.owner_patience_s)
        self._chunk_slots = asyncio.Semaphore(max(1, request.policy.parallelism))
        self._children = 0  # started by this run
        self._chunks = 1  # of the current page
        self._is_history_long = False
        self._hold_lock = asyncio.Lock()  # only one of the waiting chunks renews the claim
        self._pause_lock = asyncio.Lock()  # the catalog gets pauses and resumes in the order of their arrival
        self._is_filed = request.detach is None  # while False, the catalog has no batch to pause
        self._max_rows = _MAX_CONCURRENT_ROWS if request.topic else _MAX_CONCURRENT_ROWS_OF_MANY_TOPICS

    @workflow.run
    async def run(self, request: DeleteLedgersInput) -> BatchCertificate:
        search_attributes.ensure_topic(request.topic)
        if request.detach and (refusal := await self._detach_unless_refused(request.detach)):
            await workflow.wait_condition(workflow.all_handlers_finished)
            return self._publish_batch_certificate(refusal)
        while (page := await self._read_next_ranges()).ranges:
            self._chunks = len(page.ranges)
            await asyncio.gather(*(self._delete_chunk_and_start_retries(chunk) for chunk in page.ranges))
            if not self._should_continue_as_new:
                self._progress = replace(self._progress, after=page.ranges[-1].last)
            workflow.set_current_details(format_batch(self._progress))
            if self._should_continue_as_new or workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(
                    replace(request, detach=None, carried=self._progress, owner=self._router.owner)
                )
        if page.stale:
            counted_certificate = batch_certificate_after_rebuild(request.batch_id, self._progress)
        else:
            certify_input = CertifyInput(batch_id=request.batch_id, actor=request.actor, reason=request.reason)
            counted_certificate = await self._router.execute_at_owner(
                LedgerDeletionActivities.close_and_certify_batch, certify_input, activity_options.CATALOG
            )
        certificate = add_rows_ended_elsewhere(counted_certificate, self._progress)
        certificate = self._publish_batch_certificate(replace(certificate, owner=self._router.owner))
        await workflow.wait_condition(workflow.all_handlers_finished)
        return certificate

    @workflow.query
    def progress(self) -> DeleteLedgersProgress:
        """Return the progress of the batch."""
        ended_rows = sum(self._progress.outcomes.values())
        return replace(self._progress, done=ended_rows, left=max(0, self._progress.intents - ended_rows))

    @workflow.update
    async def pause(self) -> DeleteLedgersProgress:
        """Pause the batch. Running chunks are completed, and no other chunk starts."""
        self._progress = replace(self._progress, paused=True)
        return await self._store_pause(paused=True)

    @workflow.update
    async def resume(self) -> DeleteLedgersProgress:
        """Resume the batch."""
        return await self._store_pause(paused=False)

    async def _store_pause(self, *, paused: bool) -> DeleteLedgersProgress:
        """Store in the catalog whether the batch is paused. A stored pause lasts even if the batch's claim expires."""
        async with self._pause_lock:
            await workflow.wait_condition(lambda: self._is_filed)
            pause = PauseOrResumeBatchInput(batch_id=self._request.batch_id, paused=paused)
            await workflow.execute_activity_method(
                DeletionQueueActivities.pause_or_resume_batch, pause, **activity_options.CATALOG
            )
            return self._show_progress(replace(self._progress, paused=paused))

    @workflow.update
    def set_rate(self, request: SetRateInput) -> DeleteLedgersProgress:
        """Set the limit for the rate of deletions. Running activities keep the old limit."""
        return self._show_progress(replace(self._progress, rate=request.objects_per_s))

    @set_rate.validator
    def check_rate(self, request: SetRateInput) -> None:
        require_rate_within_bounds(request)

    def _show_progress(self, progress: DeleteLedgersProgress) -> DeleteLedgersProgress:
        self._progress = progress
        workflow.set_current_details(format_batch(self._progress))
        return self.progress()

    @property
    def _should_continue_as_new(self) -> bool:
        return self._is_history_long or self._children >= self._request.policy.alone

    async def _detach_unless_refused(self, ledgers: ExplicitDetach) -> BatchCertificate | None:
        request = self._request
        detach = DetachInput(
            topic_id=request.topic_id,
            batch_id=request.batch_id,
            batch_workflow_id=workflow.info().workflow_id,
            actor=request.actor,
            reason=request.reason,
            catalog_epoch=request.catalog_epoch,
            ledger_ids=ledgers.ledger_ids,
            force=ledgers.force,
            durable_delete=ledgers.durable_delete,
            remove=ledgers.remove,
            pass_over=ledgers.pass_over,
            generation=ledgers.generation,
        )
        try:
            result = await self._router.execute_at_owner(
                LedgerDeletionActivities.detach, detach, activity_options.CATALOG
            )
        except ActivityError as error:
            refusal = refusal_batch_certificate(request.batch_id, error, compound=bool(ledgers.remove))
            if refusal is None:
                raise
            self._is_filed = True  # a pause may now ask the catalog, which knows no such batch
            return refusal
        self._progress = replace(
            self._progress, detached=result.ledgers, intents=result.intents, finished=result.finished
        )
        self._is_filed = True
        return None

    async def _read_next_ranges(self) -> RowRangesPage:
        """Read the next ranges of rows. Their size lets concurrent chunks end at about the same time."""
        request, parallelism = self._request, max(1, self._request.policy.parallelism)
        max_rows = min(request.policy.chunk, max(1, self._max_rows // parallelism))
        remaining_rows = max(0, self._progress.intents - sum(self._progress.outcomes.values()))
        chunks = _divide_up(remaining_rows, max_rows * parallelism) * parallelism
        rows_per_chunk = (
            min(max_rows, max(_MIN_ROWS_PER_CHUNK, _divide_up(remaining_rows, chunks))) if chunks else max_rows
        )
        ranges_input = RowRangesInput(
            batch_id=request.batch_id,
            catalog_epoch=request.catalog_epoch,
            after=self._progress.after,
            rows=rows_per_chunk,
            limit=_RANGES_PER_PAGE,
        )
        return await workflow.execute_activity_method(
            LedgerDeletionActivities.list_ranges_and_renew_claim, ranges_input, **activity_options.CATALOG
        )

    async def _delete_chunk_and_start_retries(self, chunk: IntentRowRange) -> None:
        remaining: IntentRowRange | None = chunk
        while remaining is not None:
            async with self._chunk_slots:
                await self._renew_claim_while_paused()
                if self._should_continue_as_new:
                    return  # the next run reads the unfinished rows
                result = await self._delete_or_hand_over(remaining)
                self._children += len(result.alone)
            self._progress = add_chunk_result(self._progress, result)
            topics = result.topics or [self._request.topic] * len(result.alone)
            for key, topic in zip(result.alone, topics, strict=True):
                await self._start_delete_ledger(key, topic)
            rows = max(1, remaining.rows - sum(result.outcomes.values()))
            remaining = (
                IntentRowRange(first=result.next_row, last=remaining.last, rows=rows) if result.next_row else None
            )
            if remaining is not None and workflow.info().is_continue_as_new_suggested():
                self._is_history_long = True

    async def _renew_claim_while_paused(self) -> None:
        """Renew the batch's claim until the batch is resumed or the history is long."""
        async with self._hold_lock:
            while self._progress.paused and not self._should_continue_as_new:
                hold = ClaimPausedBatchInput(batch_id=self._request.batch_id)
                await workflow.execute_activity_method(
                    DeletionQueueActivities.claim_paused_batch, hold, **activity_options.CATALOG
                )
                self._is_history_long = workflow.info().is_continue_as_new_suggested()
                with suppress(TimeoutError):
                    await workflow.wait_condition(
                        lambda: not self._progress.paused or self._is_history_long, timeout=_HOLD_INTERVAL
                    )

    async def _delete_or_hand_over(self, rows: IntentRowRange) -> ChunkResult:
        concurrent_chunks = min(self._request.policy.parallelism, self._chunks)
        chunk = ChunkInput(
            batch_id=self._request.batch_id,
            chunk=rows,
            catalog_epoch=self._request.catalog_epoch,
            many_topics=not self._request.topic,
            objects_per_s=self._progress.rate / concurrent_chunks,
        )
        config = _SLICE if chunk.objects_per_s else _CHUNK
        try:
            return await self._router.execute_at_owner(LedgerDeletionActivities.delete_chunk, chunk, config)
        except ActivityError as error:
            failure_type = error.cause.type if isinstance(error.cause, ApplicationError) else None
            if failure_type in {*OWNERSHIP_FAILURES, "ClaimHeld"} or is_cancelled_exception(error):
                raise
            return await self._router.execute_at_owner(
                LedgerDeletionActivities.hand_over_chunk, chunk, activity_options.CATALOG
            )

    async def _start_delete_ledger(self, key: IntentKey, topic: str) -> None:
        policy = self._request.policy
        child = DeleteLedgerInput(
            key=key,
            topic=topic,
            catalog_epoch=self._request.catalog_epoch,
            max_attempts=policy.max_attempts,
            retry_interval_s=policy.retry_interval_s,
            owner_patience_s=policy.owner_patience_s,
        )
        await delete_ledger.start_delete_ledger(child, batch_id=self._request.batch_id)

    def _publish_batch_certificate(self, certificate: BatchCertificate) -> BatchCertificate:
        outcomes = ["REFUSED"] if certificate.refused else sorted(certificate.outcomes)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(outcomes)])
        workflow.set_current_details(format_batch(certificate))
        return certificate


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
