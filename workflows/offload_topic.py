"""`offload-topic`: every closed ledger of a topic has a tiered copy; if asked, that is its only one.

Destroys, only if asked, primary copies of ledgers whose tiered copy was proved; the ledgers stay listed and readable.
Invariant: a ledger's only copy is never removed. To stop it, cancel it: uploads under way are given up, ledgers that
are done stay done; a started `delete-ledgers` goes on by itself.

For each thing that was asked, in turn:
1. Page by page, find closed ledgers without a tiered copy.
2. Give each an `offload-ledger` of its own, `parallelism` at a time; one that fails keeps no other from going on.
3. If asked, page by page: see that storage holds the tiered copies now, take the primary copies of these out of the
   catalog (phase one), and run `delete-ledgers` on that batch (phase two).

Source: Pulsar's tiered storage; PIP-186.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from activities.deletion import Certificate
    from activities.offload import (
        Candidates,
        CandidatesInput,
        LedgerOffload,
        RemovePrimariesInput,
        RemovePrimariesResult,
    )
    from workflows import delete_ledgers, offload_ledger, search_attributes
    from workflows.delete_ledgers import DeleteLedgers
    from workflows.offload_ledger import OffloadLedger
    from workflows.values import (
        DeleteLedgersInput,
        DeleteLedgersProgress,
        OffloadAsk,
        OffloadLedgerInput,
        OffloadLedgerResult,
        OffloadOutcome,
        OffloadTopicInput,
        OffloadTopicResult,
    )

_PAGE = 50  # ledgers: some 400 events of history, then continue as new if the server suggests it
_REMOVAL_PAGE = 500  # ledgers: two requests to storage each, well within the timeout even of one that hardly answers
_SAMPLE = 20  # failures that are told by name
_SQL = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=5),  # a page of rows, with room for a catalog that is busy
    heartbeat_timeout=timedelta(seconds=10),  # a killed worker is noticed within this
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)
_REMOVAL = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(hours=1),  # a page of copies proved, by a store that is slow to answer
    heartbeat_timeout=timedelta(seconds=10),  # a killed worker is noticed within this
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the catalog to come back
)


def workflow_id(topic_id: int) -> str:
    """`offload-topic/{topic_id}`: one at a time a topic; a name created again has another id."""
    return f"offload-topic/{topic_id}"


@workflow.defn(name="offload-topic")
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
        offload_ledger.check_policy(request.policy)
        delete_ledgers.check_policy(request.deletion)
        search_attributes.ensure_topic(request.topic)
        while self._asks:
            while (page := await self._next_page(self._asks[0])).ledger_ids:
                await asyncio.gather(*(self._offload(ledger_id) for ledger_id in page.ledger_ids))
                self._after = page.ledger_ids[-1]
                self._show()
                if workflow.info().is_continue_as_new_suggested():
                    self._go_on_anew()
            if self._asks[0].delete_primary:
                await self._remove_primaries(self._asks[0])
            self._asks.pop(0)
            self._after = self._removed_after = -1
        return self._result

    @workflow.signal
    def ask(self, ask: OffloadAsk) -> None:
        """Ask for more of the same topic; done after what was asked before."""
        self._asks.append(ask)

    @workflow.query
    def progress(self) -> OffloadTopicResult:
        """What was done so far."""
        return self._result

    def _go_on_anew(self) -> None:
        anew = replace(
            self._request,
            asks=self._asks,
            after=self._after,
            removed_after=self._removed_after,
            carried=self._result,
        )
        workflow.continue_as_new(anew)

    async def _next_page(self, ask: OffloadAsk) -> Candidates:
        page = CandidatesInput(
            topic_id=self._request.topic_id,
            after=self._after,
            limit=_PAGE,
            ledger_ids=ask.ledger_ids,
            check=self._after < 0,
        )
        return await workflow.execute_activity_method(LedgerOffload.candidates, page, **_SQL)

    async def _offload(self, ledger_id: int) -> None:
        request = OffloadLedgerInput(ledger_id=ledger_id, topic=self._request.topic, policy=self._request.policy)
        async with self._window:
            try:
                self._count(await self._child(ledger_id, request))
            except WorkflowAlreadyStartedError:
                self._result = replace(self._result, running=self._result.running + 1)
            except ChildWorkflowError as error:
                if is_cancelled_exception(error):
                    raise
                self._failed(ledger_id, error)

    async def _child(self, ledger_id: int, request: OffloadLedgerInput) -> OffloadLedgerResult:
        return await workflow.execute_child_workflow(
            OffloadLedger.run,
            request,
            id=offload_ledger.workflow_id(ledger_id),
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
            static_summary=f"ledger {ledger_id} of {self._request.topic}",
            search_attributes=TypedSearchAttributes(
                [
                    SearchAttributePair(search_attributes.TOPIC, self._request.topic),
                    SearchAttributePair(search_attributes.LEDGER_ID, ledger_id),
                ]
            ),
        )

    def _count(self, done: OffloadLedgerResult) -> None:
        before = self._result
        uploaded = done.outcome is OffloadOutcome.OFFLOADED
        self._result = replace(
            before,
            offloaded=before.offloaded + uploaded,
            already=before.already + (done.outcome is OffloadOutcome.ALREADY),
            gone=before.gone + (done.outcome is OffloadOutcome.GONE),
            size_bytes=before.size_bytes + done.size_bytes * uploaded,
        )

    def _failed(self, ledger_id: int, error: ChildWorkflowError) -> None:
        before = self._result
        told = before.errors if len(before.errors) >= _SAMPLE else {**before.errors, ledger_id: _sentence(error)}
        self._result = replace(before, failed=before.failed + 1, errors=told)

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
        """Abandoned by this one's end: intents are filed, so their deletion must not stop with the offload."""
        batch_id = f"{self._request.topic_id}-{workflow.uuid4().hex[:12]}"
        found = await workflow.execute_activity_method(
            LedgerOffload.remove_primaries,
            RemovePrimariesInput(
                topic_id=self._request.topic_id,
                batch_id=batch_id,
                batch_workflow_id=delete_ledgers.workflow_id(batch_id),
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
        done: Certificate = await workflow.execute_child_workflow(
            DeleteLedgers.run,
            DeleteLedgersInput(
                batch_id=batch_id,
                topic_id=self._request.topic_id,
                topic=self._request.topic,
                catalog_epoch=epoch,
                actor=ask.actor,
                reason=ask.reason,
                policy=self._request.deletion,
                carried=progress,
            ),
            id=delete_ledgers.workflow_id(batch_id),
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            static_summary=f"{progress.intents} primary copies of {self._request.topic}",
            search_attributes=TypedSearchAttributes(
                [
                    SearchAttributePair(search_attributes.TOPIC, self._request.topic),
                    SearchAttributePair(search_attributes.RUN_ID, batch_id),
                ]
            ),
        )
        self._result = replace(self._result, outcomes=_added(self._result.outcomes, done.outcomes))

    def _show(self) -> None:
        done = self._result
        workflow.set_current_details(
            f"{done.offloaded:,} ledgers offloaded, {done.size_bytes:,} bytes; {done.failed:,} failed; "
            f"{done.removed:,} primary copies removed, {done.unproved:,} kept: their tiered copy was not proved"
        )


def _page(ledger_ids: list[int] | None, after: int, limit: int) -> list[int] | None:
    """The next of the ids asked for; None: of all there are."""
    return None if ledger_ids is None else sorted({one for one in ledger_ids if one > after})[:limit]


def _sentence(error: ChildWorkflowError) -> str:
    """The innermost cause that says something."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    name = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    return f"{name}: {cause}"[:500]


def _added(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in sorted({*left, *right})}
