"""`delete-topic`: everything of a topic goes, from whatever state it is in."""

import asyncio
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from activities.deletion.topic_deletion import RemovedTopicTally, RemoveTopicInput
from logstore.errors import UnknownObject
from logstore.ports.catalog.log import TopicState
from tests.all_topics import list_all_topics
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.workflows.workflow_harness import (
    Gate,
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workflows.deletion.delete_topic import DeleteTopic


def topic_rows(house: WorkflowHarness) -> list[tuple[Any, ...]]:
    """What the catalog still has of any topic."""
    tables = ("topic", "ledger_list", "ledger", "ledger_copy", "segment", "cursor", "producer_sequence")
    return [row for table in tables for row in house.world.sql(f"SELECT '{table}' FROM {table}")]


def deletes(**more: object) -> Fault:
    """A fault of any delete."""
    return Fault(operation=StoreOperation.DELETE, **more)  # type: ignore[arg-type]


async def test_delete_topic_leaves_nothing_of_it(house: WorkflowHarness) -> None:
    """Ledgers that subscriptions need and the open last one go too; intents and the audit log stay (promise 2)."""
    ledgers = house.world.fill(3, acknowledged=False)
    house.world.acknowledge(ledgers[0], "slow")
    async with house.worker():
        handle = await house.delete_topic()
        result = await handle.result()
        shown = await query_current_details(handle)
    assert (result.detached, result.deleted, result.outcomes, result.passes) == (4, 4, {"DELETED": 4}, 1)
    assert (result.step, result.objects, result.size_bytes > 0) == ("ended", 12, True)
    assert shown.startswith("**ended** — 4 ledgers detached, 4 copies deleted, 12 objects")
    assert topic_rows(house) == []
    assert not house.world.objects.keys
    acts = [row[0] for row in house.world.sql("SELECT act FROM audit ORDER BY audit_id")]
    assert acts == ["delete-topic", "detach", "delete-ledgers", "remove-topic"]


async def test_delete_topic_without_ledgers_ends_at_once(house: WorkflowHarness) -> None:
    """No batch for nothing."""
    result = await house.done(house.delete_topic())
    assert (result.outcomes, result.passes) == ({}, 1)
    assert topic_rows(house) == []
    assert house.world.sql("SELECT run_id FROM run") == []


async def test_delete_topic_does_not_wait_for_a_copy_that_retries(house: WorkflowHarness) -> None:
    """The topic goes while a row is retrying; its dead letter keeps the topic's name (apache/pulsar#26431)."""
    ledgers = house.world.fill(2)
    stuck = ledgers[0]
    prefix = f"ledgers/{stuck % 256:02x}/{stuck:016x}/"
    fault = deletes(kind=FaultKind.REPORT_KEY_FAILED, matches=lambda key: key.startswith(prefix), times=1_000)
    house.world.objects.plan(fault)
    async with house.worker():
        result = await (await house.delete_topic()).result()
        assert topic_rows(house) == []
        with pytest.raises(WorkflowFailureError):
            await house.alone(house.world.key(stuck)).result()
    assert result.outcomes in ({"DELETED": 2, "RETRYING": 1}, {"DELETED": 2, "DEAD_LETTERED": 1})
    (letter,) = house.world.sql("SELECT topic, outcome FROM pending_deletion WHERE state = 'DEAD_LETTERED'")
    assert tuple(letter) == (house.world.topic.name, "DEAD_LETTERED")


async def test_delete_topic_tells_of_dead_letters_it_met(house: WorkflowHarness) -> None:
    """What a person must look at is in the certificate, although an earlier trim gave it up."""
    ledgers = house.world.fill(2)
    house.world.detach([ledgers[0]])
    house.world.sql("UPDATE pending_deletion SET state='DEAD_LETTERED', outcome='METADATA_MISMATCH'")
    result = await house.done(house.delete_topic())
    assert result.outcomes == {"DELETED": 2, "METADATA_MISMATCH": 1}
    assert result.deleted == 2


@pytest.mark.parametrize(
    ("more", "type_"),
    [
        ({"topic": "persistent://tenant/namespace/another"}, "PreconditionFailed"),
        ({"catalog_epoch": 7}, "StaleCatalog"),
    ],
)
async def test_delete_topic_of_another_one_is_refused(house: WorkflowHarness, more: dict[str, Any], type_: str) -> None:
    """Terminal: an id that bears another name, or of another catalog, changes nothing (promise 3)."""
    ledgers = house.world.fill(1)
    assert (await house.failed(house.delete_topic(**more)))[0] == type_
    assert house.world.catalog.topics.get_topic_by_id(house.world.topic.topic_id).state is TopicState.ACTIVE
    assert all(house.world.left_of(one) for one in ledgers)


async def test_delete_topic_that_never_was_fails(house: WorkflowHarness) -> None:
    """Terminal, and it says so (apache/bookkeeper#3316)."""
    house.world.sql("DELETE FROM topic")
    assert (await house.failed(house.delete_topic()))[0] == "UnknownObject"


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_delete_topic_stopped_midway_goes_on_when_started_again(house: WorkflowHarness, how: str) -> None:
    """The topic stays DELETING, its batch finishes by itself, and the next start ends it (promise 8)."""
    house.world.fill(2)
    gate = Gate()
    house.world.objects.plan(deletes(kind=FaultKind.CALL, action=gate.wait))
    async with house.worker():
        handle = await house.delete_topic()
        await assert_eventually(gate.reached.is_set)
        await getattr(handle, how)()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert house.world.catalog.topics.get_topic_by_id(house.world.topic.topic_id).state is TopicState.DELETING
        (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        gate.open()
        await house.client.get_workflow_handle(f"delete-ledgers/{batch}").result()
        result = await (await house.delete_topic()).result()
    assert (result.outcomes, result.detached) == ({"DELETED": 3}, 0)
    assert topic_rows(house) == []
    assert not house.world.objects.keys


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_delete_topic_whose_batch_is_stopped_removes_the_topic(house: WorkflowHarness, how: str) -> None:
    """Rows that nobody works on are listed and swept later; they do not hold up the topic."""
    house.world.fill(2)
    gate = Gate()
    house.world.objects.plan(deletes(kind=FaultKind.CALL, action=gate.wait))
    async with house.worker():
        handle = await house.delete_topic()
        await assert_eventually(gate.reached.is_set)
        (batch,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=9)}
        await getattr(house.client.get_workflow_handle(f"delete-ledgers/{batch}"), how)()
        result = await handle.result()
        gate.open()
    assert result.step == "ended"
    assert result.outcomes.get("RETRYING")
    assert topic_rows(house) == []


async def test_delete_topic_started_again_after_its_end_answers_the_same(house: WorkflowHarness) -> None:
    """Running it twice equals running it once (promise 8), whoever created the name again meanwhile."""
    house.world.fill(2)
    async with house.worker():
        first = await (await house.delete_topic()).result()
        again = house.world.catalog.topics.create_topic(house.world.topic.name, house.world.topic.policy)
        second = await (await house.delete_topic()).result()
    assert (second.outcomes, second.objects, second.detached) == (first.outcomes, first.objects, 0)
    assert list_all_topics(house.world.catalog.topics) == [again]


async def test_delete_topic_goes_back_while_something_is_attached(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that is there when the topic is to go is detached first; totals travel over continue-as-new."""
    house.world.fill(1)
    held = [True]

    @activity.defn(name="topic.remove")
    def remove(request: RemoveTopicInput) -> RemovedTopicTally:
        if held:
            held.pop()
            house.world.sql(
                "INSERT INTO ledger SELECT 999999, list_id, NULL, 'sexton', 'CREATING', 0, 0, 0, -1, 0, 1, 0, NULL"
                " FROM ledger_list"
            )
        return house.topics.remove_topic_and_tally(request)

    monkeypatch.setattr("temporalio.workflow.Info.is_continue_as_new_suggested", lambda _info: True)
    async with house.worker(replacements=[remove]):
        handle = await house.delete_topic()
        result = await handle.result()
        progress = await handle.query(DeleteTopic.progress)
    assert (result.passes, result.detached, result.outcomes) == (2, 3, {"ALREADY_GONE": 1, "DELETED": 2})
    assert progress == result
    assert topic_rows(house) == []
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


async def test_delete_topic_joined_by_a_trim_ends_both(house: WorkflowHarness) -> None:
    """A trim that meets the topic while it goes ends: with nothing to do, or because there is no such topic."""
    house.world.fill(3)
    async with house.worker():
        deletion, trim = await house.delete_topic(), await house.trim()
        result = await deletion.result()
        (ended,) = await asyncio.gather(trim.result(), return_exceptions=True)
    assert not isinstance(ended, WorkflowFailureError) or failure_type_and_message(ended)[0] == UnknownObject.__name__
    assert sum(result.outcomes.values()) == 4, "it tells of each copy, also of one that the trim still had in hand"
    assert set(result.outcomes) <= {"DELETED", "RETRYING"}
    assert topic_rows(house) == []
    assert not house.world.objects.keys
