"""One trace from a program's call to the last effect, whichever worker process had it: one was killed by SIGKILL."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from temporalio.client import WorkflowHandle

from infra.stack import embedded_stack
from infra.telemetry.span_reader import SpanReader
from infra.telemetry.span_tree import SpanNode, build_span_trees, describe_missing_or_merged_children
from infra.telemetry.tracing import create_tracer_provider
from tests.faults.real_world import WRITER_PLANS, RealWorld, WorkerProcess, ended, wait_until_true
from tests.faults.writing_programs import WritingPrograms
from tests.servers import create_store_settings
from workers.client import Sexton, workflow_search
from workers.client.temporal_connection import connect_client
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import (
    DELETE_LEDGERS,
    DeleteLedgersInput,
    DeleteLedgersProgress,
    DeletionPolicy,
    ExplicitDetach,
    SetRateInput,
)

pytestmark = [pytest.mark.external_service, pytest.mark.sigkill, pytest.mark.timeout(180)]

_DETACHED = "RunActivity:deletion.detach"
_CHUNK = "Activity:deletion.delete_chunk"


@pytest.fixture
def world(servers: embedded_stack.StackAddresses, tmp_path: Path) -> Iterator[RealWorld]:
    """A world on the shared servers."""
    found = RealWorld(create_store_settings(servers, tmp_path)).prepare()
    yield found
    found.close()


@pytest.fixture
def caller(world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[trace.Span]:
    """The span of a program that starts jobs."""
    provider = create_tracer_provider("caller", traces_dir=world.settings.traces_dir)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    with trace.get_tracer("test").start_as_current_span("program") as span:
        yield span
    provider.shutdown()


def _nodes(world: RealWorld, trace_id: str) -> list[SpanNode]:
    """All of the trace's spans, parents first; those of roots are at depth 0."""
    rows = SpanReader(world.settings.traces_dir).read_trace(trace_id)
    return [node for root in build_span_trees(rows) for node in root.walk()]


async def _slow_batch(world: RealWorld) -> WorkflowHandle[Any, Any]:
    """All ledgers but the last one, at one object a second: a chunk takes as many seconds as it has objects."""
    sexton = await Sexton.connect(world.settings)
    with world.process() as log:
        topic = log.catalog.topics.get_topic(WRITER_PLANS[0].name)
        ledgers = [int(one.ledger_id) for one in log.catalog.ledgers.list_ledgers(topic.topic_id)][:-1]
        epoch = log.catalog.ledgers.catalog_epoch()
    request = DeleteLedgersInput(
        batch_id=f"{topic.topic_id}-traced",
        topic_id=topic.topic_id,
        topic=topic.name,
        catalog_epoch=epoch,
        actor="tests",
        reason="a test",
        policy=DeletionPolicy(chunk=2, parallelism=1),
        detach=ExplicitDetach(ledger_ids=ledgers, force=True),
        carried=DeleteLedgersProgress(rate=1),
    )
    return await sexton.start(DELETE_LEDGERS, request, summary="slowly")


def test_a_batch_whose_worker_was_killed_is_one_trace_of_both_workers(world: RealWorld, caller: trace.Span) -> None:
    """What the dead worker wrote, the attempt that it took with it, and all that another one did, below one call."""
    trace_id = trace.format_trace_id(caller.get_span_context().trace_id)

    async def run() -> None:
        await workflow_search.register_search_attributes(await connect_client(world.settings))
        programs = WritingPrograms(world, WRITER_PLANS)
        await asyncio.to_thread(lambda: programs.drive(programs.write))
        first = await asyncio.to_thread(WorkerProcess, world, "worker-1")
        handle = await _slow_batch(world)
        await wait_until_true(lambda: _in_hand(world, trace_id), "the first worker wrote that it has a chunk in hand")
        first.signal(signal.SIGKILL)
        assert world.unfinished(), "the batch was over before its worker was killed"
        await asyncio.to_thread(WorkerProcess, world, "worker-2")
        await handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=0))
        await ended(handle)
        await wait_until_true(
            lambda: _has(world, trace_id, "RunWorkflow:delete-ledgers"), "the second one wrote its own"
        )

    asyncio.run(run())
    caller.end()
    trace.get_tracer_provider().force_flush()  # type: ignore[attr-defined]
    nodes = _nodes(world, trace_id)
    names = [node.span.name for node in nodes]
    assert [node.span.name for node in nodes if node.depth == 0] == ["program"]
    assert [names.count(one) for one in ("RunWorkflow:delete-ledgers", _DETACHED)] == [1, 1]
    chunks = [node for node in nodes if node.span.name.removeprefix("Start").removeprefix("Run") == _CHUNK]
    left = [node for node in chunks if describe_missing_or_merged_children(node) or node.span.is_lost]
    assert len(left) == 1, "the chunk that the dead worker had in hand"
    assert len(chunks) >= 5, "it was done again, and others after it"
    writers = [path for path in world.settings.traces_dir.glob("sexton-worker-*.jsonl") if trace_id in path.read_text()]
    assert len(writers) == 2


def _in_hand(world: RealWorld, trace_id: str) -> bool:
    """Whether a chunk was begun, as the spans say, and the span of its work is not there yet."""
    names = [node.span.name for node in _nodes(world, trace_id) if not node.span.is_lost]
    return names.count(f"Start{_CHUNK}") > names.count(f"Run{_CHUNK}")


def _has(world: RealWorld, trace_id: str, name: str) -> bool:
    return any(node.span.name == name and not node.span.is_lost for node in _nodes(world, trace_id))


@pytest.mark.all_faults
@pytest.mark.timeout(400)  # Java starts in a worker
def test_a_plan_is_one_trace_down_to_the_jobs_of_spark(world: RealWorld, caller: trace.Span) -> None:
    """From the call over the workflow and its activities to what Spark ran, and when."""
    trace_id = trace.format_trace_id(caller.get_span_context().trace_id)

    async def run() -> None:
        await workflow_search.register_search_attributes(await connect_client(world.settings))
        await asyncio.to_thread(WorkerProcess, world, "worker-1")
        sexton = await Sexton.connect(world.settings)
        await ended(await sexton.plan_orphans(reason="a test", actor="tests"), within_s=300)
        await wait_until_true(
            lambda: _has(world, trace_id, "RunWorkflow:reconcile-orphans"), "the worker wrote its spans"
        )

    asyncio.run(run())
    nodes = _nodes(world, trace_id)
    jobs = [node for node in nodes if node.span.name.startswith("Spark job ")]
    assert jobs
    assert {node.depth for node in jobs} == {7}, "call, run, start and run of an activity, bulk job and step are above"
    assert [node.span.name for node in nodes].count("start Spark") == 1
