"""`sweep-transactions`: wake coordinators that have expired or unclaimed transactions, and remove old transactions.

Destroys rows of transactions that finished longer than `finished_retention` ago. Invariant: none, because the next
sweep finds what this sweep misses. To stop it, cancel or terminate it.

1. Find coordinators with expired open transactions, or with decided transactions that no workflow has claimed.
2. Start each coordinator, or wake it if it runs.
3. Remove old finished transactions, page by page.

Source: Pulsar's recovery of the transaction coordinator (apache/pulsar#19200).
"""

from contextlib import suppress

from temporalio import workflow
from temporalio.common import VersioningBehavior
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.transactions.coordinate_transactions import (
        BusyCoordinatorsInput,
        RemoveOldTransactionsInput,
        TransactionCoordinatorActivities,
    )
    from workflows import activity_options, child_jobs
    from workflows.transactions.job_definitions import (
        TRANSACTION_COORDINATOR,
        CoordinatorInput,
        SweepTransactionsInput,
        SweepTransactionsResult,
    )

_TRANSACTIONS_PER_PAGE = 1_000


@workflow.defn(name="sweep-transactions", versioning_behavior=VersioningBehavior.PINNED)
class SweepTransactions:
    @workflow.run
    async def run(self, request: SweepTransactionsInput) -> SweepTransactionsResult:
        busy_coordinator_ids = await workflow.execute_activity_method(
            TransactionCoordinatorActivities.list_coordinators_with_work,
            BusyCoordinatorsInput(),
            **activity_options.CATALOG,
        )
        for tc_id in busy_coordinator_ids:
            await _wake_coordinator(CoordinatorInput(tc_id=tc_id, queue=request.queue))
        forgotten = 0
        while True:
            forgotten_on_page = await workflow.execute_activity_method(
                TransactionCoordinatorActivities.remove_old_transactions,
                RemoveOldTransactionsInput(limit=_TRANSACTIONS_PER_PAGE),
                **activity_options.CATALOG,
            )
            forgotten += forgotten_on_page
            if forgotten_on_page < _TRANSACTIONS_PER_PAGE or workflow.info().is_continue_as_new_suggested():
                return SweepTransactionsResult(woken=len(busy_coordinator_ids), forgotten=forgotten)


async def _wake_coordinator(request: CoordinatorInput) -> None:
    if not await child_jobs.start_unless_running(TRANSACTION_COORDINATOR, request):
        with suppress(ApplicationError):  # terminated meanwhile: the next sweep starts it
            coordinator = workflow.get_external_workflow_handle(TRANSACTION_COORDINATOR.id_of_request(request))
            await coordinator.signal("wake")
