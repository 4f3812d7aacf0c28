"""A job is joined under its id, and no workflow of anybody else."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle

from logstore.errors import PreconditionFailed
from workers.cli.command_errors import ExitCode, classify_error
from workers.client import Sexton
from workers.client.job_client import start_job
from workers.settings import Settings
from workflows.deletion.job_definitions import TRIM_TOPIC, TrimTopicInput
from workflows.pulsar.job_definitions import APPLY_PULSAR, ApplyPulsarInput

pytestmark = pytest.mark.external_service


@asynccontextmanager
async def _running(client: Client, kind: str, workflow_id: str) -> AsyncIterator[None]:
    """A workflow that nobody serves runs while the block does."""
    handle = await client.start_workflow(kind, id=workflow_id, task_queue="nobody")
    try:
        yield
    finally:
        await handle.terminate()


async def _signals(client: Client, workflow_id: str) -> list[str]:
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return [
        event.workflow_execution_signaled_event_attributes.signal_name
        for event in history.events
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]


@pytest.mark.parametrize("more", [{}, {"start_signal": "again"}], ids=["started", "started by a signal"])
def test_workflow_of_another_type_under_the_id_of_a_job_is_refused(settings: Settings, more: dict[str, Any]) -> None:
    """Its result would be waited for, perhaps for ever; it is sent no signal."""
    key = uuid.uuid4().int >> 66  # of a topic that no other test has

    async def run() -> tuple[BaseException, list[str]]:
        client = (await Sexton.connect(settings)).client
        async with _running(client, "theirs", TRIM_TOPIC.id(key)):
            request = TrimTopicInput(topic_id=key, topic="persistent://a/b/c", actor="tests", reason="a test")
            with pytest.raises(PreconditionFailed) as refused:
                await start_job(client, TRIM_TOPIC, request, queue="nobody", **more)
            return refused.value, await _signals(client, TRIM_TOPIC.id(key))

    error, signals = asyncio.run(run())
    assert str(error).startswith(f"workflow trim-topic/{key}: expected the type trim-topic, found 'theirs', which runs")
    assert classify_error(error).code is ExitCode.REFUSED
    assert signals == []


@pytest.mark.parametrize("more", [{}, {"start_signal": "again"}], ids=["started", "started by a signal"])
def test_job_of_its_own_type_is_joined_and_one_that_ended_is_started_again(
    settings: Settings, more: dict[str, Any]
) -> None:
    """What ran under the id before does not matter."""
    key = uuid.uuid4().int >> 66  # of a topic that no other test has

    async def run() -> list[str | None]:
        client = (await Sexton.connect(settings)).client
        async with _running(client, "theirs", TRIM_TOPIC.id(key)):
            pass
        request = TrimTopicInput(topic_id=key, topic="persistent://a/b/c", actor="tests", reason="a test")
        joined = [await start_job(client, TRIM_TOPIC, request, queue="nobody", **more) for _ in range(2)]
        await joined[0].terminate()
        return [handle.result_run_id for handle in joined]

    first, second = asyncio.run(run())
    assert first == second


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"actor": "bob", "reason": "another"}, None),
        ({"limit": 0}, "expected limit 0, found a run with 10"),
        ({"include_unconfirmed": True}, "expected include_unconfirmed True, found a run with False"),
    ],
)
def test_apply_of_a_cluster_joins_one_with_the_same_options_only(
    settings: Settings, changes: dict[str, Any], refusal: str | None
) -> None:
    """Who asked, and why, may differ."""
    key = f"pulsar-{uuid.uuid4().hex[:12]}"
    first = ApplyPulsarInput(run_id=key, actor="ann", limit=10)

    async def run() -> None:
        client = (await Sexton.connect(settings)).client

        async def start(request: ApplyPulsarInput) -> WorkflowHandle[Any, Any]:
            return await start_job(client, APPLY_PULSAR, request, queue="nobody", joins_same_request_only=True)

        handle = await start(first)
        try:
            assert (await start(replace(first, **changes))).result_run_id == handle.result_run_id
        finally:
            await handle.terminate()

    if refusal is None:
        asyncio.run(run())
        return
    with pytest.raises(PreconditionFailed, match=f"^workflow apply-pulsar/{key}: {refusal}"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("more", "asked"), [({}, [0, 1]), ({"start_signal": "again"}, [1, 1])], ids=["started", "started by a signal"]
)
def test_type_is_asked_for_at_most_once_a_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], asked: list[int]
) -> None:
    """A run that was just started is the job's; the one that was asked about before its signal is known."""
    key, described = uuid.uuid4().int >> 66, list[str]()
    describe = WorkflowHandle.describe

    async def count(handle: WorkflowHandle[Any, Any], **options: Any) -> WorkflowExecutionDescription:
        described.append(handle.id)
        return await describe(handle, **options)

    async def run() -> list[int]:
        client = (await Sexton.connect(settings)).client
        request = TrimTopicInput(topic_id=key, topic="persistent://a/b/c", actor="tests", reason="a test")
        monkeypatch.setattr(WorkflowHandle, "describe", count)
        counts = []
        for _ in range(2):
            described.clear()
            handle = await start_job(client, TRIM_TOPIC, request, queue="nobody", **more)
            counts.append(len(described))
        await handle.terminate()
        return counts

    assert asyncio.run(run()) == asked


def test_workflow_that_takes_the_id_after_the_question_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal may have reached it; its result is not waited for."""
    key = uuid.uuid4().int >> 66  # of a topic that no other test has
    workflow_id, describe = TRIM_TOPIC.id(key), WorkflowHandle.describe

    async def run() -> BaseException:
        client = (await Sexton.connect(settings)).client
        started: list[WorkflowHandle[Any, Any]] = []

        async def describe_early(handle: WorkflowHandle[Any, Any], **options: Any) -> WorkflowExecutionDescription:
            try:
                return await describe(handle, **options)
            finally:
                if not started:
                    started.append(await client.start_workflow("theirs", id=workflow_id, task_queue="nobody"))

        monkeypatch.setattr(WorkflowHandle, "describe", describe_early)
        request = TrimTopicInput(topic_id=key, topic="persistent://a/b/c", actor="tests", reason="a test")
        with pytest.raises(PreconditionFailed) as refused:
            await start_job(client, TRIM_TOPIC, request, queue="nobody", start_signal="again")
        await started[0].terminate()
        return refused.value

    assert "found 'theirs'" in str(asyncio.run(run()))
