"""`offload-topic`: every closed ledger of a topic has a tiered copy; if asked, that is its only one.

Destroys, only if asked, primary copies of ledgers whose tiered copy was proved; the ledgers stay listed and readable.
Invariant: a ledger's only copy is never removed. To stop it, cancel it: uploads under way are given up, ledgers that
are done stay done; a started `delete-ledgers` goes on by itself.

For each thing that was asked, in turn:
1. Page by page, find closed ledgers without a tiered copy.
2. Give each an `offload-ledger` of its own, `parallelism` at a time; one that fails keeps no other from going on.
3. If asked, page by page: see that storage holds the tiered copies now, take the primary copies of these out of the
   catalog (phase one), and run `delete-ledgers` on that batch (phase two).

An ask that cannot be done is told in the result, and keeps no other from being done.

Source: Pulsar's tiered storage; PIP-186.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes, VersioningBehavior
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from activities.offload import (
        Candidates,
        CandidatesInput,
        LedgerOffload,
        RemovePrimariesInput,
        RemovePrimariesResult,
    )
    from workflows import options, search_attributes
    from workflows.deletion import batches
    from workflows.deletion.values import DELETE_LEDGERS, DeleteLedgersInput, DeleteLedgersProgress
    from workflows.offload.offload_ledger import OffloadLedger
    from workflows.offload.values import (
        OFFLOAD_LEDGER,
        OffloadAsk,
        OffloadLedgerInput,
        OffloadLedgerResult,
        OffloadOutcome,
        OffloadTopicInput,
        OffloadTopicResult,
    )

_PAGE = 50  # ledgers: some 400 events of history, then continue as new if the server suggests it
_REMOVAL_PAGE = 500  # ledgers: two requests to storage each, well within the timeout even of one that hardly answers
_MOST_WAITING = 100_000  # bytes of asks: with samples they are carried on in one payload, well under the 256 KB from
# which servers warn (temporalio/sdk-python#1285)
_ID_BYTES = 20  # of one id in JSON, with its comma
_ASK_BYTES = 100  # of one ask without its texts and ids
_SAMPLE = 20  # of what went wrong, of each kind: told by name, and small however much did
_REMOVAL: workflow.ActivityConfig = {
    **options.CATALOG,
    "start_to_close_timeout": timedelta(hours=1),  # a page of copies proved, by a store that is slow to answer
}


@workflow.defn(name="offload-topic", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class OffloadTopic:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: OffloadTopicInput) -> None:
        """Start from what an earlier run carried over."""
        self._request = request
        self._asks = list(request.asks)
        self._after = request.after
        self._removed_after = request.removed_after
        self._result = request.carried
        self._window = asyncio.Semaphore(max(1, request.policy.parallelism))

    @workflow.run
    async def run(self, request: OffloadTopicInput) -> OffloadTopicResult:
        """Do the numbered steps for everything that was asked."""
        search_attributes.ensure_topic(request.topic)
        while self._asks:
            try:
                await self._serve(self._asks[0])
            except (ActivityError, ChildWorkflowError) as error:
                if workflow.cancellation_reason() is not None:
                    raise
                self._refuse(_sentence(error))
            self._asks.pop(0)
            self._after = self._removed_after = -1
        return self._result

    @workflow.signal
    def ask(self, ask: OffloadAsk) -> None:
        """Ask for more of the same topic; done after what was asked before. Refused where too much is waiting."""
        waiting = sum(map(_weight, self._asks))
        if waiting + _weight(ask) > _MOST_WAITING:
            reason = f"{waiting:,} bytes of asks are waiting, expected at most {_MOST_WAITING:,} with this one"
            self._refuse(f"asked by {ask.actor[:100]}: {reason}; ask again later")
        else:
            self._asks.append(ask)

    @workflow.query
    def progress(self) -> OffloadTopicResult:
        """What was done so far."""
        return self._result

    def _refuse(self, reason: str) -> None:
        """Tell of an ask that was not done, or not to its end."""
        before = self._result
        self._result = replace(before, refused=before.refused + 1, refusals=[*before.refusals, reason[:500]][:_SAMPLE])

    async def _serve(self, ask: OffloadAsk) -> None:
        while (ids := _page(ask.ledger_ids, self._after, _PAGE)) != []:
            page = await self._next_page(ids)
            self._result = replace(self._result, gone=self._result.gone + page.gone)
            await asyncio.gather(*(self._offload(ledger_id) for ledger_id in page.ledger_ids))
            if ids is None and not page.ledger_ids:
                break
            self._after = page.ledger_ids[-1] if ids is None else ids[-1]
            self._show()
            if workflow.info().is_continue_as_new_suggested():
                self._go_on_anew()
        if ask.delete_primary:
            await self._remove_primaries(ask)

    def _go_on_anew(self) -> None:
        anew = replace(
            self._request,
            asks=self._asks,
            after=self._after,
            removed_after=self._removed_after,
            carried=self._result,
        )
        workflow.continue_as_new(anew)

    async def _next_page(self, ids: list[int] | None) -> Candidates:
        page = CandidatesInput(
            topic_id=self._request.topic_id,
            after=self._after,
            limit=_PAGE,
            ledger_ids=ids,
            check=ids is not None,
            topic=self._request.topic,
        )
        return await workflow.execute_activity_method(LedgerOffload.candidates, page, **options.CATALOG)

    async def _offload(self, ledger_id: int) -> None:
        request = OffloadLedgerInput(ledger_id=ledger_id, topic=self._request.topic, policy=self._request.policy)
        async with self._window:
            try:
                self._add(await self._child(ledger_id, request))
            except WorkflowAlreadyStartedError:
                self._result = replace(self._result, running=self._result.running + 1)
            except ChildWorkflowError as error:
                if workflow.cancellation_reason() is not None:  # ours, not that of the child alone
                    raise
                before = self._result
                told = (
                    before.errors if len(before.errors) >= _SAMPLE else {**before.errors, ledger_id: _sentence(error)}
                )
                self._result = replace(before, failed=before.failed + 1, errors=told)

    def _add(self, done: OffloadLedgerResult) -> None:
        before, uploaded = self._result, done.outcome is OffloadOutcome.OFFLOADED
        self._result = replace(
            before,
            offloaded=before.offloaded + uploaded,
            already=before.already + (done.outcome is OffloadOutcome.ALREADY),
            gone=before.gone + (done.outcome is OffloadOutcome.GONE),
            size_bytes=before.size_bytes + done.size_bytes * uploaded,
        )

    async def _child(self, ledger_id: int, request: OffloadLedgerInput) -> OffloadLedgerResult:
        return await workflow.execute_child_workflow(
            OffloadLedger.run,
            request,
            id=OFFLOAD_LEDGER.id(ledger_id),
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            static_summary=f"ledger {ledger_id} of {self._request.topic}",
            static_details=request.details(),
            search_attributes=TypedSearchAttributes(
                [
                    SearchAttributePair(search_attributes.TOPIC, self._request.topic),
                    SearchAttributePair(search_attributes.LEDGER_ID, ledger_id),
                ]
            ),
        )

    async def _remove_primaries(self, ask: OffloadAsk) -> None:
        while (ids := _page(ask.ledger_ids, self._removed_after, _REMOVAL_PAGE)) != []:
            found = await self._remove_page(ask, ids)
            if found.next_after is not None:
                self._removed_after = found.next_after
            elif ids is None:
                return
            else:
                self._removed_after = ids[-1]
            if workflow.info().is_continue_as_new_suggested():
                self._go_on_anew()

    async def _remove_page(self, ask: OffloadAsk, ids: list[int] | None) -> RemovePrimariesResult:
        batch_id = f"{self._request.topic_id}-{workflow.uuid4().hex[:12]}"
        found = await workflow.execute_activity_method(
            LedgerOffload.remove_primaries,
            RemovePrimariesInput(
                topic_id=self._request.topic_id,
                batch_id=batch_id,
                batch_workflow_id=DELETE_LEDGERS.id(batch_id),
                actor=ask.actor,
                reason=ask.reason,
                ledger_ids=ids,
                after=self._removed_after,
                limit=_REMOVAL_PAGE,
            ),
            **_REMOVAL,
        )
        if found.intents:
            progress = DeleteLedgersProgress(intents=found.intents, detached=found.ledgers)
            await self._phase_two(ask, batch_id, found.catalog_epoch, progress)
        before = self._result
        self._result = replace(
            before,
            removed=before.removed + found.ledgers,
            unproved=before.unproved + found.unproved,
            doubts=dict([*before.doubts.items(), *found.doubts.items()][:_SAMPLE]),
        )
        self._show()
        return found

    async def _phase_two(self, ask: OffloadAsk, batch_id: str, epoch: int, progress: DeleteLedgersProgress) -> None:
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
        done = await (await batches.start_batch(batch, summary=summary))
        self._result = replace(self._result, outcomes=batches.add_counts(self._result.outcomes, done.outcomes))

    def _show(self) -> None:
        done = self._result
        workflow.set_current_details(
            f"{done.offloaded:,} ledgers offloaded, {done.size_bytes:,} bytes; {done.failed:,} failed; "
            f"{done.removed:,} primary copies removed, {done.unproved:,} kept: their tiered copy was not proved"
        )


def _page(ledger_ids: list[int] | None, after: int, limit: int) -> list[int] | None:
    """The next of the ids asked for; None: of all there are."""
    return None if ledger_ids is None else sorted({one for one in ledger_ids if one > after})[:limit]


def _weight(ask: OffloadAsk) -> int:
    """Bytes, about, that the ask takes where it is carried on."""
    texts = len(ask.actor.encode()) + len(ask.reason.encode())
    return _ASK_BYTES + texts + _ID_BYTES * len(ask.ledger_ids or ())


def _sentence(error: BaseException) -> str:
    """The innermost cause that says something."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    name = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    text = cause.message if isinstance(cause, FailureError) else str(cause)
    return f"{name}: {text}"[:500]
