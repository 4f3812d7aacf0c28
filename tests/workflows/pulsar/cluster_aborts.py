"""Aborts of transactions of a cluster."""

from typing import Any

from temporalio.client import WorkflowHandle

from tests.workflows.workflow_harness import WorkflowHarness
from workflows.pulsar.abort_transactions import AbortTransactions
from workflows.pulsar.job_definitions import ABORT_TRANSACTIONS, AbortTransactionsInput


def abort_run_id(house: WorkflowHarness) -> str:
    """Of the house's one abort; ids on the shared server tell houses apart."""
    return f"abort-{house.queue}"


async def abort(house: WorkflowHarness, *sequences: int, **more: Any) -> WorkflowHandle[Any, Any]:
    """Start an abort of transactions of the only coordinator."""
    request = AbortTransactionsInput(
        run_id=abort_run_id(house), transactions=[f"0:{sequence}" for sequence in sequences], actor="tests", **more
    )
    return await house.client.start_workflow(
        AbortTransactions.run, request, id=ABORT_TRANSACTIONS.id(request.run_id), task_queue=house.queue
    )
