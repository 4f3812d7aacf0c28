"""`abort-transactions`: abort transactions of a Pulsar cluster, and check that they hold nobody back any more.

Destroys the messages and acknowledgements of these transactions: consumers never see the messages, and get again what
was acknowledged. Nothing brings them back. Invariant: the catalog has what was seen of each transaction, with actor and
reason, before the first abort. To stop it, terminate it: a transaction whose abort is decided ends without it.

1. Look at all transactions. If one has ended, is being committed or is too young, refuse, and change nothing.
2. Ask the coordinators to abort. A failure of one transaction does not hinder the others.
3. Look again, with growing pauses: has each transaction ended, and has each participant ended its part? A transaction
   that is still open gets another abort.
4. Store and return the result of each transaction, and who still waits for which other transaction.

Source: Pulsar's `TransactionMetadataStoreService`, which tells participants again and again until all have confirmed.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy, VersioningBehavior
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.pulsar.abort_transactions import AbortTransactionsActivities
    from activities.pulsar.inputs_and_results import (
        AbortAttempt,
        AbortTransactionInput,
        BeginAbortInput,
        CheckAbortsInput,
    )
    from logstore.pulsar.cluster_transactions import AbortOutcome, TransactionAbort
    from workflows import activity_options, guard_refusal_results, search_attributes
    from workflows.pulsar.job_definitions import AbortTransactionsInput, AbortTransactionsResult
    from workflows.reconciliation.job_definitions import GUARDS

_OPTIONS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),  # 100 transactions with 500 participants each, on slow brokers
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),  # unlimited: waits for the cluster to come back
)
_BEGIN_OPTIONS: workflow.ActivityConfig = workflow.ActivityConfig(
    start_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=activity_options.HEARTBEAT_TIMEOUT,
    # Five minutes, in which a broker that died is replaced. Then a person looks: nothing has changed.
    retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30), maximum_attempts=14),
)
_PAUSES_S: Final = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60)
"""Pauses between looks: five minutes, in which a broker that died is replaced. Then a person looks."""


@workflow.defn(name="abort-transactions", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class AbortTransactions:
    @workflow.init
    def __init__(self, request: AbortTransactionsInput) -> None:
        self._request = request
        self._attempts: dict[str, AbortAttempt] = {}

    @workflow.run
    async def run(self, request: AbortTransactionsInput) -> AbortTransactionsResult:
        workflow.upsert_search_attributes([search_attributes.RUN_ID.value_set(request.run_id)])
        begin = BeginAbortInput(
            run_id=request.run_id,
            transactions=request.transactions,
            actor=request.actor,
            reason=request.reason,
            unsafe_age=request.unsafe_age,
        )
        try:
            begun = await workflow.execute_activity_method(
                AbortTransactionsActivities.begin_abort, begin, **_BEGIN_OPTIONS
            )
        except ActivityError as error:
            refusal = guard_refusal_results.refusal_from_error_or_raise(error, GUARDS)
            workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set(["REFUSED"])])
            workflow.set_current_details(guard_refusal_results.format_refusal(refusal))
            return AbortTransactionsResult(run_id=request.run_id, refused=refusal)
        results = begun.done
        if results is None:
            for txn in request.transactions:
                await self._abort(txn)
            await self._wait_until_settled()
            results = await workflow.execute_activity_method(
                AbortTransactionsActivities.conclude_abort, self._make_check(), **_OPTIONS
            )
        self._publish(results)
        return AbortTransactionsResult(run_id=request.run_id, transactions=results)

    async def _abort(self, txn: str) -> None:
        workflow.set_current_details(f"aborting `{txn}`")
        self._attempts[txn] = await workflow.execute_activity_method(
            AbortTransactionsActivities.abort_transaction,
            AbortTransactionInput(run_id=self._request.run_id, txn=txn),
            **_OPTIONS,
        )

    async def _wait_until_settled(self) -> None:
        for pause_s in _PAUSES_S:
            checked = await workflow.execute_activity_method(
                AbortTransactionsActivities.check_aborts, self._make_check(), **_OPTIONS
            )
            for txn in checked.aborting:
                self._attempts[txn] = replace(self._attempts[txn], decided=True)
            if not checked.unsettled:
                return
            workflow.set_current_details(f"waiting for {checked.unsettled:,} transactions and their participants")
            await workflow.sleep(timedelta(seconds=pause_s), summary="until participants have confirmed")
            for txn in checked.open:
                await self._abort(txn)

    def _make_check(self) -> CheckAbortsInput:
        return CheckAbortsInput(run_id=self._request.run_id, attempts=self._attempts)

    def _publish(self, results: list[TransactionAbort]) -> None:
        is_whole = all(result.outcome == AbortOutcome.ABORTED for result in results)
        outcome = "ABORTED" if is_whole else "FAILED_IN_PART"
        workflow.upsert_search_attributes([search_attributes.OUTCOME.value_set([outcome])])
        workflow.set_current_details("".join(f"- `{each.txn}`: {each.outcome}\n" for each in results))
