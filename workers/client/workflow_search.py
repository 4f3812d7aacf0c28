"""Search of jobs in Temporal's visibility store, and the search attributes of jobs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistory,
)
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import PreconditionFailed, UnknownObject
from workflows import search_attributes
from workflows.jobs import SCHEDULED_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSummary:
    workflow_id: str
    run_id: str
    type: str
    status: str  # as in Temporal's queries: Running, Completed, …
    started: datetime
    closed: datetime | None
    topic: str | None  # encoded name
    outcome: list[str]


_STATUS_NAME = {
    status: "".join(word.capitalize() for word in status.name.split("_")) for status in WorkflowExecutionStatus
}


async def describe_workflow_if_known(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    try:
        return await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def query_workflows(
    client: Client,
    type_: str | None,
    status: str | None,
    topic: str | None,
    *,
    limit: int,
    finished_recurring: bool = True,
) -> list[WorkflowSummary]:
    """Return jobs by type, status and encoded topic name, newest first. `None` matches everything."""
    value_by_field = {"WorkflowType": type_, "ExecutionStatus": status, search_attributes.TOPIC.name: topic}
    conditions = []
    for field, value in value_by_field.items():
        if value:
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            conditions.append(f'{field} = "{quoted}"')
    if not finished_recurring:
        recurring_types = ", ".join(f'"{job.name}"' for job in SCHEDULED_JOBS)
        conditions.append(
            f'(ExecutionStatus != "Completed" OR WorkflowType NOT IN ({recurring_types})'
            " OR (TemporalScheduledById IS NULL AND ParentWorkflowId IS NULL))"
        )
    query = " AND ".join(conditions)
    return [_summary_from_execution(execution) async for execution in client.list_workflows(query, limit=limit)]


async def fetch_history(client: Client, workflow_id: str, run_id: str | None) -> WorkflowHistory:
    """Return the recorded history of a run. `None` selects the workflow's newest run.

    Raises:
        UnknownObject: Temporal does not know the run, or no longer keeps it.
    """
    try:
        return await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status not in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            raise
        found = f"{workflow_id}, run {run_id}" if run_id else workflow_id
        expected = "a workflow that Temporal keeps a history of, as `sexton workflow list` shows it"
        raise UnknownObject("workflow", expected=expected, found=found) from error


def _summary_from_execution(execution: WorkflowExecution) -> WorkflowSummary:
    attributes: Any = execution.typed_search_attributes
    return WorkflowSummary(
        workflow_id=execution.id,
        run_id=execution.run_id,
        type=execution.workflow_type,
        status=_STATUS_NAME[execution.status] if execution.status else "Unknown",
        started=execution.start_time,
        closed=execution.close_time,
        topic=attributes.get(search_attributes.TOPIC),
        outcome=list(attributes.get(search_attributes.OUTCOME) or ()),
    )


async def find_missing_search_attributes(client: Client) -> dict[str, "IndexedValueType.ValueType"]:
    request = ListSearchAttributesRequest(namespace=client.namespace)
    present = (await client.operator_service.list_search_attributes(request, retry=True)).custom_attributes
    return {
        key.name: IndexedValueType.ValueType(key.indexed_value_type)
        for key in search_attributes.ALL
        if key.name not in present
    }


async def register_search_attributes(client: Client) -> None:
    """Add the missing search attributes. Idempotent."""
    missing = await find_missing_search_attributes(client)
    if not missing:
        return
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


async def require_search_attributes(client: Client) -> None:
    """Raise `PreconditionFailed` with the search attributes that the namespace lacks, if any."""
    missing = await find_missing_search_attributes(client)
    if missing:
        names = ", ".join(sorted(missing))
        raise PreconditionFailed(f"namespace {client.namespace}: expected search attributes, missing {names}")
