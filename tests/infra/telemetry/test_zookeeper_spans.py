"""Questions to ZooKeeper in a trace: of those who wait for an answer, and of nobody else."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from infra.telemetry import client_spans
from infra.telemetry.client_spans import trace_zookeeper_call_within_trace
from logstore.errors import StoreUnavailable


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    """One of the test's own."""
    made = TracerProvider()
    monkeypatch.setattr(client_spans, "_zookeeper_tracer", made.get_tracer("test"))
    yield made
    made.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    """What was reported."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def test_question_within_a_span_is_its_child(provider: TracerProvider, spans: InMemorySpanExporter) -> None:
    """What an activity or a person waits for is in the trace, and a failure by the name of its error."""
    with provider.get_tracer("test").start_as_current_span("activity") as activity:
        with trace_zookeeper_call_within_trace("reading owners"):
            pass
        with pytest.raises(StoreUnavailable), trace_zookeeper_call_within_trace("reading workers"):
            raise StoreUnavailable("away")
    good, bad, _ = spans.get_finished_spans()
    assert (good.name, bad.name) == ("ZooKeeper reading owners", "ZooKeeper reading workers")
    for one in (good, bad):
        assert one.parent is not None
        assert one.parent.span_id == activity.get_span_context().span_id
    assert good.status.status_code is StatusCode.UNSET
    assert (bad.status.status_code, bad.status.description) == (StatusCode.ERROR, "StoreUnavailable")


def test_question_within_no_span_leaves_none(spans: InMemorySpanExporter) -> None:
    """A worker that looks every second, for months, fills no disk with it."""
    with trace_zookeeper_call_within_trace("looking for changes"):
        pass
    assert spans.get_finished_spans() == ()
