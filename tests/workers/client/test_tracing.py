"""Calls of a client are traced as the SDK's own plugin traces them, at a tenth of its cost."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_trace_id
from temporalio.client import Interceptor, OutboundInterceptor
from temporalio.contrib.opentelemetry import OpenTelemetryInterceptor, _otel_interceptor
from temporalio.converter import PayloadConverter

from workers.client import temporal_connection
from workers.client.temporal_connection import CallTracingInterceptor


class _Call:
    """What the interceptors read of a call."""

    def __init__(self, **names: str) -> None:
        self.id = "trim-topic/1"
        self.start_signal: str | None = None
        self.headers: dict[str, Any] = {}
        for name, value in names.items():
            setattr(self, name, value)


class _Server(OutboundInterceptor):
    """Answers nothing, or fails."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def start_workflow(self, input: Any) -> Any:  # noqa: A002 - Temporal's word
        return self._answer()

    async def query_workflow(self, input: Any) -> Any:  # noqa: A002 - Temporal's word
        return self._answer()

    async def start_workflow_update(self, input: Any) -> Any:  # noqa: A002 - Temporal's word
        return self._answer()

    def _answer(self) -> None:
        if self._error:
            raise self._error


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    for module in (temporal_connection, _otel_interceptor):
        monkeypatch.setattr(module, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


_CALLS = [
    ("start_workflow", {"workflow": "trim-topics"}),
    ("start_workflow", {"workflow": "trim-topic", "start_signal": "again"}),
    ("query_workflow", {"query": "progress"}),
    ("start_workflow_update", {"update": "pause"}),
]


@pytest.mark.parametrize("error", [None, RuntimeError("no answer")], ids=["answered", "failed"])
@pytest.mark.parametrize(("method", "names"), _CALLS, ids=str)
def test_call_is_traced_as_by_the_plugin(
    spans: InMemorySpanExporter, method: str, names: dict[str, str], error: Exception | None
) -> None:
    """Name, kind, attributes and status of the span, and the header that the job goes on with."""
    told = [
        _traced(one, spans, method, names, error) for one in (CallTracingInterceptor(), OpenTelemetryInterceptor(True))
    ]
    assert told[0] == told[1]


def _traced(
    interceptor: Interceptor, spans: InMemorySpanExporter, method: str, names: dict[str, str], error: Exception | None
) -> tuple[object, ...]:
    spans.clear()
    call = _Call(**names)
    with suppress(RuntimeError):
        asyncio.run(getattr(interceptor.intercept_client(_Server(error)), method)(call))
    (span,) = spans.get_finished_spans()
    (carried,) = PayloadConverter.default.from_payloads([call.headers["_tracer-data"]])
    _, trace_id, span_id, flags = carried.pop("traceparent").split("-")
    mine = trace_id == format_trace_id(span.context.trace_id) and span_id == trace.format_span_id(span.context.span_id)
    status = (span.status.status_code, span.status.description)
    return mine, flags, carried, span.name, span.kind, dict(span.attributes or {}), status
