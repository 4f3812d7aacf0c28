"""`broadcast-transaction`: tell each participant of one transaction the decision, until all are told.

Destroys nothing. Invariant: the workflow ends only when no participant is owed. A deleted participant counts as
settled. An unavailable participant delays no other participant. To stop it, run `sexton txn resolve`, which counts a
participant as settled. If the workflow is terminated, the transaction's coordinator starts it again.

1. Tell the participants that are owed.
2. If some participants are still owed, pause, then repeat step 1. The pauses double up to `most_pause_s`. The signal
   `retry` ends a pause.

Source: Pulsar's transaction coordinator; redpanda#3544 for participants that never answer.
"""

import asyncio
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior

with workflow.unsafe.imports_passed_through():
    from activities.transactions.coordinate_transactions import BroadcastInput, TransactionCoordinatorActivities
    from logstore.transactions.transaction_ids_and_states import BroadcastState
    from workflows import activity_options, search_attributes
    from workflows.transactions.job_definitions import BroadcastProgress, BroadcastTransactionInput


def _broadcast_options(queue: str) -> workflow.ActivityConfig:
    return workflow.ActivityConfig(
        task_queue=queue or None,
        start_to_close_timeout=timedelta(minutes=5),  # a thousand topics, each with an upload
        heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # no limit: the catalog may be away for hours
    )


@workflow.defn(name="broadcast-transaction", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class BroadcastTransaction:
    @workflow.init
    def __init__(self, request: BroadcastTransactionInput) -> None:
        self._progress = request.carried or BroadcastProgress()
        self._retry = False

    @workflow.run
    async def run(self, request: BroadcastTransactionInput) -> BroadcastProgress:
        workflow.upsert_search_attributes(
            [search_attributes.TRANSACTION.value_set(request.txn), search_attributes.OUTCOME.value_set(["OWED"])]
        )
        while True:
            pause_s = min(request.most_pause_s, request.pause_s * 2 ** min(self._progress.attempts, 16))
            broadcast = await workflow.execute_activity_method(
                TransactionCoordinatorActivities.tell_owed_participants,
                BroadcastInput(txn=request.txn, wait_s=pause_s),
                **_broadcast_options(request.queue),
            )
            self._set_and_show_progress(broadcast)
            if not broadcast.owed_count:
                workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([broadcast.state])])
                return self._progress
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, carried=self._progress))
            with suppress(asyncio.TimeoutError):
                await workflow.wait_condition(lambda: self._retry, timeout=timedelta(seconds=pause_s))
            self._retry = False

    @workflow.signal
    def retry(self) -> None:
        """End the pause and tell the participants again now."""
        self._retry = True

    @workflow.query
    def progress(self) -> BroadcastProgress:
        """Return how many participants are settled, and which participants are owed and why."""
        return self._progress

    def _set_and_show_progress(self, broadcast: BroadcastState) -> None:
        state = {field.name: getattr(broadcast, field.name) for field in fields(BroadcastState)}
        self._progress = BroadcastProgress(**state, attempts=self._progress.attempts + 1)
        owed_lines = "".join(
            f"- owed: **{owed.topic or owed.participant}** ({owed.participant}): {owed.error}\n"
            for owed in broadcast.owed
        )
        workflow.set_current_details(
            f"{broadcast.state}: {broadcast.settled:,} participants settled, {broadcast.owed_count:,} owed"
            f" after {self._progress.attempts:,} attempts\n\n{owed_lines}"
        )
