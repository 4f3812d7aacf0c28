"""`transaction-coordinator`: the group commit of one coordinator's decided transactions, and its deadlines.

Destroys nothing. Invariant: each decided transaction is told to every participant; SQL is the queue, so that neither a
lost signal nor a restart loses one. It runs for as long as the catalog does. To stop it, terminate it: the next
transaction or `sweep-transactions` starts it again.

1. Drain: abort what has timed out, tell the participants of what is decided, in batches.
2. Hand each transaction with a participant that cannot be told to a `broadcast-transaction` of its own.
3. Wait for a signal, or for the next deadline; go on from 1.

Source: Pulsar's transaction coordinator and its timeout tracker.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from activities.transactions.coordination import Coordination
    from activities.transactions.values import Drained, DrainInput
    from workflows import options, search_attributes
    from workflows.transactions.values import (
        BROADCAST_TRANSACTION,
        BroadcastTransactionInput,
        CoordinatorInput,
        CoordinatorProgress,
    )


def _drain(queue: str) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=5),  # ten times what it works before it answers
        heartbeat_timeout=options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),  # unlimited: waits for catalog and storage
    )


_BEHIND_S = 0.05  # after a deadline: the catalog's clock is not the server's
_SHOWN = 20


@workflow.defn(name="transaction-coordinator", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TransactionCoordinator:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: CoordinatorInput) -> None:
        """Start from what an earlier run carried over; the first drain finds all that it may have missed."""
        self._request = request
        self._progress = request.carried or CoordinatorProgress()
        self._woken = True

    @workflow.run
    async def run(self, request: CoordinatorInput) -> CoordinatorProgress:
        """Do the numbered steps for ever."""
        deadline_s: float | None = None
        while True:
            with suppress(asyncio.TimeoutError):
                wait = None if deadline_s is None else timedelta(seconds=deadline_s + _BEHIND_S)
                await workflow.wait_condition(lambda: self._woken, timeout=wait)
            self._woken = False
            drained = await workflow.execute_activity_method(
                Coordination.drain,
                DrainInput(tc_id=request.tc_id, linger_s=request.linger_s),
                **_drain(request.queue),
            )
            self._tell(drained, await self._hand_over(drained))
            self._woken = self._woken or drained.more
            deadline_s = drained.next_deadline_s
            if workflow.info().is_continue_as_new_suggested():  # a signal that comes now is in the next run's history
                workflow.continue_as_new(replace(request, carried=self._progress))

    @workflow.signal
    def wake(self) -> None:
        """A transaction was begun or decided."""
        self._woken = True

    @workflow.query
    def progress(self) -> CoordinatorProgress:
        """What was done since the coordinator was started."""
        return self._progress

    async def _hand_over(self, drained: Drained) -> list[str]:
        """Start broadcasts; which were started here, and not by an earlier answer or by another coordinator."""
        started = list[str]()
        for txn in drained.handed_over:
            request = BroadcastTransactionInput(txn=txn, queue=self._request.queue)
            with suppress(WorkflowAlreadyStartedError):
                await workflow.start_child_workflow(
                    BROADCAST_TRANSACTION.name,
                    request,
                    id=BROADCAST_TRANSACTION.id(txn.replace(":", "-")),
                    parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                    search_attributes=search_attributes.transaction_attributes(txn, "OWED"),
                    static_summary=f"tell the participants of {txn}",
                    static_details=request.details(),
                )
                started.append(txn)
        return started

    def _tell(self, drained: Drained, started: list[str]) -> None:
        before = self._progress
        self._progress = CoordinatorProgress(
            finished=before.finished + drained.finished,
            expired=before.expired + drained.expired,
            handed_over=before.handed_over + len(started),
            drains=before.drains + 1,
            owed=[*before.owed, *started][-_SHOWN:],
        )
        found = self._progress
        owed = "".join(f"- handed over: **{txn}**\n" for txn in found.owed)
        workflow.set_current_details(
            f"{found.finished:,} transactions told, {found.expired:,} timed out, {found.handed_over:,} handed over"
            f" to a broadcast of their own\n\n{owed}"
        )
