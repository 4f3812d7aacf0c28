"""Jobs as Temporal's visibility shows them, and the search attributes by which it finds them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import PreconditionFailed, UnknownObject
from workflows import search_attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRow:
    """A workflow as Temporal's visibility shows it."""

    workflow_id: str
    run_id: str
    type: str
    status: str  # as Temporal's queries have it: Running, Completed, …
    started: datetime
    closed: datetime | None
    topic: str | None  # encoded
    outcome: list[str]


_STATUS = {one: "".join(word.capitalize() for word in one.name.split("_")) for one in WorkflowExecutionStatus}


async def visible_workflows(
    client: Client,
    type_: str | None,
    status: str | None,
    topic: str | None,
    *,
    limit: int,
    finished_recurring: bool = True,
) -> list[WorkflowRow]:
    """Jobs of a type, in a status, of a topic by its encoded name, as far as these are given; newest first.

    Without `finished_recurring`, completed runs that a schedule started are left out; those that run or failed are not.
    """
    wanted = {"WorkflowType": type_, "ExecutionStatus": status, search_attributes.TOPIC.name: topic}
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in wanted.items() if value}
    conditions = [f'{name} = "{value}"' for name, value in quoted.items()]
    if not finished_recurring:
        conditions.append('(ExecutionStatus != "Completed" OR TemporalScheduledById IS NULL)')
    query = " AND ".join(conditions)
    return [_row(execution) async for execution in client.list_workflows(query, limit=limit)]


async def history_of(client: Client, workflow_id: str, run_id: str | None) -> WorkflowHistory:
    """Everything that Temporal has recorded of a run; None is the workflow's newest.

    Raises:
        UnknownObject: Temporal knows none, or does not any more.
    """
    try:
        return await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status not in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            raise
        which = f"{workflow_id}, run {run_id}" if run_id else workflow_id
        expected = "a workflow that Temporal keeps a history of, as `sexton workflow list` shows it"
        raise UnknownObject("workflow", expected=expected, found=which) from error


def _row(execution: WorkflowExecution) -> WorkflowRow:
    attributes: Any = execution.typed_search_attributes
    return WorkflowRow(
        workflow_id=execution.id,
        run_id=execution.run_id,
        type=execution.workflow_type,
        status=_STATUS[execution.status] if execution.status else "Unknown",
        started=execution.start_time,
        closed=execution.close_time,
        topic=attributes.get(search_attributes.TOPIC),
        outcome=list(attributes.get(search_attributes.OUTCOME) or ()),
    )


async def missing_attributes(client: Client) -> dict[str, "IndexedValueType.ValueType"]:
    """Those of ours that the namespace lacks, by name, with their types."""
    request = ListSearchAttributesRequest(namespace=client.namespace)
    present = (await client.operator_service.list_search_attributes(request)).custom_attributes
    return {
        key.name: IndexedValueType.ValueType(key.indexed_value_type)
        for key in search_attributes.ALL
        if key.name not in present
    }


async def register_attributes(client: Client) -> None:
    """Add what is missing; repeating it is harmless."""
    wanted = await missing_attributes(client)
    if not wanted:
        return
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


async def require_attributes(client: Client) -> None:
    """Refuse to work in a namespace where jobs could not be found.

    Raises:
        PreconditionFailed: Attributes are missing; names them.
    """
    absent = await missing_attributes(client)
    if absent:
        names = ", ".join(sorted(absent))
        raise PreconditionFailed(f"namespace {client.namespace}: expected search attributes, missing {names}")
