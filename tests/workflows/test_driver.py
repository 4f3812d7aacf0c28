"""The driver of `tests/driver` does what the real server does: the same attempts for each workflow, the same answers.

Tests of faults stand on it; so what it makes up of Temporal is compared here with a server that does not.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter

from logstore.deletion.intents import DeletionState
from logstore.log.ledger_object_keys import ledger_prefix, segment_key
from tests.activities.activity_world import World
from tests.driver.activity_worker import ActivityWorker
from tests.driver.simulated_server import SimulatedServer
from tests.driver.workflow_driver import WorkflowDriver
from tests.driver.workflow_executions import Execution
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.workflow_harness import WorkflowHarness, assert_eventually, failure_type_and_message
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.delete_topic import DeleteTopic
from workflows.deletion.job_definitions import (
    DeleteLedgersInput,
    DeleteTopicInput,
    DeletionPolicy,
    ExplicitDetach,
    TrimTopicInput,
)
from workflows.deletion.trim_topic import TrimTopic
from workflows.offload.job_definitions import OffloadAsk, OffloadTopicInput
from workflows.offload.offload_topic import OffloadTopic

_CONVERTER = pydantic_data_converter.payload_converter
_POLICY = DeletionPolicy(chunk=2, parallelism=1, max_attempts=4, retry_interval_s=60)
_CAUSE: dict[str, Any] = {"actor": "tests", "reason": "a test"}


def _trim_in_trouble(world: World) -> tuple[type, object]:
    """Storage refuses a key twice, another for ever, holds what is another's, and is silent of the last ledger."""
    stubborn, hopeless, squatted, silent = world.fill(4)
    for ledger_id, times in ((stubborn, 2), (hopeless, 1_000)):
        last = segment_key(ledger_id, 1)
        refused = Fault(
            operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED, matches=last.__eq__, times=times
        )
        world.objects.plan(refused)
    world.objects.put_if_absent(f"{ledger_prefix(squatted)}notes.txt", b"theirs", metadata={})
    unanswered = ledger_prefix(silent).__eq__
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, matches=unanswered, times=12))
    return TrimTopic, TrimTopicInput(policy=_POLICY, **_topic(world), **_CAUSE)


def _store_away(world: World) -> tuple[type, object]:
    """No listing is answered for so long that a chunk gives up, and its two rows go on alone, and fail once."""
    world.fill(2)
    world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=2 * (10 + 1)))
    return TrimTopic, TrimTopicInput(policy=_POLICY, **_topic(world), **_CAUSE)


def _delete_topic(world: World) -> tuple[type, object]:
    world.fill(3, acknowledged=False)
    return DeleteTopic, DeleteTopicInput(policy=_POLICY, **_topic(world), **_CAUSE)


def _offload_topic(world: World) -> tuple[type, object]:
    world.create_readable_ledgers(3)
    ask = OffloadAsk(delete_primary=True, **_CAUSE)
    return OffloadTopic, OffloadTopicInput(deletion=_POLICY, asks=[ask], **_topic(world))


def _delete_what_is_needed(world: World) -> tuple[type, object]:
    ledgers = world.fill(2, acknowledged=False)
    world.catalog.cursors.create_subscription(world.topic.topic_id, "reader", latest=False)
    detach = ExplicitDetach(ledger_ids=[int(ledgers[0])])
    return DeleteLedgers, DeleteLedgersInput(
        batch_id="needed", catalog_epoch=1, detach=detach, **_topic(world), **_CAUSE
    )


def _topic(world: World) -> dict[str, Any]:
    return {"topic_id": world.topic.topic_id, "topic": world.topic.name}


def _by_workflow(attempts: Iterable[tuple[str, str, int]]) -> dict[str, list[tuple[str, int]]]:
    """What each workflow had attempted, in order; names that a workflow drew by chance are left out of its id."""
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for workflow_id, type_, number in attempts:
        found[re.sub(r"-[0-9a-f]{12}$", "-…", workflow_id)].append((type_, number))
    return dict(found)


def _ended(world: World) -> bool:
    return not world.catalog.deletions.list_intents(DeletionState.PENDING, limit=1)


def _answer(execution: Execution, workflow: Any) -> Any:
    """What the workflow answered, or how it failed."""
    if execution.result is None:
        assert execution.failure
        return (execution.failure.application_failure_info.type, execution.failure.message)
    (answer,) = _CONVERTER.from_payloads([execution.result], [_returns(workflow)])
    return answer


def _returns(workflow: Any) -> type:
    return workflow.run.__annotations__["return"]  # type: ignore[no-any-return]


@pytest.mark.external_service
@pytest.mark.parametrize(
    "prepare", [_trim_in_trouble, _store_away, _delete_topic, _offload_topic, _delete_what_is_needed]
)
async def test_driver_does_what_the_server_does(
    prepare: Callable[[World], tuple[Any, object]], house: WorkflowHarness, new_world: Callable[[], World]
) -> None:
    """Two worlds that are the same, one served by each."""
    workflow, request = prepare(house.world)
    async with house.worker():
        handle = await house.client.start_workflow(
            workflow.run, request, id=f"driver/{house.queue}", task_queue=house.queue
        )
        try:
            answer = await handle.result()
        except WorkflowFailureError as error:
            answer = failure_type_and_message(error)
        await assert_eventually(lambda: _ended(house.world))
    with WorkflowHarness(house.client, new_world(), queue=house.queue, first_ledger=house.first_ledger) as twin:
        assert prepare(twin.world)[1] == request
        driver = WorkflowDriver(SimulatedServer())
        execution = driver.server.start(workflow, request, id=f"driver/{house.queue}")
        driver.run(ActivityWorker(twin.activities()))
    assert _answer(execution, workflow) == answer
    theirs = _by_workflow((one.workflow_id, one.type, one.number) for one in house.attempts())
    assert _by_workflow((one.workflow_id, one.type, one.number) for one in driver.made) == theirs
