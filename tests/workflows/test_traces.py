"""What spans say of jobs, and how a failure and the *Current Details* lead to them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from infra.telemetry.tracing import ExpectedErrorFilter
from logstore.log.ledger_object_keys import ledger_prefix
from tests.activities.activity_world import TOPIC_NAME
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.deletion.test_delete_ledger import handed_over
from tests.workflows.workflow_harness import WorkflowHarness, query_current_details
from workers.client.temporal_connection import TRACE_ID, find_detail
from workers.client.wait_for_job import wait_for_result
from workers.hosting.temporal_workers import WORKFLOWS
from workers.hosting.workflow_input_checks import InputCheckingRunner
from workflows.deletion.job_definitions import DeletionPolicy

pytestmark = pytest.mark.external_service


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans of this process, while the test runs."""
    provider, exporter = create_tracer_provider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(ExpectedErrorFilter(exporter)))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


async def connect(house: WorkflowHarness, **more: Any) -> Client:
    """Another client of the house's server."""
    where = house.client.service_client.config.target_host
    return await Client.connect(where, data_converter=pydantic_data_converter, **more)


async def trace_all(house: WorkflowHarness) -> WorkflowHarness:
    """The house, every step of which has a span from now on."""
    plugin = OpenTelemetryPlugin(add_temporal_spans=True)
    house.client = await connect(house, plugins=[plugin])
    return house


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The last span of that name."""
    return [one for one in spans.get_finished_spans() if one.name == name][-1]


def trace_id_of(span: ReadableSpan) -> str:
    """Its trace's id, as people have it."""
    context = span.get_span_context()
    assert context is not None
    return trace.format_trace_id(context.trace_id)


async def test_spans_of_a_batch_say_topic_rows_and_outcome(house: WorkflowHarness, spans: InMemorySpanExporter) -> None:
    """Whoever reads the tree knows what each step was about, without another look at the catalog."""
    traced = await trace_all(house)
    ledgers = traced.world.fill(3)
    async with traced.worker():
        await (await traced.delete(ledgers)).result()
    batch = dict(named(spans, "RunWorkflow:delete-ledgers").attributes or {})
    assert (batch["sexton.topic"], batch["sexton.outcome"]) == (TOPIC_NAME, "DELETED 3")
    assert batch["sexton.ledgers"] == tuple(ledgers)
    chunk = dict(named(spans, "RunActivity:deletion.delete_chunk").attributes or {})
    assert chunk["sexton.batch"] == batch["sexton.batch"]
    assert (chunk["sexton.attempt"], chunk["sexton.topic"]) == (1, TOPIC_NAME)
    first, last = map(int, str(chunk["sexton.row_range"]).split("-"))
    assert last - first in {0, 1}, "chunks of two rows"
    assert str(chunk["sexton.outcome"]).startswith("DELETED ")


async def test_a_failure_names_its_trace_and_its_span_says_why(
    house: WorkflowHarness, spans: InMemorySpanExporter
) -> None:
    """In the details: the message is that of every attempt, and what matches it still does."""
    traced = await trace_all(house)
    ledgers = traced.world.fill(2)
    async with traced.worker():
        handle = await traced.delete(ledgers, catalog_epoch=7)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    failed = named(spans, "RunActivity:deletion.detach")
    assert (cause.type, find_detail(cause.details, TRACE_ID)) == ("StaleCatalog", trace_id_of(failed))
    assert trace_id_of(failed) not in cause.message
    assert (failed.status.status_code, (failed.attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "StaleCatalog",
    )
    assert failed.status.description is not None
    assert cause.message in failed.status.description


async def test_a_refusal_names_its_trace(house: WorkflowHarness, spans: InMemorySpanExporter) -> None:
    """The run completes, and the error that the caller is told of names the trace as a failure does."""
    traced = await trace_all(house)
    traced.world.catalog.cursors.create_subscription(traced.world.topic.topic_id, "slow", latest=False)
    async with traced.worker():
        handle = await traced.delete(traced.world.fill(1, acknowledged=False))
        with pytest.raises(WorkflowFailureError) as caught:
            await wait_for_result(traced.client, handle, lambda _: None)
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    refused = named(spans, "RunActivity:deletion.detach")
    assert (cause.type, find_detail(cause.details, TRACE_ID)) == ("LedgerStillNeeded", trace_id_of(refused))


async def test_a_dead_letter_names_its_trace(house: WorkflowHarness, spans: InMemorySpanExporter) -> None:
    """What the workflow itself fails with has the same details; its row names the trace as well."""
    traced = await trace_all(house)
    ledger, key = handed_over(traced)
    traced.world.objects.put_if_absent(f"{ledger_prefix(ledger)}another-application.parquet", b"x", metadata={})
    async with traced.worker():
        handle = await traced.claim_and_delete_copy(key)
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
    run, cause = named(spans, "RunWorkflow:delete-ledger"), caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, find_detail(cause.details, TRACE_ID)) == ("METADATA_MISMATCH", trace_id_of(run))
    assert (run.attributes or {})["sexton.ledger"] == ledger
    assert run.status.status_code is StatusCode.ERROR
    attempt = dict(named(spans, "RunActivity:deletion.delete_one").attributes or {})
    assert (attempt["sexton.ledger"], attempt["sexton.outcome"]) == (ledger, "METADATA_MISMATCH")
    (row,) = traced.world.intents()
    assert row.trace_id == trace_id_of(run)


@pytest.mark.parametrize("cache", [0, 100])
async def test_current_details_end_with_the_trace(
    house: WorkflowHarness, spans: InMemorySpanExporter, cache: int
) -> None:
    """The same from a run in the cache and from one that is replayed for the question."""
    traced = await trace_all(house)
    traced.world.fill(2)
    async with traced.worker(max_cached_workflows=cache):
        handle = await traced.trim()
        await handle.result()
        told = await query_current_details(handle)
    run = trace_id_of(named(spans, "RunWorkflow:trim-topic"))
    assert told.endswith(f"\n\nTrace: `sexton trace {run}`")
    assert len(told.splitlines()) > 2, "what the workflow itself says comes first"


async def test_a_job_of_no_traced_caller_has_a_trace_that_replay_does_not_change(
    house: WorkflowHarness, spans: InMemorySpanExporter
) -> None:
    """A schedule starts jobs without a trace: the run's own is drawn from its own random, again and again the same."""
    traced = await trace_all(house)
    traced.world.fill(2)
    plain = await connect(traced)
    async with traced.worker(max_cached_workflows=0):
        traced.client = plain
        handle = await traced.trim()
        await handle.result()
        told = {await query_current_details(handle) for _ in range(2)}
    (one,) = told
    assert one.endswith(f"`sexton trace {trace_id_of(named(spans, 'RunWorkflow:trim-topic'))}`")


@pytest.mark.parametrize("cache", [0, 100])
async def test_runs_that_go_on_in_new_ones_and_their_children_are_one_trace(
    house: WorkflowHarness, spans: InMemorySpanExporter, cache: int
) -> None:
    """A row that is handed over ends the run of its batch: the next run, and the row's own workflow, stay in the trace.

    The same where every task begins on a worker that knows nothing of the run, as after a kill.
    """
    traced = await trace_all(house)
    traced.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED))
    traced.policy = DeletionPolicy(chunk=1, parallelism=1, alone=1, retry_interval_s=0)
    ledgers = traced.world.fill(3)
    async with traced.worker(max_cached_workflows=cache):
        handle = await traced.delete(ledgers)
        await handle.result()
        (alone,) = {one.workflow_id for one in traced.attempts("deletion.delete_one")}
        await traced.client.get_workflow_handle(alone).result()
    found = [one for one in spans.get_finished_spans() if one.context]
    assert len({trace_id_of(one) for one in found}) == 1
    ids = Counter(one.context.span_id for one in found if one.context)
    assert set(ids.values()) == {1}
    assert [one.name for one in found if not one.parent or one.parent.span_id not in ids] == [
        "StartWorkflow:delete-ledgers"
    ], "every span is below the command's call"
    runs = [dict(one.attributes or {}) for one in found if one.name == "RunWorkflow:delete-ledgers"]
    assert len({one["temporalRunID"] for one in runs}) == len(runs) >= 2
    assert [one.name for one in found].count("RunWorkflow:delete-ledger") == 1


async def test_traced_run_replayed_at_every_task_has_each_span_once(
    house: WorkflowHarness, spans: InMemorySpanExporter
) -> None:
    """Every task replays without a cache, and then all of it: no span repeats (pydantic/pydantic-ai#6974)."""
    await trace_all(house)
    house.world.fill(2)
    async with house.worker(max_cached_workflows=0):
        handle = await house.trim()
        result = await handle.result()
    names = Counter(span.name for span in spans.get_finished_spans())
    tries = Counter(one.type for one in house.attempts())
    assert result.deleted == 2
    assert tries["deletion.detach"] == 2
    for type_, times in tries.items():
        assert names[f"StartActivity:{type_}"] == times
        assert names[f"RunActivity:{type_}"] == times
    assert (names["RunWorkflow:trim-topic"], names["RunWorkflow:delete-ledgers"]) == (1, 1)
    assert len({span.context.trace_id for span in spans.get_finished_spans() if span.context}) == 1
    before = len(spans.get_finished_spans())
    replayer = Replayer(
        workflows=WORKFLOWS,
        workflow_runner=InputCheckingRunner(),
        data_converter=pydantic_data_converter,
        plugins=[OpenTelemetryPlugin(add_temporal_spans=True)],
    )
    await replayer.replay_workflow(await handle.fetch_history())
    assert len(spans.get_finished_spans()) == before
