"""Record histories of real runs for `test_replay.py`.

`python -m tests.replay.record [TYPE…]` starts a Temporal server of its own, runs every scene below on a world in memory
and writes `histories/<workflow type>/v<N>/<scene>.json`, with identities and queues scrubbed. To record a new one:

1. A workflow is about to change so that runs of a released build would take another path: put the change behind
   `workflow.patched`, raise the type's version, run this module, commit the new folder. Folders of older versions stay
   as they are, because runs of that version may still be alive.
2. A new workflow, or a new path through one: add a scene, run this module, and commit the new file alone.
3. Raise the counts in `test_replay.py`; an extra or a missing history fails there.
"""

import asyncio
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, chdir, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from activities.deletion.inputs_and_results import DetachResult, TakeOverStalledInput
from logstore.deletion.intents import IntentKey
from logstore.deletion.retention import RetentionPolicy
from tests.activities.activity_world import open_activity_world
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.replay import aborted, clustered, delayed, followed, rebuilding, reconciled, recorded, routed, transacted
from tests.replay.courses import Handle, completed, ended, first_run
from tests.workflows.offload.offloading import losing, offload, offload_all, take_away
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually
from workflows import search_attributes
from workflows.deletion.delete_ledgers import DeleteLedgers
from workflows.deletion.job_definitions import DeletionPolicy, SetRateInput
from workflows.deletion.trim_topic import TrimTopic
from workflows.offload.job_definitions import OffloadAsk

HISTORIES = Path(__file__).resolve().with_name("histories")
VERSION = "v1"
VERSION_BY_TYPE: dict[str, str] = {}
"""Version of the recorded histories of each type that has changed since 0.1.0. All other types have `VERSION`."""

Scene = Callable[[WorkflowHarness], Awaitable[Handle]]
_numbers = itertools.count(1)


async def trim_complete(house: WorkflowHarness) -> Handle:
    """Two ledgers deleted, a second pass that finds none."""
    house.world.fill(2)
    return await completed(house, house.trim())


async def trim_joined(house: WorkflowHarness) -> Handle:
    """`again` arrives while phase two works, and there is new work."""
    house.world.fill(1)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, house.trim()) as handle:
        house.world.fill(1)
        await handle.signal(TrimTopic.again)
        gate.open()
        await handle.result()
    return handle


async def trim_that_cannot_roll(house: WorkflowHarness) -> Handle:
    """The last ledger cannot be rolled; the trim goes on."""
    house.world.fill(1)
    house.roller.failures = 100
    return await completed(house, house.trim())


async def trim_failed(house: WorkflowHarness) -> Handle:
    """The topic is gone."""
    house.world.sql("DELETE FROM topic")
    return await ended(house, house.trim())


async def trim_cancelled(house: WorkflowHarness) -> Handle:
    """Cancelled while its batch works."""
    house.world.fill(1)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, house.trim()) as handle:
        await handle.cancel()
        with suppress(WorkflowFailureError):
            await handle.result()
        gate.open()
    return handle


async def trim_running(house: WorkflowHarness) -> Handle:
    """Its batch is at work."""
    house.world.fill(1)
    gate = house.gate(StoreOperation.DELETE)
    return await house.stop_worker_at_gate(gate, house.trim())


async def trim_continued(house: WorkflowHarness) -> Handle:
    """More passes than one history should hold."""
    async with house.worker():
        house.roller.action = lambda: _one_more(house)
        handle = await house.trim()
        await handle.result()
    return first_run(house, handle)


def _one_more(house: WorkflowHarness) -> None:
    if house.roller.calls < 12:
        house.world.fill(1)


async def delete_complete(house: WorkflowHarness) -> Handle:
    """Given ledgers in several chunks, one of them handed over."""
    ledgers = house.world.fill(5)
    house.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED))
    return await ended(house, house.delete(ledgers))


async def delete_failed(house: WorkflowHarness) -> Handle:
    """The request speaks of another catalog."""
    return await ended(house, house.delete(house.world.fill(1), catalog_epoch=7))


async def delete_refused(house: WorkflowHarness) -> Handle:
    """A ledger is still needed."""
    ledgers = house.world.fill(1, acknowledged=False)
    house.world.catalog.cursors.create_subscription(house.world.topic.topic_id, "slow", latest=False)
    return await ended(house, house.delete(ledgers))


async def delete_stale(house: WorkflowHarness) -> Handle:
    """The catalog was rebuilt after phase one."""
    house.world.fill(1)
    house.world.detach(batch_id=house.queue)
    house.world.sql("UPDATE catalog SET epoch=2")
    return await ended(house, house.delete(batch_id=house.queue))


async def delete_handed_over(house: WorkflowHarness) -> Handle:
    """The store is down for ten attempts of a chunk."""
    ledgers = house.world.fill(2)
    house.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=22))
    return await ended(house, house.delete(ledgers))


async def delete_running(house: WorkflowHarness) -> Handle:
    """A chunk is at work."""
    ledgers = house.world.fill(3)
    gate = house.gate(StoreOperation.DELETE)
    return await house.stop_worker_at_gate(gate, house.delete(ledgers))


async def delete_continued(house: WorkflowHarness) -> Handle:
    """A page longer than one history should hold."""
    ledgers = house.world.fill(60)
    house.policy = DeletionPolicy(chunk=1, parallelism=4)
    async with house.worker():
        handle = await house.delete(ledgers)
        await handle.result()
    return first_run(house, handle)


async def delete_paused(house: WorkflowHarness) -> Handle:
    """Paused for half an hour while a chunk is in hand, slowed down, and resumed."""
    ledgers = house.world.fill(5)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, house.delete(ledgers)) as handle:
        await handle.execute_update(DeleteLedgers.pause)
        gate.open()
        await assert_eventually(lambda: len(house.attempts("deletion.hold_batch")) >= 3)
        await handle.execute_update(DeleteLedgers.set_rate, SetRateInput(objects_per_s=1_000))
        await handle.execute_update(DeleteLedgers.resume)
        await handle.result()
    return handle


async def delete_still_paused(house: WorkflowHarness) -> Handle:
    """Paused before its first chunk."""
    ledgers = house.world.fill(2)
    handle = await house.delete(ledgers)
    asked = asyncio.ensure_future(handle.execute_update(DeleteLedgers.pause))
    async with house.worker():
        await asked
        await assert_eventually(lambda: len(house.attempts("deletion.hold_batch")) >= 1)
    return handle


async def one_complete(house: WorkflowHarness) -> Handle:
    """Deleted at the first attempt."""
    return await ended(house, house.claim_and_delete_copy(_handed_over(house)))


async def one_refused(house: WorkflowHarness) -> Handle:
    """Not ours: fails with METADATA_MISMATCH."""
    key = _handed_over(house)
    house.world.sql("UPDATE pending_deletion SET application='other'")
    return await ended(house, house.claim_and_delete_copy(key))


async def one_dead_lettered(house: WorkflowHarness) -> Handle:
    """Attempts exhausted."""
    house.world.objects.plan(Fault(operation=StoreOperation.LIST, kind=FaultKind.BEFORE, times=100))
    return await ended(house, house.claim_and_delete_copy(_handed_over(house)))


async def one_taken_over(house: WorkflowHarness) -> Handle:
    """Another workflow has the row: completes."""
    key = _handed_over(house)
    house.world.sql("UPDATE pending_deletion SET claim_workflow='delete-ledger/other'")
    return await ended(house, house.claim_and_delete_copy(key))


async def one_without_an_attempt_of_its_own(house: WorkflowHarness) -> Handle:
    """A single attempt is allowed, which was its batch's."""
    return await ended(house, house.claim_and_delete_copy(_handed_over(house), max_attempts=1))


async def one_running(house: WorkflowHarness) -> Handle:
    """Waits for its second attempt."""
    key = _handed_over(house)
    gate = house.gate(StoreOperation.DELETE)
    return await house.stop_worker_at_gate(gate, house.claim_and_delete_copy(key))


async def topic_complete(house: WorkflowHarness) -> Handle:
    """Two ledgers and the open one."""
    house.world.fill(2)
    return await ended(house, house.delete_topic())


async def topic_failed(house: WorkflowHarness) -> Handle:
    """The topic of that id bears another name."""
    return await ended(house, house.delete_topic(topic="persistent://tenant/namespace/another"))


async def topic_whose_batch_is_stopped(house: WorkflowHarness) -> Handle:
    """Its `delete-ledgers` is terminated; the topic goes all the same."""
    house.world.fill(1)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, house.delete_topic()) as handle:
        (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        await house.client.get_workflow_handle(f"delete-ledgers/{batch}").terminate()
        await handle.result()
        gate.open()
    return handle


async def topic_running(house: WorkflowHarness) -> Handle:
    """Its batch is at work."""
    house.world.fill(1)
    gate = house.gate(StoreOperation.DELETE)
    return await house.stop_worker_at_gate(gate, house.delete_topic())


async def sweep_complete(house: WorkflowHarness) -> Handle:
    """A batch of stalled rows, one of them handed over, and rows to forget."""
    _stalled(house, 3)
    house.world.objects.plan(Fault(operation=StoreOperation.DELETE, kind=FaultKind.REPORT_KEY_FAILED))
    return await ended(house, house.sweep())


async def sweep_idle(house: WorkflowHarness) -> Handle:
    """Nothing to do."""
    return await ended(house, house.sweep())


async def sweep_failed(house: WorkflowHarness) -> Handle:
    """A policy that could only hang."""
    house.policy = DeletionPolicy(chunk=0)
    return await ended(house, house.sweep())


async def sweep_running(house: WorkflowHarness) -> Handle:
    """Its batch is at work."""
    _stalled(house, 1)
    gate = house.gate(StoreOperation.DELETE)
    return await house.stop_worker_at_gate(gate, house.sweep())


async def offload_complete(house: WorkflowHarness) -> Handle:
    """Uploaded at the second attempt, and published."""
    (ledger,) = house.world.create_readable_ledgers(1)
    house.world.tiered.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE))
    return await ended(house, offload(house, ledger))


async def offload_gone(house: WorkflowHarness) -> Handle:
    """The ledger was deleted."""
    (ledger,) = house.world.create_readable_ledgers(1)
    house.world.detach()
    return await ended(house, offload(house, ledger))


async def offload_failed(house: WorkflowHarness) -> Handle:
    """The ledger is open."""
    house.world.fill(1)
    (last,) = house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)[-1:]
    return await ended(house, offload(house, last.ledger_id))


async def offload_that_lost(house: WorkflowHarness) -> Handle:
    """Taken away as abandoned before it was published, and begun again."""
    (ledger,) = house.world.create_readable_ledgers(1)
    house.world.catalog.cursors.create_subscription(house.world.topic.topic_id, "slow", latest=False)
    async with house.worker(replacements=[losing(house, partial(take_away, house))]):
        handle = await offload(house, ledger)
        await handle.result()
    return handle


async def offload_running(house: WorkflowHarness) -> Handle:
    """An upload is at work."""
    (ledger,) = house.world.create_readable_ledgers(1)
    gate = Gate()
    house.world.tiered.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=gate.wait))
    return await house.stop_worker_at_gate(gate, offload(house, ledger))


async def sweep_whose_batch_is_lost(house: WorkflowHarness) -> Handle:
    """Its batch is terminated."""
    _stalled(house, 1)
    gate = house.gate(StoreOperation.DELETE)
    async with house.run_until_gate(gate, house.sweep()) as handle:
        (intent,) = house.world.catalog.deletions.list_intents(None, limit=9)
        await house.client.get_workflow_handle(f"delete-ledgers/{intent.batch_id}").terminate()
        await handle.result()
        gate.open()
    return handle


async def sweep_continued(house: WorkflowHarness) -> Handle:
    """Rows stall as long as it works."""
    left, real = iter(range(14)), house.world.upkeep.take_over_stalled

    @activity.defn(name="deletion.adopt")
    def adopt(request: TakeOverStalledInput) -> DetachResult:
        if (number := next(left, None)) is not None:
            _stalled(house, 1, batch_id=f"{house.queue}-{number}")
        return real(request)

    async with house.worker(replacements=[adopt]):
        handle = await house.sweep()
        await handle.result()
    return first_run(house, handle)


async def offload_all_complete(house: WorkflowHarness) -> Handle:
    """One of three fails; primaries of the others removed."""
    ledgers = house.world.create_readable_ledgers(3)
    bad = f"-ledger-{ledgers[1]}"
    house.world.tiered.plan(
        Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=50, matches=lambda key: key.endswith(bad))
    )
    ask = OffloadAsk(actor="tests", reason="recorded", delete_primary=True)
    return await ended(house, offload_all(house, ask))


async def offload_all_failed(house: WorkflowHarness) -> Handle:
    """A policy that could only hang."""
    house.policy = DeletionPolicy(chunk=0)
    return await ended(house, offload_all(house, OffloadAsk(actor="tests", reason="recorded")))


async def offload_all_refused(house: WorkflowHarness) -> Handle:
    """An unknown ledger was asked for: the result says so."""
    house.world.create_readable_ledgers(1)
    ask = OffloadAsk(actor="tests", reason="recorded", ledger_ids=[10**9])
    return await ended(house, offload_all(house, ask))


async def offload_all_running(house: WorkflowHarness) -> Handle:
    """A child is at work."""
    house.world.create_readable_ledgers(2)
    gate = Gate()
    house.world.tiered.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=gate.wait))
    return await house.stop_worker_at_gate(gate, offload_all(house, OffloadAsk(actor="tests", reason="recorded")))


async def offload_all_continued(house: WorkflowHarness) -> Handle:
    """More ledgers than one history should hold, and one thing more to do."""
    house.world.create_readable_ledgers(12)
    asks = [OffloadAsk(actor="tests", reason="recorded", delete_primary=primary) for primary in (False, True)]
    async with house.worker():
        handle = await offload_all(house, *asks)
        await handle.result()
    return first_run(house, handle)


def _stalled(house: WorkflowHarness, count: int, *, batch_id: str = "") -> None:
    house.world.fill(count)
    house.world.detach(batch_id=batch_id or f"{house.queue}-dead")
    house.world.sql("UPDATE run SET claim_until_us = 1 WHERE run_id NOT LIKE 'sweep-%'")


def _topics(house: WorkflowHarness, count: int) -> None:
    """One consumed ledger in each of so many topics."""
    house.world.fill(1)
    for number in range(1, count):
        name = f"persistent://tenant/namespace/more-{number}"
        replace(house.world, topic=house.world.catalog.topics.create_topic(name, RetentionPolicy())).fill(1)


async def trims_complete(house: WorkflowHarness) -> Handle:
    """Three topics in two pages."""
    _topics(house, 3)
    return await ended(house, house.trim_all(page=2))


async def trims_failed(house: WorkflowHarness) -> Handle:
    """A policy that could only hang."""
    house.policy = DeletionPolicy(chunk=0)
    return await ended(house, house.trim_all())


async def trims_that_do_not_wait(house: WorkflowHarness) -> Handle:
    """Phase two takes longer than the trim waits."""
    _topics(house, 1)
    gate = house.gate(StoreOperation.DELETE)
    async with house.worker():
        handle = await house.trim_all(patience_s=1)
        await handle.result()
        gate.open()
    return handle


async def trims_running(house: WorkflowHarness) -> Handle:
    """Its batch is at work."""
    _topics(house, 2)
    gate = house.gate(StoreOperation.DELETE)
    return await house.stop_worker_at_gate(gate, house.trim_all())


async def trims_continued(house: WorkflowHarness) -> Handle:
    """More pages than one history should hold."""
    _topics(house, 45)
    async with house.worker():
        handle = await house.trim_all(page=1)
        await handle.result()
    return first_run(house, handle)


SCENES: dict[str, tuple[Scene, ...]] = {
    "trim-topic": (
        trim_complete,
        trim_joined,
        trim_that_cannot_roll,
        trim_failed,
        trim_cancelled,
        trim_running,
        trim_continued,
        routed.trim_at_its_owner,
    ),
    "delete-ledgers": (
        delete_complete,
        delete_failed,
        delete_refused,
        delete_stale,
        delete_handed_over,
        delete_running,
        delete_continued,
        delete_paused,
        delete_still_paused,
        routed.delete_at_the_next_owner,
    ),
    "trim-topics": (trims_complete, trims_failed, trims_that_do_not_wait, trims_running, trims_continued),
    "delete-topic": (topic_complete, topic_failed, topic_whose_batch_is_stopped, topic_running),
    "delete-ledger": (
        one_complete,
        one_refused,
        one_dead_lettered,
        one_running,
        one_taken_over,
        one_without_an_attempt_of_its_own,
        routed.one_whose_owner_is_not_known,
        routed.one_let_lie,
        routed.one_refused_by_its_owner,
    ),
    "sweep-deletions": (
        sweep_complete,
        sweep_idle,
        sweep_failed,
        sweep_running,
        sweep_whose_batch_is_lost,
        sweep_continued,
    ),
    "offload-ledger": (offload_complete, offload_gone, offload_failed, offload_that_lost, offload_running),
    "reconcile-orphans": (
        reconciled.plan_complete,
        reconciled.plan_refused,
        reconciled.plan_failed,
        reconciled.plan_running,
    ),
    "apply-orphans": (
        reconciled.apply_complete,
        reconciled.apply_paused,
        reconciled.apply_refused,
        reconciled.apply_failed,
        reconciled.apply_running,
        reconciled.apply_continued,
    ),
    "plan-pulsar": (
        clustered.plan_complete,
        clustered.plan_incomplete,
        clustered.plan_refused,
        clustered.plan_failed,
        clustered.plan_running,
    ),
    "apply-pulsar": (
        clustered.apply_complete,
        clustered.apply_irreversible,
        clustered.apply_stopped,
        clustered.apply_refused,
        clustered.apply_failed,
        clustered.apply_paused,
        clustered.apply_running,
    ),
    "abort-transactions": (
        aborted.abort_complete,
        aborted.abort_in_part,
        aborted.abort_refused,
        aborted.abort_failed,
        aborted.abort_running,
    ),
    "undo-pulsar": (clustered.undo_complete, clustered.undo_refused, clustered.undo_failed, clustered.undo_running),
    "scrub-ledgers": (
        reconciled.scrub_complete,
        reconciled.scrub_paused,
        reconciled.scrub_refused,
        reconciled.scrub_failed,
        reconciled.scrub_running,
        reconciled.scrub_continued,
    ),
    "offload-topic": (
        offload_all_complete,
        offload_all_failed,
        offload_all_refused,
        offload_all_running,
        offload_all_continued,
    ),
    "transaction-coordinator": (
        transacted.coordinator_running,
        transacted.coordinator_that_hands_over,
        transacted.coordinator_continued,
    ),
    "broadcast-transaction": (
        transacted.broadcast_complete,
        transacted.broadcast_failed,
        transacted.broadcast_running,
    ),
    "sweep-transactions": (transacted.sweep_complete, transacted.sweep_failed, transacted.sweep_running),
    "seal-buckets": (
        delayed.seal_complete,
        delayed.seal_of_one_topic,
        delayed.seal_of_a_held_topic,
        delayed.seal_failed,
        delayed.seal_running,
    ),
    "merge-buckets": (
        delayed.merge_complete,
        delayed.merge_damaged,
        delayed.merge_held,
        delayed.merge_failed,
        delayed.merge_running,
        delayed.merge_continued,
    ),
    "build-transaction-snapshots": (transacted.build_complete, transacted.build_failed, transacted.build_running),
    "build-delayed-index": (
        delayed.build_complete,
        delayed.build_superseded,
        delayed.build_failed,
        delayed.build_running,
    ),
    "rebuild-catalog": (
        rebuilding.rebuild_complete,
        rebuilding.rebuild_refused,
        rebuilding.rebuild_failed,
        rebuilding.rebuild_outdated,
        rebuilding.rebuild_cancelled,
        rebuilding.rebuild_running,
    ),
    "follow-records": (
        followed.follow_complete,
        followed.follow_refused,
        followed.follow_failed,
        followed.follow_running,
    ),
    "flush-records": (
        recorded.flush_complete,
        recorded.flush_refused,
        recorded.flush_failed,
        recorded.flush_running,
    ),
    "sweep-records": (recorded.sweep_complete, recorded.sweep_failed, recorded.sweep_running),
    "defragment-records": (
        recorded.defragment_complete,
        recorded.defragment_of_a_schedule,
        recorded.defragment_refused,
        recorded.defragment_failed,
        recorded.defragment_running,
    ),
    "raid-tombstones": (
        recorded.raid_complete,
        recorded.raid_of_a_schedule,
        recorded.raid_refused,
        recorded.raid_failed,
        recorded.raid_running,
    ),
    "end-records": (
        recorded.end_complete,
        recorded.end_dry,
        recorded.end_refused,
        recorded.end_stopped,
        recorded.end_failed,
        recorded.end_running,
    ),
    "replicate-records": (
        recorded.replicate_complete,
        recorded.replicate_of_a_schedule,
        recorded.replicate_failed,
        recorded.replicate_running,
    ),
}


def _handed_over(house: WorkflowHarness) -> IntentKey:
    (ledger,) = house.world.fill(1)
    house.world.detach()
    (intent,) = house.world.intents()
    name = f"delete-ledger/{ledger}/LEDGER/1"
    house.world.catalog.deletions.move_to_own_workflows(
        {intent.row_id: name}, batch_id=intent.batch_id, error_by_row={}, ttl_s=60
    )
    return house.world.key(ledger)


def workflow_id_of(history: Path) -> str:
    """Return the id of the recorded workflow."""
    started = json.loads(history.read_text(encoding="utf-8"))["events"][0]
    return str(started["workflowExecutionStartedEventAttributes"]["workflowId"])


def scrubbed(history: dict[str, Any]) -> dict[str, Any]:
    """The history without process, host and path: identities, sticky queues named after them, stack traces."""

    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(one) for one in value]
        if isinstance(value, str):
            return "recorded" if re.fullmatch(r"\d+@\S+", value) else value
        if not isinstance(value, dict):
            return value
        kept = {name: clean(one) for name, one in value.items() if name not in {"stackTrace", "requestId"}}
        return kept | {name: "recorded" for name in ("identity", "binaryChecksum", "buildId") if name in kept}

    cleaned: dict[str, Any] = clean(history)
    return cleaned


@asynccontextmanager
async def _server() -> AsyncIterator[WorkflowEnvironment]:
    values = ("frontend.WorkflowTimeSkippingEnabled=true", "limit.historyCount.suggestContinueAsNew=100")
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
        dev_server_extra_args=[f"--dynamic-config-value={value}" for value in values],
        data_converter=pydantic_data_converter,
        search_attributes=search_attributes.ALL,
    )
    async with environment:
        yield environment


async def record(folder: Path, types: Sequence[str]) -> None:
    """Run every scene of the types and write its history below `folder`, in place of what is there."""
    with tempfile.TemporaryDirectory() as scratch, chdir(scratch):  # so that no path of this machine is recorded
        async with _server() as environment:
            for type_ in types:
                target = folder / type_ / VERSION_BY_TYPE.get(type_, VERSION)
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir(parents=True)
                for scene in SCENES[type_]:
                    await _record(environment, scene, target / f"{scene.__name__}.json")


async def _record(environment: WorkflowEnvironment, scene: Scene, target: Path) -> None:
    number = next(_numbers)
    world = open_activity_world(Path(str(number)))
    with WorkflowHarness(environment.client, world, queue=f"recorded-{number}", first_ledger=number * 1000) as house:
        handle = await scene(house)
        history = (await handle.fetch_history()).to_json_dict()
    world.catalog.database.close()
    await asyncio.to_thread(target.write_text, json.dumps(scrubbed(history), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(record(HISTORIES, sys.argv[1:] or list(SCENES)))
