"""`delete-ledgers`: every intent of one batch ends, or is handed to a `delete-ledger` of its own.

Destroys the objects of the batch's ledgers. Invariant: rows, claims and outcomes live in SQL; this workflow only
drives. To stop it for a while, pause it; for good, terminate it: unfinished rows stay listed, and the next sweep, or
the topic's next trim, takes them up.

1. Asked for given ledgers: detach them (phase one). A trim has done so already. What a guard refuses ends the batch
   as completed: nothing changed, and the result says why.
2. Page by page, delete chunks of rows, `parallelism` at a time; hand failing rows to children of their own. While
   paused, which the catalog knows before the operator is answered, start none. At a limited rate, chunks come in
   slices. What is of one topic is done at its owner; a batch of several topics has no owner.
3. Certify: count the batch from its rows, close its run, write the audit row.

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
    from activities.deletion.ledger_deletion import LedgerDeletion
    from activities.deletion.upkeep import DeletionUpkeep
    from activities.deletion.values import (
        CertifyInput,
        ChunkInput,
        ChunkResult,
        DetachInput,
        HoldBatchInput,
        PauseBatchInput,
        RangesInput,
        RangesPage,
    )
    from logstore.deletion.intents import BatchCertificate, IntentKey
    from logstore.ports.catalog import RowRange
    from workflows import options, search_attributes
    from workflows.deletion import delete_ledger
    from workflows.deletion.batches import (
        add_chunk,
        complete_certificate,
        format_batch,
        refusal_certificate,
        require_rate,
        stale_certificate,
    )
    from workflows.deletion.values import (
        DeleteLedgerInput,
        DeleteLedgersInput,
        DeleteLedgersProgress,
        ExplicitDetach,
        SetRate,
    )
    from workflows.dispatch import OWNERSHIP_FAILURES, Dispatch

_PAGE = 50  # ranges: some 500 events of history, then continue as new if the server suggests it
_FEWEST = 5  # rows worth an activity of their own, which costs as much as a few listings
_MOST_ROWS = 1_000  # in all chunks at once: were every one of them to fail, each would start a child
_MOST_NAMED = 500  # where each row has a topic of its own: the names of a chunk travel, 200 characters each

_CHUNK = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),  # 100 ledgers of 1,000 segments at 30 objects a second
    heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=60), maximum_attempts=10),  # then row by row
)
_SLICE: workflow.ActivityConfig = {
    **_CHUNK,
    "start_to_close_timeout": timedelta(hours=24),  # at a limited rate one ledger may take long: 86,400 objects at 1/s
}
_HELD_AGAIN = timedelta(minutes=10)  # while paused: two thirds of the claim


@workflow.defn(name="delete-ledgers", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class DeleteLedgers:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: DeleteLedgersInput) -> None:
        """Start from what an earlier run of this batch carried over."""
        self._request = request
        self._progress = request.carried
        self._dispatch = Dispatch(request.topic, owner=request.owner, patience_s=request.policy.owner_patience_s)
        self._window = asyncio.Semaphore(max(1, request.policy.parallelism))
        self._alone = 0
        self._chunks = 1  # of the page in work
        self._tired = False  # the history is long enough: what is left is the next run's
        self._pausing = asyncio.Lock()  # of all chunks that wait, one keeps the claim alive
        self._telling = asyncio.Lock()  # of pausing and resuming, the catalog hears in the order in which they came
        self._filed = request.detach is None  # before, the catalog knows of no batch that could be paused
        self._most_rows = _MOST_ROWS if request.topic else _MOST_NAMED

    @workflow.run
    async def run(self, request: DeleteLedgersInput) -> BatchCertificate:
        """Do the numbered steps."""
        search_attributes.ensure_topic(request.topic)
        if request.detach and (refusal := await self._phase_one(request.detach)):
            await workflow.wait_condition(workflow.all_handlers_finished)
            return self._ended(refusal)
        while (page := await self._next_page()).ranges:
            self._chunks = len(page.ranges)
            await asyncio.gather(*(self._delete(part) for part in page.ranges))
            if not self._leaves_off:
                self._progress = replace(self._progress, after=page.ranges[-1].last)
            workflow.set_current_details(format_batch(self._progress))
            if self._leaves_off or workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                carried = replace(request, detach=None, carried=self._progress, owner=self._dispatch.owner)
                workflow.continue_as_new(carried)
        if page.stale:
            counted = stale_certificate(request.batch_id, self._progress)
        else:
            close = CertifyInput(batch_id=request.batch_id, actor=request.actor, reason=request.reason)
            counted = await self._dispatch.execute(LedgerDeletion.certify, close, options.CATALOG)
        whole = self._ended(replace(complete_certificate(counted, self._progress), owner=self._dispatch.owner))
        await workflow.wait_condition(workflow.all_handlers_finished)
        return whole

    @workflow.query
    def progress(self) -> DeleteLedgersProgress:
        """How far the batch is."""
        done = sum(self._progress.outcomes.values())
        return replace(self._progress, done=done, left=max(0, self._progress.intents - done))

    @workflow.update
    async def pause(self) -> DeleteLedgersProgress:
        """Start no chunk from now on; those in hand end."""
        self._progress = replace(self._progress, paused=True)
        return await self._tell(paused=True)

    @workflow.update
    async def resume(self) -> DeleteLedgersProgress:
        """Go on."""
        return await self._tell(paused=False)

    async def _tell(self, *, paused: bool) -> DeleteLedgersProgress:
        """Have the catalog keep it, so that it outlasts the claim of a batch whose workers are away."""
        async with self._telling:
            await workflow.wait_condition(lambda: self._filed)
            told = PauseBatchInput(batch_id=self._request.batch_id, paused=paused)
            await workflow.execute_activity_method(DeletionUpkeep.pause_batch, told, **options.CATALOG)
            return self._changed(replace(self._progress, paused=paused))

    @workflow.update
    def set_rate(self, wanted: SetRate) -> DeleteLedgersProgress:
        """Delete no faster from the next slice on; one that was begun without a limit ends without it."""
        return self._changed(replace(self._progress, rate=wanted.objects_per_s))

    @set_rate.validator
    def check_rate(self, wanted: SetRate) -> None:
        """Refuse what is no rate, before it is in the history."""
        require_rate(wanted)

    def _changed(self, progress: DeleteLedgersProgress) -> DeleteLedgersProgress:
        self._progress = progress
        workflow.set_current_details(format_batch(self._progress))
        return self.progress()

    @property
    def _leaves_off(self) -> bool:
        return self._tired or self._alone >= self._request.policy.alone

    async def _phase_one(self, asked: ExplicitDetach) -> BatchCertificate | None:
        request = self._request
        detach = DetachInput(
            topic_id=request.topic_id,
            batch_id=request.batch_id,
            batch_workflow_id=workflow.info().workflow_id,
            actor=request.actor,
            reason=request.reason,
            catalog_epoch=request.catalog_epoch,
            ledger_ids=asked.ledger_ids,
            force=asked.force,
            durable_delete=asked.durable_delete,
            remove=asked.remove,
            pass_over=asked.pass_over,
            generation=asked.generation,
        )
        try:
            done = await self._dispatch.execute(LedgerDeletion.detach, detach, options.CATALOG)
        except ActivityError as error:
            refusal = refusal_certificate(request.batch_id, error, compound=bool(asked.remove))
            if refusal is None:
                raise
            self._filed = True  # an operator who pauses it is told by the catalog that there is no such batch
            return refusal
        self._progress = replace(self._progress, detached=done.ledgers, intents=done.intents, finished=done.finished)
        self._filed = True
        return None

    async def _next_page(self) -> RangesPage:
        """The next ranges; what is left is shared out, so that as many chunks as may run at once end together."""
        request, at_once = self._request, max(1, self._request.policy.parallelism)
        most = min(request.policy.chunk, max(1, self._most_rows // at_once))
        left = max(0, self._progress.intents - sum(self._progress.outcomes.values()))
        chunks = -(-left // (most * at_once)) * at_once
        page = RangesInput(
            batch_id=request.batch_id,
            catalog_epoch=request.catalog_epoch,
            after=self._progress.after,
            rows=min(most, max(_FEWEST, -(-left // chunks))) if chunks else most,
            limit=_PAGE,
        )
        return await workflow.execute_activity_method(LedgerDeletion.next_ranges, page, **options.CATALOG)

    async def _delete(self, part: RowRange) -> None:
        left: RowRange | None = part
        while left is not None:
            async with self._window:
                await self._while_paused()
                if self._leaves_off:
                    return  # left for the next run, which meets only what is unfinished
                result = await self._delete_or_hand_over(left)
                self._alone += len(result.alone)
            self._progress = add_chunk(self._progress, result)
            topics = result.topics or [self._request.topic] * len(result.alone)
            for key, topic in zip(result.alone, topics, strict=True):
                await self._start_alone(key, topic)
            rows = max(1, left.rows - sum(result.outcomes.values()))
            left = RowRange(first=result.next_row, last=left.last, rows=rows) if result.next_row else None  # of a slice
            self._tired = self._tired or (left is not None and workflow.info().is_continue_as_new_suggested())

    async def _while_paused(self) -> None:
        """Wait for `resume` with the batch claimed, or until the history is long enough."""
        async with self._pausing:
            while self._progress.paused and not self._leaves_off:
                hold = HoldBatchInput(batch_id=self._request.batch_id)
                await workflow.execute_activity_method(DeletionUpkeep.hold_batch, hold, **options.CATALOG)
                self._tired = workflow.info().is_continue_as_new_suggested()
                with suppress(TimeoutError):
                    await workflow.wait_condition(lambda: not self._progress.paused or self._tired, timeout=_HELD_AGAIN)

    async def _delete_or_hand_over(self, part: RowRange) -> ChunkResult:
        at_once = min(self._request.policy.parallelism, self._chunks)
        chunk = ChunkInput(
            batch_id=self._request.batch_id,
            chunk=part,
            catalog_epoch=self._request.catalog_epoch,
            many_topics=not self._request.topic,
            objects_per_s=self._progress.rate / at_once,
        )
        patience = _SLICE if chunk.objects_per_s else _CHUNK
        try:
            return await self._dispatch.execute(LedgerDeletion.delete_chunk, chunk, patience)
        except ActivityError as error:
            held = isinstance(error.cause, ApplicationError) and error.cause.type in {*OWNERSHIP_FAILURES, "ClaimHeld"}
            if held or is_cancelled_exception(error):
                raise
            return await self._dispatch.execute(LedgerDeletion.hand_over_chunk, chunk, options.CATALOG)

    async def _start_alone(self, key: IntentKey, topic: str) -> None:
        policy = self._request.policy
        alone = DeleteLedgerInput(
            key=key,
            topic=topic,
            catalog_epoch=self._request.catalog_epoch,
            max_attempts=policy.max_attempts,
            retry_interval_s=policy.retry_interval_s,
            owner_patience_s=policy.owner_patience_s,
        )
        await delete_ledger.start_delete_ledger(alone, batch_id=self._request.batch_id)

    def _ended(self, whole: BatchCertificate) -> BatchCertificate:
        outcomes = ["REFUSED"] if whole.refused else sorted(whole.outcomes)
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(outcomes)])
        workflow.set_current_details(format_batch(whole))
        return whole
