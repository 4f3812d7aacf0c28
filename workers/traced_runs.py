"""From a job to its spans: what its span says, and the trace that its failures and its *Current Details* name."""

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleQueryInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from infra.telemetry.current import current_trace_id
from workers.span_facts import TRACE_ID, facts_of


class WorkflowEdge(Interceptor):
    """Wraps every workflow: its span says what it is about, its failure and its *Current Details* name its trace."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002 - its name
        """See `Interceptor`."""
        del input
        return _Run


class _Run(WorkflowInboundInterceptor):
    """Deterministic: the trace comes with the run's first event or, where that has none, from the run's own random."""

    _trace_id: str | None = None

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        span, self._trace_id = trace.get_current_span(), current_trace_id()
        for value in input.args:
            span.set_attributes(facts_of(value))
        try:
            result = await super().execute_workflow(input)
        except ApplicationError as error:
            named = naming_trace(error, self._trace_id)
            raise named.with_traceback(error.__traceback__) from error.__cause__
        span.set_attributes(facts_of(result))
        return result

    async def handle_query(self, input: HandleQueryInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        answer = await super().handle_query(input)
        if isinstance(answer, WorkflowMetadata) and self._trace_id is not None:
            said = [answer.current_details] if answer.current_details else []
            answer.current_details = "\n\n".join([*said, f"Trace: `sexton trace {self._trace_id}`"])
        return answer


def naming_trace(error: ApplicationError, trace_id: str | None) -> ApplicationError:
    """The same error with its trace among the details, unless it names one: the message stays that of every attempt."""
    if trace_id is None or trace_of(error) is not None:
        return error
    return ApplicationError(
        error.message,
        *error.details,
        {TRACE_ID: trace_id},
        type=error.type,
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )


def trace_of(error: ApplicationError) -> str | None:
    """The trace that a failure names, or None."""
    named = (one[TRACE_ID] for one in error.details if isinstance(one, Mapping) and TRACE_ID in one)
    return next((str(trace_id) for trace_id in named), None)
