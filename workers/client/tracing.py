"""Calls of a client as spans, and the trace that a job goes on with.

It does what `OpenTelemetryPlugin` does for a client, with the same names and the same header, and imports no worker:
that plugin costs a command as much as all its own modules.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import SpanKind, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.client import (
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.converter import PayloadConverter

_HEADER = "_tracer-data"  # the SDK's; workers of every language read it


class TracedCalls(Interceptor):
    """Makes a span of each start, query and update."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's word
        """An interceptor that makes the spans and then calls `next`."""
        return _Traced(next)


class _Traced(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
        verb = "SignalWithStartWorkflow" if input.start_signal else "StartWorkflow"
        with _span(f"{verb}:{input.workflow}", input):
            return await super().start_workflow(input)

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:  # noqa: A002, ANN401
        with _span(f"QueryWorkflow:{input.query}", input):
            return await super().query_workflow(input)

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
        with _span(f"StartWorkflowUpdate:{input.update}", input):
            return await super().start_workflow_update(input)


@contextmanager
def _span(name: str, call: StartWorkflowInput | QueryWorkflowInput | StartWorkflowUpdateInput) -> Iterator[None]:
    attributes = {"temporalWorkflowID": call.id}
    with get_tracer(__name__).start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes):
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        if carrier:
            call.headers = {**call.headers, _HEADER: PayloadConverter.default.to_payloads([carrier])[0]}
        yield
