"""`broadcast-transaction`: every participant of one decided transaction is told, however long one of them is away.

Destroys nothing. Invariant: it ends when no participant is owed; a participant that is gone counts as told, and one
that is down holds up no other. To stop it, resolve what is owed by `sexton txn resolve`, which counts a participant as
done; terminated, its transaction is taken up again by its coordinator.

1. Tell the participants that are owed.
2. If some could not be told, wait, twice as long each time, or for the signal `retry`; go on from 1.

Source: Pulsar's transaction coordinator; redpanda#3544 for participants that never answer.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.transactions.coordination import Coordination
    from activities.transactions.values import TellInput, Told
    from workflows import options, search_attributes
    from workflows.transactions.values import BroadcastProgress, BroadcastTransactionInput


def _tell(queue: str) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=5),  # a thousand topics, each with an upload
        heartbeat_timeout=options.NOTICED,
        retry_policy=RetryPolicy(
            maximum_interval=timedelta(seconds=30)
        ),  # unlimited: waits for the catalog to come back
    )


@workflow.defn(name="broadcast-transaction", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class BroadcastTransaction:
    """See the module's text."""

    @workflow.init
    def __init__(self, request: BroadcastTransactionInput) -> None:
        """Start from what an earlier run carried over."""
        self._progress = request.carried or BroadcastProgress()
        self._retry = False

    @workflow.run
    async def run(self, request: BroadcastTransactionInput) -> BroadcastProgress:
        """Do the numbered steps."""
        workflow.upsert_search_attributes(
            [search_attributes.TRANSACTION.value_set(request.txn), search_attributes.OUTCOME.value_set(["OWED"])]
        )
        while True:
            pause_s = min(request.most_pause_s, request.pause_s * 2 ** min(self._progress.attempts, 16))
            told = await workflow.execute_activity_method(
                Coordination.tell,
                TellInput(txn=request.txn, wait_s=pause_s),
                **_tell(request.queue),
            )
            self._tell(told)
            if not told.owed_count:
                workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([told.state])])
                return self._progress
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, carried=self._progress))
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(lambda: self._retry, timeout=timedelta(seconds=pause_s))
            self._retry = False

    @workflow.signal
    def retry(self) -> None:
        """Try again now."""
        self._retry = True

    @workflow.query
    def progress(self) -> BroadcastProgress:
        """Which participants are owed, and why."""
        return self._progress

    def _tell(self, told: Told) -> None:
        self._progress = BroadcastProgress(
            state=told.state,
            settled=told.settled,
            owed=told.owed,
            owed_count=told.owed_count,
            attempts=self._progress.attempts + 1,
        )
        owed = "".join(
            f"- owed: **{one.topic or one.participant}** ({one.participant}): {one.error}\n" for one in told.owed
        )
        workflow.set_current_details(
            f"{told.state}: {told.settled:,} participants told, {told.owed_count:,} owed"
            f" after {self._progress.attempts:,} attempts\n\n{owed}"
        )
