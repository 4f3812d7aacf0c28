"""`transaction-coordinator`: abort expired transactions of one coordinator, and broadcast decided transactions.

Destroys nothing. Invariant: every participant is told. The queue is a table in SQL, so neither a lost signal nor a
restart loses a transaction. The workflow runs as long as the catalog exists. To stop it, terminate it. The next
transaction or `sweep-transactions` starts it again.

1. Drain: abort expired transactions, and broadcast decided transactions in batches.
2. Start a `broadcast-transaction` for each transaction with a participant that failed.
3. Wait for a signal or the next deadline, and repeat from step 1.

Source: Pulsar's transaction coordinator and its timeout tracker.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributePair, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.transactions.coordinate_transactions import (
        DrainInput,
        DrainResult,
        TransactionCoordinatorActivities,
    )
    from workflows import activity_options, child_jobs, search_attributes
    from workflows.transactions.job_definitions import (
        BROADCAST_TRANSACTION,
        BroadcastTransactionInput,
        CoordinatorInput,
        CoordinatorProgress,
    )


def _drain_options(queue: str) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=5),  # ten times `DrainInput.most_s`
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),  # no limit: waits for catalog and storage
    )


_DEADLINE_MARGIN_S = 0.05  # because the clocks of the catalog and of Temporal differ
_MAX_OWED_IDS = 20


@workflow.defn(name="transaction-coordinator", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TransactionCoordinator:
    @workflow.init
    def __init__(self, request: CoordinatorInput) -> None:
        self._request = request
        self._progress = request.carried or CoordinatorProgress()
        self._woken = True  # an earlier run may have missed work

    @workflow.run
    async def run(self, request: CoordinatorInput) -> CoordinatorProgress:
        until_deadline_s: float | None = None
        while True:
            with suppress(asyncio.TimeoutError):
                wait = None if until_deadline_s is None else timedelta(seconds=until_deadline_s + _DEADLINE_MARGIN_S)
                await workflow.wait_condition(lambda: self._woken, timeout=wait)
            self._woken = False
            drained = await workflow.execute_activity_method(
                TransactionCoordinatorActivities.abort_expired_and_broadcast_decided,
                DrainInput(tc_id=request.tc_id, linger_s=request.linger_s),
                **_drain_options(request.queue),
            )
            self._add_progress(drained, await self._start_broadcasts(drained))
            self._woken = self._woken or drained.more
            until_deadline_s = drained.next_deadline_s
            if workflow.info().is_continue_as_new_suggested():  # the next run gets a signal that comes now
                workflow.continue_as_new(replace(request, carried=self._progress))

    @workflow.signal
    def wake(self) -> None:
        """Look for work again, because a transaction was begun or decided."""
        self._woken = True

    @workflow.query
    def progress(self) -> CoordinatorProgress:
        """Return the numbers of transactions by result since the coordinator was started."""
        return self._progress

    async def _start_broadcasts(self, drained: DrainResult) -> list[str]:
        """Start a `broadcast-transaction` for each handed-over transaction that has none. Return these transactions."""
        started = list[str]()
        for txn in drained.handed_over:
            request = BroadcastTransactionInput(txn=txn, queue=self._request.queue)
            owed = SearchAttributePair(search_attributes.OUTCOME, ["OWED"])
            if await child_jobs.start_unless_running(BROADCAST_TRANSACTION, request, attributes=[owed]):
                started.append(txn)
        return started

    def _add_progress(self, drained: DrainResult, started: list[str]) -> None:
        before = self._progress
        self._progress = CoordinatorProgress(
            finished=before.finished + drained.finished,
            expired=before.expired + drained.expired,
            handed_over=before.handed_over + len(started),
            drains=before.drains + 1,
            owed=[*before.owed, *started][-_MAX_OWED_IDS:],
        )
        progress = self._progress
        owed_lines = "".join(f"- handed over: **{txn}**\n" for txn in progress.owed)
        workflow.set_current_details(
            f"{progress.finished:,} transactions told, {progress.expired:,} timed out,"
            f" {progress.handed_over:,} handed over to a broadcast of their own\n\n{owed_lines}"
        )
