"""Jobs as Temporal's visibility shows them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from logstore.errors import UnknownObject
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
    client: Client, type_: str | None, status: str | None, topic: str | None, *, limit: int
) -> list[WorkflowRow]:
    """Jobs of a type, in a status, of a topic by its encoded name, as far as these are given; newest first."""
    wanted = {"WorkflowType": type_, "ExecutionStatus": status, search_attributes.TOPIC.name: topic}
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in wanted.items() if value}
    query = " AND ".join(f'{name} = "{value}"' for name, value in quoted.items())
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
