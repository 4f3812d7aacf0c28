"""`offload-topic`: give every closed ledger of a topic a tiered copy, and on request remove the primary copies.

Destroys primary copies, only on request, and only if storage has proved the tiered copy. The ledgers stay in the
topic's list and readable. Invariant: a ledger's only copy is never removed. To stop it, cancel it. Running uploads are
abandoned, offloaded ledgers stay offloaded, and a `delete-ledgers` that has started continues.

For each request, in turn:

1. Page by page, find closed ledgers without a tiered copy.
2. Run an `offload-ledger` for each ledger, `parallelism` at a time. A failed ledger does not block other ledgers.
3. If the request has `delete_primary`, remove primary copies, page by page: prove the tiered copies, detach the primary
   copies of a page as one batch (phase one), and run `delete-ledgers` on this batch (phase two).

The result names requests that failed. A failed request does not block other requests.

Source: Pulsar's tiered storage; PIP-186.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import TypedSearchAttributes, VersioningBehavior
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from activities.offload import (
        DetachPrimariesInput,
        DetachPrimariesResult,
        LedgerOffloadActivities,
        LedgersToOffload,
        LedgersToOffloadInput,
    )
    from workflows import activity_options, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.job_definitions import DELETE_LEDGERS, DeleteLedgersInput, DeleteLedgersProgress
    from workflows.offload.job_definitions import (
        OFFLOAD_LEDGER,
        OffloadAsk,
        OffloadLedgerInput,
        OffloadLedgerResult,
        OffloadOutcome,
        OffloadTopicInput,
        OffloadTopicResult,
    )
    from workflows.offload.offload_ledger import OffloadLedger

_LEDGERS_PER_PAGE = 50  # some 400 events of history, after which the workflow may continue as new
_LEDGERS_PER_REMOVAL = 500  # two requests to storage per ledger, within the timeout even if storage is slow
# The next run gets requests and samples in one workflow payload. Servers warn from 256 KB on
# (temporalio/sdk-python#1285).
_MAX_WAITING_BYTES = 100_000
_BYTES_PER_ID = 20  # size of one id in JSON, with its comma
_BYTES_PER_ASK = 100  # size of one request without its texts and ids
_MAX_NAMED_PROBLEMS = 20  # problems of each kind that a result names, so that results stay small
_REMOVAL: workflow.ActivityConfig = {
    **activity_options.CATALOG,
    "start_to_close_timeout": timedelta(hours=1),  # time to prove a page of copies, even if the store is slow
}


@workflow.defn(name="offload-topic", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class OffloadTopic:
    @workflow.init
    def __init__(self, request: OffloadTopicInput) -> None:
        self._request = request
        self._asks = list(request.asks)
        self._after = request.after
        self._removed_after = request.removed_after
        self._result = request.carried
        self._offload_slots = asyncio.Semaphore(max(1, request.policy.parallelism))

    @workflow.run
    async def run(self, request: OffloadTopicInput) -> OffloadTopicResult:
        search_attributes.ensure_topic(request.topic)
        while self._asks:
            try:
                await self._serve_ask(self._asks[0])
            except (ActivityError, ChildWorkflowError) as error:
                if workflow.cancellation_reason() is not None:
                    raise
                self._record_refused_ask(_describe_error(error))
            self._asks.pop(0)
            self._after = self._removed_after = -1
        return self._result

    @workflow.signal
    def ask(self, ask: OffloadAsk) -> None:
        """Add a request for the same topic. If the waiting requests have too many bytes, the new request is refused."""
        waiting = sum(map(_size_of_ask, self._asks))
        if waiting + _size_of_ask(ask) > _MAX_WAITING_BYTES:
            reason = f"{waiting:,} bytes of asks are waiting, expected at most {_MAX_WAITING_BYTES:,} with this one"
            self._record_refused_ask(f"asked by {ask.actor[:100]}: {reason}; ask again later")
        else:
            self._asks.append(ask)

    @workflow.query
    def progress(self) -> OffloadTopicResult:
        """Return the numbers of ledgers by result so far."""
        return self._result

    def _record_refused_ask(self, reason: str) -> None:
        before = self._result
        self._result = replace(
            before, refused=before.refused + 1, refusals=[*before.refusals, reason[:500]][:_MAX_NAMED_PROBLEMS]
        )

    async def _serve_ask(self, ask: OffloadAsk) -> None:
        while (ids := _next_ids(ask.ledger_ids, self._after, _LEDGERS_PER_PAGE)) != []:
            page = await self._find_candidates(ids)
            self._result = replace(self._result, gone=self._result.gone + page.gone)
            await asyncio.gather(*(self._offload_ledger(ledger_id) for ledger_id in page.ledger_ids))
            if ids is None and not page.ledger_ids:
                break
            self._after = page.ledger_ids[-1] if ids is None else ids[-1]
            self._show_progress()
            if workflow.info().is_continue_as_new_suggested():
                self._continue_as_new()
        if ask.delete_primary:
            await self._remove_primaries(ask)

    def _continue_as_new(self) -> None:
        anew = replace(
            self._request,
            asks=self._asks,
            after=self._after,
            removed_after=self._removed_after,
            carried=self._result,
        )
        workflow.continue_as_new(anew)

    async def _find_candidates(self, requested_ledger_ids: list[int] | None) -> LedgersToOffload:
        candidates_input = LedgersToOffloadInput(
            topic_id=self._request.topic_id,
            after=self._after,
            limit=_LEDGERS_PER_PAGE,
            ledger_ids=requested_ledger_ids,
            check=requested_ledger_ids is not None,
            topic=self._request.topic,
        )
        return await workflow.execute_activity_method(
            LedgerOffloadActivities.list_ledgers_to_offload, candidates_input, **activity_options.CATALOG
        )

    async def _offload_ledger(self, ledger_id: int) -> None:
        request = OffloadLedgerInput(ledger_id=ledger_id, topic=self._request.topic, policy=self._request.policy)
        async with self._offload_slots:
            try:
                self._add_ledger_result(await self._run_offload_ledger_workflow(request))
            except WorkflowAlreadyStartedError:
                self._result = replace(self._result, running=self._result.running + 1)
            except ChildWorkflowError as error:
                if workflow.cancellation_reason() is not None:  # this workflow was cancelled, not only the child
                    raise
                before = self._result
                errors = (
                    before.errors
                    if len(before.errors) >= _MAX_NAMED_PROBLEMS
                    else {**before.errors, ledger_id: _describe_error(error)}
                )
                self._result = replace(before, failed=before.failed + 1, errors=errors)

    def _add_ledger_result(self, result: OffloadLedgerResult) -> None:
        before, is_uploaded = self._result, result.outcome is OffloadOutcome.OFFLOADED
        self._result = replace(
            before,
            offloaded=before.offloaded + is_uploaded,
            already=before.already + (result.outcome is OffloadOutcome.ALREADY),
            gone=before.gone + (result.outcome is OffloadOutcome.GONE),
            size_bytes=before.size_bytes + result.size_bytes * is_uploaded,
        )

    async def _run_offload_ledger_workflow(self, request: OffloadLedgerInput) -> OffloadLedgerResult:
        return await workflow.execute_child_workflow(
            OffloadLedger.run,
            request,
            id=OFFLOAD_LEDGER.id_of_request(request),
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            static_summary=OFFLOAD_LEDGER.summary(request),
            static_details=request.details(),
            search_attributes=TypedSearchAttributes(search_attributes.list_attributes_of_request(request)),
        )

    async def _remove_primaries(self, ask: OffloadAsk) -> None:
        while (ids := _next_ids(ask.ledger_ids, self._removed_after, _LEDGERS_PER_REMOVAL)) != []:
            page_result = await self._detach_and_delete_primaries_page(ask, ids)
            if page_result.next_after is not None:
                self._removed_after = page_result.next_after
            elif ids is None:
                return
            else:
                self._removed_after = ids[-1]
            if workflow.info().is_continue_as_new_suggested():
                self._continue_as_new()

    async def _detach_and_delete_primaries_page(self, ask: OffloadAsk, ids: list[int] | None) -> DetachPrimariesResult:
        batch_id = f"{self._request.topic_id}-{workflow.uuid4().hex[:12]}"
        page_result = await workflow.execute_activity_method(
            LedgerOffloadActivities.prove_and_detach_primaries,
            DetachPrimariesInput(
                topic_id=self._request.topic_id,
                batch_id=batch_id,
                batch_workflow_id=DELETE_LEDGERS.id(batch_id),
                actor=ask.actor,
                reason=ask.reason,
                ledger_ids=ids,
                after=self._removed_after,
                limit=_LEDGERS_PER_REMOVAL,
            ),
            **_REMOVAL,
        )
        if page_result.intents:
            progress = DeleteLedgersProgress(intents=page_result.intents, detached=page_result.ledgers)
            await self._run_phase_two(ask, batch_id, page_result.catalog_epoch, progress)
        before = self._result
        self._result = replace(
            before,
            removed=before.removed + page_result.ledgers,
            unproved=before.unproved + page_result.unproved,
            doubts=dict([*before.doubts.items(), *page_result.doubts.items()][:_MAX_NAMED_PROBLEMS]),
        )
        self._show_progress()
        return page_result

    async def _run_phase_two(self, ask: OffloadAsk, batch_id: str, epoch: int, progress: DeleteLedgersProgress) -> None:
        batch = DeleteLedgersInput(
            batch_id=batch_id,
            topic_id=self._request.topic_id,
            topic=self._request.topic,
            catalog_epoch=epoch,
            actor=ask.actor,
            reason=ask.reason,
            policy=self._request.deletion,
            carried=progress,
        )
        summary = f"{progress.intents} primary copies of {self._request.topic}"
        deleted = await (await batches.start_batch(batch, summary=summary))
        self._result = replace(self._result, outcomes=batches.add_counts(self._result.outcomes, deleted.outcomes))

    def _show_progress(self) -> None:
        result = self._result
        workflow.set_current_details(
            f"{result.offloaded:,} ledgers offloaded, {result.size_bytes:,} bytes; {result.failed:,} failed; "
            f"{result.removed:,} primary copies removed, {result.unproved:,} kept: their tiered copy was not proved"
        )


def _next_ids(ledger_ids: list[int] | None, after: int, limit: int) -> list[int] | None:
    return None if ledger_ids is None else sorted({ledger_id for ledger_id in ledger_ids if ledger_id > after})[:limit]


def _size_of_ask(ask: OffloadAsk) -> int:
    texts = len(ask.actor.encode()) + len(ask.reason.encode())
    return _BYTES_PER_ASK + texts + _BYTES_PER_ID * len(ask.ledger_ids or ())


def _describe_error(error: BaseException) -> str:
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    name = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    text = cause.message if isinstance(cause, FailureError) else str(cause)
    return f"{name}: {text}"[:500]
