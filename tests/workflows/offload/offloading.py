"""Steps of offload that tests of its workflows are told in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowHandle

from activities.offload import DetachPrimariesInput, DetachPrimariesResult, PublishCopyInput
from logstore.ports.catalog.offload import OffloadStartOutcome
from logstore.positions import LedgerId
from tests.workflows.workflow_harness import WorkflowHarness
from workflows.offload.job_definitions import (
    OFFLOAD_LEDGER,
    OFFLOAD_TOPIC,
    OffloadAsk,
    OffloadLedgerInput,
    OffloadLedgerResult,
    OffloadLimits,
    OffloadTopicInput,
    OffloadTopicResult,
)
from workflows.offload.offload_ledger import OffloadLedger
from workflows.offload.offload_topic import OffloadTopic

LedgerHandle = WorkflowHandle[OffloadLedger, OffloadLedgerResult]
TopicHandle = WorkflowHandle[OffloadTopic, OffloadTopicResult]


async def offload(house: WorkflowHarness, ledger_id: LedgerId, **policy: Any) -> LedgerHandle:
    """Start or join the offload of one ledger."""
    return await house.client.start_workflow(
        OffloadLedger.run,
        OffloadLedgerInput(ledger_id=ledger_id, topic=house.world.topic.name, policy=OffloadLimits(**policy)),
        id=OFFLOAD_LEDGER.id(ledger_id),
        task_queue=house.queue,
    )


async def offload_all(house: WorkflowHarness, *asks: OffloadAsk, **more: Any) -> TopicHandle:
    """Start or join the offload of the topic; the last ask comes by signal."""
    topic = house.world.topic
    fixed: dict[str, Any] = {"deletion": house.policy}
    return await house.client.start_workflow(
        OffloadTopic.run,
        OffloadTopicInput(topic_id=topic.topic_id, topic=topic.name, asks=list(asks[:-1]), **(fixed | more)),
        id=f"{OFFLOAD_TOPIC.id(topic.topic_id)}/{house.queue}",  # worlds number their topics alike
        task_queue=house.queue,
        start_signal="ask",
        start_signal_args=[asks[-1]],
    )


def let_uploads_end(house: WorkflowHarness) -> None:
    """By the catalog's clock, which no server skips."""
    for table in ("ledger_copy", "pending_deletion"):
        house.world.sql(
            f"UPDATE {table} SET context = json_set(context, '$.until_us', '1') WHERE context LIKE '%until%'"
        )


def losing(house: WorkflowHarness, between: Callable[[], None]) -> Callable[[PublishCopyInput], OffloadStartOutcome]:
    """Publishing, with something that comes between it and the upload, once."""
    left = [between]
    real = house.world.offload.publish_copy

    @activity.defn(name="offload.publish")
    def publish(request: PublishCopyInput) -> OffloadStartOutcome:
        if left:
            left.pop()()
        return real(request)

    return publish


def removing_in_pages(house: WorkflowHarness, *, limit: int) -> Callable[[DetachPrimariesInput], DetachPrimariesResult]:
    """Removal of primary copies by so many, whose first page is done twice: the first time nobody heard of it."""
    real = house.world.offload.prove_and_detach_primaries
    first = [True]

    @activity.defn(name="offload.remove_primaries")
    def remove(request: DetachPrimariesInput) -> DetachPrimariesResult:
        if first and first.pop():
            real(replace(request, limit=limit))
        return real(replace(request, limit=limit))

    return remove


def take_away(house: WorkflowHarness) -> None:
    """Let the trim take an upload for abandoned, while its ledger stays."""
    let_uploads_end(house)
    assert house.world.detach().intents == 1
