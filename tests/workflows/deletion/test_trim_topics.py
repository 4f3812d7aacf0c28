"""`trim-topics`: all topics, page by page, in one batch; what fails is skipped and never ends the sweep."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from activities.deletion.trim_by_retention import TrimPageInput, TrimPageResult
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import CatalogBusy, SextonError, StoreUnavailable
from logstore.ports.catalog.deletion import AuditCause, Claim, DetachedBatch
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, TopicId
from tests.activities.activity_world import World
from tests.all_topics import list_all_topics
from tests.fakes.object_store import StoreOperation
from tests.workflows.workflow_harness import Gate, WorkflowHarness, assert_eventually, query_current_details
from workflows.deletion.job_definitions import TrimTopicsResult
from workflows.deletion.trim_topics import TrimTopics


def worlds(house: WorkflowHarness, count: int) -> list[World]:
    """So many topics in the one catalog; the first is the house's own."""
    create = house.world.catalog.topics.create_topic
    names = [f"persistent://tenant/namespace/more-{number}" for number in range(1, count)]
    return [house.world, *(replace(house.world, topic=create(name, RetentionPolicy())) for name in names)]


def fill(house: WorkflowHarness, topics: int, ledgers: int = 2) -> list[list[LedgerId]]:
    """Consumed ledgers in so many topics."""
    return [world.fill(ledgers) for world in worlds(house, topics)]


def listed(house: WorkflowHarness) -> dict[str, int]:
    """Ledgers of each list."""
    catalog = house.world.catalog
    return {topic.name: len(catalog.ledgers.list_ledgers(topic.topic_id)) for topic in list_all_topics(catalog.topics)}


def batch(house: WorkflowHarness) -> str:
    """The one batch that all intents are in."""
    (found,) = {one.batch_id for one in house.world.catalog.deletions.list_intents(None, limit=100)}
    return found


def failing(house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, errors: dict[TopicId, list[SextonError]]) -> None:
    """Let detaches of some topics fail, as often as there are errors."""
    trims = house.world.catalog.phase_one
    real: Callable[..., DetachedBatch] = trims.detach_by_retention_into_batch

    def detach_into(topic_id: TopicId, *, batch_id: str, claim: Claim, cause: AuditCause) -> DetachedBatch:
        if errors.get(topic_id):
            raise errors[topic_id].pop()
        return real(topic_id, batch_id=batch_id, claim=claim, cause=cause)

    monkeypatch.setattr(trims, "detach_by_retention_into_batch", detach_into)


async def test_trim_topics_deletes_what_every_topic_lets_go_in_one_batch(house: WorkflowHarness) -> None:
    """One batch, one certificate; a topic that is being deleted is left to its deletion (promises 1, 2)."""
    ledgers = fill(house, 4)
    left = list_all_topics(house.world.catalog.topics)[-1]
    house.world.sql("UPDATE topic SET state=:state WHERE topic_id=:id", state=TopicState.DELETING, id=left.topic_id)
    async with house.worker():
        handle = await house.trim_all()
        result = await handle.result()
        shown = await query_current_details(handle)
    assert (result.topics, result.failed, result.detached) == (3, 0, 6)
    assert (result.deleted, result.objects, result.outcomes) == (6, 18, {"DELETED": 6})
    assert not result.uncertified
    assert shown.startswith("3 topics, 0 of them skipped, 6 ledgers detached, 6 copies deleted, 18 objects")
    assert batch(house).startswith("trim-")
    gone = [one for part in ledgers for one in part if not house.world.left_of(one)]
    assert len(gone) == 6
    assert sorted(listed(house).values()) == [1, 1, 1, 3]


async def test_trim_topics_with_nothing_to_do_leaves_no_trace(house: WorkflowHarness) -> None:
    """A schedule runs it for ever: no run, no batch, no audit row where nothing goes."""
    for world in worlds(house, 3):
        world.fill(2, acknowledged=False)
        world.catalog.cursors.create_subscription(world.topic.topic_id, "slow", latest=False)
    result = await house.done(house.trim_all())
    assert result == TrimTopicsResult(topics=3)
    assert house.world.sql("SELECT run_id FROM run") == house.world.sql("SELECT act FROM audit") == []


async def test_trim_topics_goes_by_pages_that_outlast_what_comes_and_goes(house: WorkflowHarness) -> None:
    """Topics deleted and created between pages neither shift a page nor are met twice."""
    made = worlds(house, 5)
    for world in made:
        world.fill(1)
    real = house.trimming.trim_page

    @activity.defn(name="trimming.trim_page")
    def trim_page(request: TrimPageInput) -> TrimPageResult:
        answer = real(request)
        if request.page.first == made[0].topic.topic_id:
            house.world.sql("DELETE FROM topic WHERE topic_id=:id", id=made[2].topic.topic_id)
            house.world.catalog.topics.create_topic("persistent://tenant/namespace/late", RetentionPolicy())
        return answer

    async with house.worker(replacements=[trim_page]):
        result = await (await house.trim_all(page=2)).result()
    assert (result.topics, result.failed, result.deleted) == (5, 0, 4)  # the late one has nothing yet
    assert len(house.attempts("trimming.trim_page")) == 4


async def test_trim_topics_skips_a_topic_that_fails(house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, contended or damaged: it is counted and named, and its neighbours are trimmed (bookkeeper#17)."""
    made = worlds(house, 4)
    for world in made:
        world.fill(1)
    damaged, contended = made[1].topic, made[2].topic
    house.world.sql("UPDATE cursor SET acknowledged=:bytes WHERE topic_id=:id", bytes=b"x", id=damaged.topic_id)
    failing(house, monkeypatch, {contended.topic_id: [CatalogBusy("planned")]})
    result = await house.done(house.trim_all())
    assert (result.topics, result.failed, result.deleted) == (4, 2, 2)
    told = "\n".join(result.troubles)
    assert f"{damaged.name}: not trimmed: CorruptData" in told
    assert f"{contended.name}: not trimmed: CatalogBusy: planned" in told


async def test_trim_topics_passes_over_a_page_that_fails_for_good(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad range neither deletes its neighbours nor ends the whole sweep (YahooArchive/bookkeeper#17)."""
    made = worlds(house, 3)
    for world in made:
        world.fill(1)
    failing(house, monkeypatch, {made[0].topic.topic_id: [StoreUnavailable("planned")] * 99})
    result = await house.done(house.trim_all(page=1))
    assert (result.topics, result.failed, result.deleted) == (3, 1, 2)
    assert "planned" in result.troubles[0]


async def test_trim_topics_that_cannot_roll_deletes_all_the_same(house: WorkflowHarness) -> None:
    """A best-effort step does not veto the main one, nor hold up topic after topic (apache/pulsar#26431)."""
    fill(house, 3)
    house.roller.failures = 100
    result = await house.done(house.trim_all())
    assert (result.deleted, result.failed, house.roller.calls) == (6, 0, 1)
    assert "not rolled" in result.troubles[0]


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_trim_topics_stopped_midway_lets_its_deletion_go_on(house: WorkflowHarness, how: str) -> None:
    """The abandoned `delete-ledgers` finishes without its parent (apache/pulsar#13526)."""
    fill(house, 2)
    gate = house.gate(StoreOperation.DELETE)
    async with house.worker():
        handle = await house.trim_all()
        await assert_eventually(gate.reached.is_set)
        await getattr(handle, how)()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        child = house.client.get_workflow_handle(f"delete-ledgers/{batch(house)}")
        assert (await child.describe()).status is WorkflowExecutionStatus.RUNNING
        gate.open()
        assert (await child.result())["outcomes"] == {"DELETED": 4}


async def test_trim_topics_stopped_between_pages_leaves_rows_for_the_next(house: WorkflowHarness) -> None:
    """What was detached without a batch at work is stalled once its claim ended, and the next trim takes it up."""
    fill(house, 2)
    gate = Gate()
    real = house.trimming.trim_page

    @activity.defn(name="trimming.trim_page")
    def trim_page(request: TrimPageInput) -> TrimPageResult:
        answer = real(request)
        gate.wait()
        return answer

    async with house.worker(replacements=[trim_page]):
        handle = await house.trim_all()
        await assert_eventually(gate.reached.is_set)
        await handle.terminate()
        gate.open()
    house.world.sql("UPDATE run SET claim_until_us=0")
    result = await house.done(house.trim_all())
    assert (result.detached, result.deleted) == (0, 4)


async def test_trim_topics_does_not_wait_for_a_batch_that_takes_long(house: WorkflowHarness) -> None:
    """One that is paused, or meets a store that is away, does not keep all topics from being trimmed."""
    fill(house, 1)
    gate = house.gate(StoreOperation.DELETE)
    async with house.worker():
        handle = await house.trim_all(patience_s=1)
        result = await handle.result()
        gate.open()
        ended = await house.client.get_workflow_handle(f"delete-ledgers/{batch(house)}").result()
    assert result == TrimTopicsResult(topics=1, detached=2, uncertified=True)
    assert ended["outcomes"] == {"DELETED": 2}


async def test_trim_topics_continued_as_new_keeps_batch_and_totals(
    house: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page after page in runs of their own, and still one batch."""
    fill(house, 5, ledgers=1)
    monkeypatch.setattr("temporalio.workflow.Info.is_continue_as_new_suggested", lambda _info: True)
    async with house.worker():
        handle = await house.trim_all(page=1)
        result = await handle.result()
        progress = await handle.query(TrimTopics.progress)
    assert (result.topics, result.detached, result.deleted) == (5, 5, 5)
    assert progress == result
    assert batch(house)
    first = house.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    assert (await first.describe()).status is WorkflowExecutionStatus.CONTINUED_AS_NEW


@pytest.mark.external_service
async def test_trim_topics_is_shown_to_operators_without_a_topic(house: WorkflowHarness) -> None:
    """It has outcomes and its batch a run id; neither has a topic to be filtered by."""
    fill(house, 2)
    async with house.worker():
        handle = await house.trim_all()
        await handle.result()
    shown = await handle.describe()
    assert shown.search_attributes["SextonOutcome"] == ["DELETED"]
    child = await house.client.get_workflow_handle(f"delete-ledgers/{batch(house)}").describe()
    assert child.search_attributes["SextonRunId"] == [batch(house)]
    assert "SextonTopic" not in {*shown.search_attributes, *child.search_attributes}
