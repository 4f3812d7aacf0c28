"""One span per logical step, however often its workflow is replayed."""

from collections import Counter
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from tests.workflows.house import House
from workers.hosting.fleet import WORKFLOWS
from workers.hosting.inputs import CheckedRunner


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans of this process, while the test runs."""
    provider, exporter = create_tracer_provider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


async def test_traced_run_replayed_at_every_task_has_each_span_once(house: House, spans: InMemorySpanExporter) -> None:
    """Every task replays without a cache, and then all of it: no span repeats (pydantic/pydantic-ai#6974)."""
    plugin = OpenTelemetryPlugin(add_temporal_spans=True)
    house.client = await house.temporal.connect_client(data_converter=pydantic_data_converter, plugins=[plugin])
    house.world.fill(2)
    async with house.worker(cache=0):
        handle = await house.trim()
        result = await handle.result()
    names = Counter(span.name for span in spans.get_finished_spans())
    tries = Counter(one.type for one in house.notebook.attempts)
    assert result.deleted == 2
    assert tries["deletion.detach"] == 2
    for type_, times in tries.items():
        assert names[f"StartActivity:{type_}"] == times
        assert names[f"RunActivity:{type_}"] == times
    assert (names["RunWorkflow:trim-topic"], names["RunWorkflow:delete-ledgers"]) == (1, 1)
    assert len({span.context.trace_id for span in spans.get_finished_spans() if span.context}) == 1
    before = len(spans.get_finished_spans())
    replayer = Replayer(
        workflows=WORKFLOWS, workflow_runner=CheckedRunner(), data_converter=pydantic_data_converter, plugins=[plugin]
    )
    await replayer.replay_workflow(await handle.fetch_history())
    assert len(spans.get_finished_spans()) == before
