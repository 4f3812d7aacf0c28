"""Functions over records as a job: what a function ends is gone, what is needed stays, and what fails is named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowFailureError

from activities.records.end_records import EndRecordsPageInput, EndRecordsPageResult
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogBusy
from logstore.positions import LedgerId
from tests.fakes.object_store import StoreOperation
from tests.workflows.records.verbs import end
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually, query_current_details
from workflows.records.end_records import EndRecords
from workflows.records.job_definitions import EndRecordsResult


def listed(house: WorkflowHarness) -> list[LedgerId]:
    """The topic's ledgers."""
    return [one.ledger_id for one in house.world.catalog.ledgers.list_ledgers(house.world.topic.topic_id)]


def buried(house: WorkflowHarness) -> set[int]:
    """Ledgers that left tombstones."""
    return {row.id for row in house.world.sql("SELECT id FROM tombstone WHERE kind = 'ledger'")}


async def done(house: WorkflowHarness, function: str, **more: Any) -> EndRecordsResult:
    """Its result."""
    result: EndRecordsResult = await house.done(end(house, function, **more))
    return result


async def test_what_the_function_ends_is_gone_and_leaves_tombstones(house: WorkflowHarness) -> None:
    """Page by page; the others stay, and the audit log says which function it was."""
    ledgers = house.world.fill(5)
    even = [one for one in ledgers if one % 2 == 0]
    result = await done(house, "even")
    assert (result.records, result.ended, result.kept) == (5, len(even), 0)
    assert result.outcomes == {"DELETED": len(even)}
    assert result.ledger_ids == even
    assert set(listed(house)) == {*ledgers, ledgers[-1] + 1} - {*even}
    assert buried(house) == {*even}
    assert not [key for key in house.world.objects.keys if any(f"/{one:016x}/" in key for one in even)]
    told = house.world.sql("SELECT reason FROM audit WHERE act = 'detach'")
    assert {row.reason for row in told} == {"function even: a test"}


async def test_dry_run_tells_and_changes_nothing(house: WorkflowHarness) -> None:
    """The same counts as the run that follows it."""
    house.world.fill(3)
    before, objects = listed(house), house.world.objects.keys
    dry = await done(house, "every", dry_run=True, batch_id="dry")
    assert (dry.records, dry.ended, dry.kept, dry.outcomes) == (3, 3, 0, {})
    assert (listed(house), house.world.objects.keys) == (before, objects)
    assert house.world.sql("SELECT run_id FROM run") == []
    wet = await done(house, "every")
    assert (wet.records, wet.ended, wet.ledger_ids) == (3, 3, dry.ledger_ids)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_what_a_subscription_needs_stays_and_is_named(house: WorkflowHarness, dry_run: bool) -> None:
    """Promise 1: the rules of an explicit delete, for each ledger by itself."""
    ledgers = house.world.fill(3, acknowledged=False)
    house.world.catalog.cursors.create_subscription(house.world.topic.topic_id, "slow", latest=False)
    result = await done(house, "every", dry_run=dry_run)
    assert (result.records, result.ended, result.kept) == (3, 0, 3)
    assert result.because[0] == f"ledger {ledgers[0]}: not all of it is acknowledged by slow"
    assert listed(house)[:3] == ledgers


async def test_topic_with_a_cursor_that_cannot_be_read_keeps_everything(house: WorkflowHarness) -> None:
    """Nobody knows what it needs; the other topics lose nothing by it."""
    topic = house.world.catalog.topics.create_topic("persistent://tenant/namespace/sound", RetentionPolicy())
    house.world.fill(2)
    replace(house.world, topic=topic).fill(1)
    house.world.sql("DELETE FROM cursor")
    house.world.catalog.cursors.create_subscription(house.world.topic.topic_id, "torn", latest=False)
    house.world.sql("UPDATE cursor SET acknowledged = x'00ff'")
    result = await done(house, "every", of_all=True)
    assert (result.records, result.ended, result.kept, result.stopped) == (3, 1, 2, None)
    assert "torn" in result.because[0]


async def test_all_topics_are_gone_through_page_by_page(house: WorkflowHarness) -> None:
    """A page that is full within a topic goes on there."""
    worlds = [house.world]
    for name in ("one", "two"):
        topic = house.world.catalog.topics.create_topic(f"persistent://tenant/namespace/{name}", RetentionPolicy())
        worlds.append(replace(house.world, topic=topic))
    counts = (3, 0, 2)
    for world, count in zip(worlds, counts, strict=True):
        world.fill(count)
    result = await done(house, "every", of_all=True)
    assert (result.records, result.ended, result.kept) == (5, 5, 0)
    assert [len(house.world.catalog.ledgers.list_ledgers(world.topic.topic_id)) for world in worlds] == [1, 1, 1]


async def test_function_that_fails_ends_nothing_more_and_is_named_with_its_record(house: WorkflowHarness) -> None:
    """What the pages before it have ended is deleted all the same; nothing of its own page ends."""
    ledgers = house.world.fill(6)
    (broken,) = [one for one in ledgers[2:4] if one % 10 == 3]
    async with house.worker():
        handle = await end(house, "broken_at_three")
        result: EndRecordsResult = await handle.result()
        told = await query_current_details(handle)
    assert result.stopped
    assert result.stopped.type == "FunctionFailed"
    assert f"ledger {broken} of" in result.stopped.message
    assert (result.records, result.ended, result.outcomes) == (2, 2, {"DELETED": 2})
    assert listed(house)[:4] == ledgers[2:]
    assert "**Stopped**" in told
    assert len(house.attempts("records.end_page")) == 2, "it is not asked again: it would answer alike"


async def test_function_that_ends_its_process_is_asked_once(house: WorkflowHarness) -> None:
    """`sys.exit` is no fault that passes: the job is told of it, and the worker lives."""
    house.world.fill(1)
    result = await done(house, "leaving")
    assert result.stopped
    assert "SystemExit: planned" in result.stopped.message
    assert len(house.attempts("records.end_page")) == 1
    assert len(listed(house)) == 2


async def test_function_that_changes_a_record_is_refused_by_name(house: WorkflowHarness) -> None:
    """Nothing of a record may be changed."""
    house.world.fill(1)
    result = await done(house, "changing")
    assert result.stopped
    assert "found another entries, size_bytes" in result.stopped.message
    assert len(listed(house)) == 2


@pytest.mark.parametrize(
    ("function", "more", "kind", "told"),
    [
        ("odd", {}, "InvalidInput", "expected one of broken_at_three, changing, even, every, leaving, none"),
        ("every", {"catalog_epoch": 7}, "StaleCatalog", "expected catalog epoch 1, found 7"),
        ("every", {"topic": "persistent://tenant/namespace/another"}, "InvalidInput", "topic"),
        ("every", {"topic_id": 999}, "UnknownObject", "topic"),
    ],
)
async def test_what_cannot_be_asked_is_refused_before_anything_starts(
    house: WorkflowHarness, function: str, more: dict[str, Any], kind: str, told: str
) -> None:
    """As a result: nothing fails in the Web UI."""
    house.world.fill(1)
    async with house.worker():
        result = await (await end(house, function, **more)).result()
    assert result.refused.type == kind
    assert told in result.refused.message
    assert house.attempts("records.end_page") == []
    assert len(listed(house)) == 2


async def test_catalog_that_adopts_is_refused(house: WorkflowHarness) -> None:
    """Its ledgers are not all known yet."""
    house.world.fill(1)
    house.world.sql("UPDATE record_log SET state = 'ADOPTING'")
    async with house.worker():
        result = await (await end(house, "every")).result()
    assert result.refused.type == "CatalogAdopting"


async def test_catalog_that_was_rebuilt_meanwhile_ends_the_job_as_stale(house: WorkflowHarness) -> None:
    """Pages after it are of another catalog."""
    house.world.fill(4)
    gate, real = Gate(), house.world.activities.ending.end_page

    @activity.defn(name="records.end_page")
    def end_page(request: EndRecordsPageInput) -> EndRecordsPageResult:
        if request.after.ledger_id:
            house.world.sql("UPDATE catalog SET epoch = 2")
            gate.open()
        return real(request)

    async with house.worker(replacements=[end_page]):
        result: EndRecordsResult = await (await end(house, "every")).result()
    assert result.stopped
    assert result.stopped.type == "StaleCatalog"
    assert listed(house)[-3:-1] != [], "the second page stays"
    assert result.outcomes.get("DELETED", 0) in {0, 2}


@pytest.mark.parametrize(("policy", "left"), [("plain", 0), ("durable", 2), (None, 2)])
async def test_command_says_whether_tombstones_are_left(house: WorkflowHarness, policy: str | None, left: int) -> None:
    """Durable by default."""
    house.world.fill(2)
    await done(house, "every", durable_delete=policy)
    assert len(buried(house)) == left


async def test_page_whose_answer_was_lost_is_asked_again_and_counted_once(house: WorkflowHarness) -> None:
    """The batch is counted from its rows."""
    house.world.fill(2)
    real, lost = house.world.activities.ending.end_page, [True]

    @activity.defn(name="records.end_page")
    def end_page(request: EndRecordsPageInput) -> EndRecordsPageResult:
        answer = real(request)
        if lost and lost.pop():
            raise CatalogBusy("planned: the answer is lost")
        return answer

    async with house.worker(replacements=[end_page]):
        result: EndRecordsResult = await (await end(house, "every")).result()
    assert (result.ended, result.outcomes, result.kept) == (2, {"DELETED": 2}, 0)


async def test_what_a_sweep_has_taken_up_meanwhile_is_counted_as_ended(house: WorkflowHarness) -> None:
    """No worker was there for longer than the batch is held; its rows are in another batch by now."""
    house.world.fill(4)
    gate, real = Gate(), house.world.activities.ending.end_page

    @activity.defn(name="records.end_page")
    def end_page(request: EndRecordsPageInput) -> EndRecordsPageResult:
        answer = real(request)
        if answer.after is None:
            house.world.sql("UPDATE pending_deletion SET batch_id = 'swept'")
            gate.open()
        return answer

    async with house.worker(replacements=[end_page]):
        result: EndRecordsResult = await (await end(house, "every")).result()
    assert (result.ended, result.outcomes) == (4, {})


async def test_batch_that_is_finished_stops_the_job(house: WorkflowHarness) -> None:
    """A batch id that was used before: what would be detached into it would be nobody's."""
    house.world.fill(1)
    assert (await done(house, "every")).ended == 1
    house.world.fill(1)
    result = await done(house, "every")
    assert result.stopped
    assert result.stopped.type == "ClaimHeld"
    assert len(listed(house)) == 3, "all that there were"


async def test_every_page_may_be_a_run_of_its_own(house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted, the batch and the place are carried, and the function is looked up once."""
    monkeypatch.setattr("temporalio.workflow.Info.is_continue_as_new_suggested", lambda _info: True)
    house.world.fill(5)
    result = await done(house, "every")
    assert (result.records, result.ended, result.outcomes) == (5, 5, {"DELETED": 5})
    assert len(house.attempts("records.begin_ending")) == 1
    assert len(house.attempts("records.end_page")) >= 3


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_job_that_is_stopped_lets_its_deletion_go_on(house: WorkflowHarness, how: str) -> None:
    """The intents are filed: what was detached is deleted without it."""
    house.world.fill(2)
    gate = house.gate(StoreOperation.DELETE)
    async with house.worker():
        handle = await end(house, "every", batch_id="b")
        await assert_eventually(gate.reached.is_set)
        assert (await handle.query(EndRecords.progress)).records == 2
        await getattr(handle, how)()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        gate.open()
        certificate = await house.client.get_workflow_handle("delete-ledgers/b").result()
    assert certificate["outcomes"] == {"DELETED": 2}


async def test_worker_that_is_lost_between_pages_is_followed_by_another(house: WorkflowHarness) -> None:
    """With nothing in its memory."""
    house.world.fill(4)
    gate, real = Gate(), house.world.activities.ending.end_page
    pages: list[int] = []

    @activity.defn(name="records.end_page")
    def end_page(request: EndRecordsPageInput) -> EndRecordsPageResult:
        answer = real(request)
        pages.append(request.after.ledger_id)
        if len(pages) == 2:
            gate.wait()
        return answer

    async with house.worker(max_cached_workflows=0, replacements=[end_page]):
        handle = await end(house, "every")
        await assert_eventually(gate.reached.is_set)
    gate.open()
    async with house.worker(max_cached_workflows=0):
        result: EndRecordsResult = await handle.result()
    assert (result.ended, result.outcomes) == (4, {"DELETED": 4})


async def test_second_start_of_a_batch_joins_the_first(house: WorkflowHarness) -> None:
    """By its id."""
    house.world.fill(1)
    async with house.worker():
        first, second = await end(house, "every"), await end(house, "every")
        results = [await one.result() for one in (first, second)]
    assert results[0] == results[1]


def _decided_by(house: WorkflowHarness) -> Callable[[int], None]:
    def append_copy(ledger_id: int) -> None:
        house.world.sql(
            "INSERT INTO ledger_copy (ledger_id, kind, state, context) VALUES (:one, 'OFFLOADED_LEDGER', 'LIVE', '{}')",
            one=ledger_id,
        )

    return append_copy


async def test_record_that_changes_after_the_function_saw_it_stays(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decided of another record; the next run asks anew."""
    ledgers = house.world.fill(2)
    phase_one, change = house.world.catalog.phase_one, _decided_by(house)
    real = phase_one.detach_chosen_ledgers

    def detach_chosen(*args: Any, **more: Any) -> Any:
        change(ledgers[0])
        return real(*args, **more)

    monkeypatch.setattr(phase_one, "detach_chosen_ledgers", detach_chosen)
    result = await done(house, "every")
    assert (result.ended, result.kept) == (1, 1)
    assert result.because == [f"ledger {ledgers[0]}: it has changed since it was looked at"]
    assert listed(house)[0] == ledgers[0]
