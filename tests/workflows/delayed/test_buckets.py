"""`seal-buckets` and `merge-buckets`: due topics are sealed, buckets become few, and nothing pending is lost."""

import pytest
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities.delayed.seal_and_merge_buckets import (
    ChoiceReason,
    IndexWorkTopicPages,
    SealTopicInput,
    SealTopicsResult,
)
from activities.deletion.trim_by_retention import NextTopicPagesInput
from logstore.delayed.index_buckets import SealAndMergeLimits
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import StoreUnavailable
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.deletion import Claim
from logstore.positions import TopicId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.stored import HOUR_MS, Stored, stored_in
from tests.workflows.delayed.verbs import merge, seal
from tests.workflows.workflow_harness import (
    WorkflowHarness,
    assert_eventually,
    failure_type_and_message,
    query_current_details,
)
from workflows.delayed.job_definitions import (
    MERGE_BUCKETS,
    MergeBucketsResult,
    MergeOutcome,
    SealBucketsResult,
)
from workflows.delayed.merge_buckets import MergeBuckets


@pytest.fixture
def topic(house: WorkflowHarness) -> Stored:
    """The house's topic, of which two buckets are allowed."""
    return stored_in(house.world)


def _others(topic: Stored, count: int, *hours: int) -> list[TopicId]:
    """More topics, each with messages due in so many hours."""
    found = []
    for at in range(count):
        made = topic.world.catalog.topics.create_topic(f"persistent://tenant/namespace/other-{at}", RetentionPolicy())
        entries = [NewEntry(payload=b"x", deliver_at_ms=topic.now_ms + hour * HOUR_MS) for hour in hours]
        topic.world.log.topic_logs.append(made, ProducedEntries(entries=entries))
        found.append(made.topic_id)
    return found


@pytest.mark.external_service
async def test_due_topics_are_sealed_and_those_with_many_buckets_merged(house: WorkflowHarness, topic: Stored) -> None:
    """Page by page; the merge has the id of its topic, and outlives the seal that started it."""
    topic.sealed([1], [2], [3])
    topic.append(1, 2, 3, 4)
    pending = topic.held()
    others = _others(topic, 3, 5, 6, 7, 8)
    async with house.worker():
        handle = await seal(house, page=1)
        result = await handle.result()
        told, described = await query_current_details(handle), await handle.describe()
        merging = house.client.get_workflow_handle(MERGE_BUCKETS.id(topic.topic_id))
        merged = await merging.result()
        about = await merging.describe()
    assert result == SealBucketsResult(topics=4, buckets=4, messages=16, merging=1)
    assert "4 topics, 4 buckets with 16 messages sealed" in told
    assert described.search_attributes["SextonOutcome"] == ["SEALED"]
    assert all(len(topic.index.get_bucket_list(one).buckets) == 1 for one in others)
    assert (merged["outcome"], merged["merges"], len(topic.buckets)) == ("WITHIN", 2, 2)
    assert about.search_attributes["SextonOutcome"] == ["WITHIN"]
    assert about.search_attributes["SextonTopic"] == [topic.world.topic.name]
    assert [one for one in topic.held() if one in pending] == pending
    assert len(topic.retired()) == 4


async def test_one_topic_is_sealed_however_little_it_is(house: WorkflowHarness, topic: Stored) -> None:
    """And no other."""
    (other,) = _others(topic, 1, 5, 6, 7, 8)
    topic.append(1)
    async with house.worker():
        result = await (await seal(house, topic_id=topic.topic_id, topic=topic.world.topic.name)).result()
    assert result == SealBucketsResult(topics=1, buckets=1, messages=1)
    assert topic.index.get_bucket_list(other).buckets == ()


async def test_topic_that_fails_is_named_and_keeps_no_other_from_being_sealed(
    house: WorkflowHarness, topic: Stored
) -> None:
    """The next look meets it again."""
    (position, *_) = topic.append(1, 2, 3, 4)
    held = topic.world.objects._held.pop(segment_key(position.ledger_id, 0))
    (other,) = _others(topic, 1, 5, 6, 7, 8)
    async with house.worker():
        result = await (await seal(house)).result()
        assert (result.topics, result.buckets, result.failed) == (2, 1, 1)
        assert topic.world.topic.name in result.troubles[0]
        assert len(topic.index.get_bucket_list(other).buckets) == 1
        topic.world.objects._held[segment_key(position.ledger_id, 0)] = held
        assert await (await seal(house)).result() == SealBucketsResult(topics=1, buckets=1, messages=4)


async def test_seal_with_nothing_to_do_ends_after_one_look(house: WorkflowHarness, topic: Stored) -> None:
    """Every minute, of every catalog without delayed messages."""
    topic.append(None, 1)
    async with house.worker():
        assert await (await seal(house)).result() == SealBucketsResult()
    assert [one.type for one in house.attempts()] == ["delayed.due_topics"]


async def test_seal_is_tried_again_while_storage_is_away(house: WorkflowHarness, topic: Stored) -> None:
    """A person waits for it."""
    topic.append(1)
    topic.world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE, times=3))
    async with house.worker():
        result = await (await seal(house, topic_id=topic.topic_id)).result()
    assert (result.buckets, len(house.attempts("delayed.seal_topic"))) == (1, 4)


async def test_seal_of_a_topic_that_does_not_exist_fails_and_says_so(house: WorkflowHarness, topic: Stored) -> None:
    """A guard refuses; nothing is tried again."""
    async with house.worker():
        with pytest.raises(WorkflowFailureError) as caught:
            await (await seal(house, topic_id=99)).result()
    assert failure_type_and_message(caught.value)[0] == "UnknownObject"
    assert len(house.attempts("delayed.seal_topic")) == 1


async def test_seal_waits_for_a_job_that_works_on_the_topic(house: WorkflowHarness, topic: Stored) -> None:
    """Its claim lapses if it died."""
    topic.append(1)
    assert topic.index.claim_bucket_list(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=3_600))
    asked: list[int] = []

    @activity.defn(name="delayed.seal_topic")
    def seal_whole_topic(request: SealTopicInput) -> SealTopicsResult:
        asked.append(1)
        if len(asked) == 3:
            topic.index.release_claim(topic.topic_id, "other")
        return house.world.activities.delayed.seal_whole_topic(request)

    async with house.worker(replacements=[seal_whole_topic]):
        result = await (await seal(house, topic_id=topic.topic_id)).result()
    assert (result.buckets, result.held, len(asked)) == (1, 0, 3)


async def test_pages_go_on_in_a_new_run_where_the_history_is_long(house: WorkflowHarness, topic: Stored) -> None:
    """What was done is carried, and no topic is looked at twice."""
    _others(topic, 60, 5, 6, 7, 8)
    async with house.worker():
        handle = await seal(house, page=1)
        result = await handle.result()
    assert (result.topics, result.buckets) == (60, 60)


@pytest.mark.external_service
@pytest.mark.parametrize("cache", [0, 100])
async def test_merge_reads_as_what_it_does(house: WorkflowHarness, topic: Stored, cache: int) -> None:
    """Which buckets, how many messages, how far; of a run in the cache, and of one that is replayed for each task."""
    first, second, _, _ = topic.sealed([1], [2, 3], [3, 4, 5], [4, 4])
    gate = house.gate(StoreOperation.PUT)
    async with house.run_until_gate(gate, merge(house), max_cached_workflows=cache) as handle:
        told, at_work = await query_current_details(handle), await handle.query(MergeBuckets.progress)
        gate.open()
        result = await handle.result()
        ended = await query_current_details(handle)
    assert f"- merging bucket **{first.bucket_id}**: 1 messages, {first.first} to {first.last}" in told
    assert [one.bucket_id for one in at_work.merging] == [first.bucket_id, second.bucket_id]
    assert (at_work.outcome, at_work.buckets, at_work.limit) == (None, 4, 2)
    assert result == MergeBucketsResult(outcome=MergeOutcome.WITHIN, merges=2, messages=8, buckets=2, limit=2)
    assert ended.startswith("**WITHIN** — 2 merges, 8 messages written")


async def test_merge_takes_the_fewest_messages_first_until_there_are_few_enough(
    house: WorkflowHarness, topic: Stored
) -> None:
    """Sources are retired one merge after the other, and nothing that is pending changes."""
    topic.sealed([1, 1, 1, 1, 1], [2], [3], [4, 4], [5])
    pending = topic.held()
    async with house.worker():
        result = await (await merge(house)).result()
    assert (result.merges, [one.messages for one in topic.buckets]) == (3, [5, 5])
    assert (topic.held(), len(topic.retired())) == (pending, 6)
    assert topic.due() == []


async def test_merge_with_nothing_to_do_ends(house: WorkflowHarness, topic: Stored) -> None:
    """It was asked for by hand, or another one has done it."""
    topic.sealed([1])
    async with house.worker():
        result = await (await merge(house)).result()
    assert result == MergeBucketsResult(outcome=MergeOutcome.WITHIN, buckets=1, limit=2)
    assert house.attempts("delayed.merge_pair") == []


async def test_merge_is_tried_again_while_storage_is_away(house: WorkflowHarness, topic: Stored) -> None:
    """Its claim outlasts the wait."""
    topic.sealed([1], [2], [3])
    pending = topic.held()
    topic.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.BEFORE, times=12))
    async with house.worker():
        result = await (await merge(house)).result()
    assert (result.merges, topic.held()) == (1, pending)
    assert len(house.attempts("delayed.merge_pair")) == 3


async def test_merge_leaves_out_buckets_that_cannot_be_read(house: WorkflowHarness, topic: Stored) -> None:
    """It merges others, and says which one a person must look at."""
    buckets = topic.sealed([1], [2], [3], [4], [5])
    topic.world.objects.delete([segment_key(buckets[1].bucket_id, 0)])
    topic.snapshots._footers._values.clear()
    async with house.worker():
        result = await (await merge(house)).result()
    assert (result.outcome, result.damaged) == (MergeOutcome.DAMAGED, [buckets[1].bucket_id])
    assert [one.bucket_id for one in topic.buckets[:2]] == [one.bucket_id for one in buckets[:2]]
    assert (len(topic.buckets), topic.buckets[2].messages) == (3, 3)


async def test_merge_of_a_topic_that_is_deleted_ends(house: WorkflowHarness, topic: Stored) -> None:
    """Its ledgers go with it."""
    topic.sealed([1], [2], [3])
    topic.world.sql("UPDATE topic SET state = 'DELETING'")
    async with house.worker():
        assert (await (await merge(house)).result()).outcome is MergeOutcome.GONE


async def test_merge_waits_for_a_seal_and_gives_up_in_the_end(house: WorkflowHarness, topic: Stored) -> None:
    """The next seal starts it again."""
    topic.sealed([1], [2], [3])
    assert topic.index.claim_bucket_list(topic.topic_id, Claim(workflow_id="other", run_id="r", ttl_s=3_600))
    async with house.worker():
        assert (await (await merge(house)).result()).outcome is MergeOutcome.HELD
    assert len(house.attempts("delayed.choose_pair")) > 10
    assert len(topic.buckets) == 3


async def test_merge_to_a_limit_of_ones_own_goes_on_below_that_of_the_settings(
    house: WorkflowHarness, topic: Stored
) -> None:
    """An operator wants one bucket, where two are allowed."""
    topic.sealed([1], [2], [3])
    pending = topic.held()
    async with house.worker():
        result = await (await merge(house, max_buckets=1)).result()
    assert (result.outcome, result.merges, result.limit) == (MergeOutcome.WITHIN, 2, 1)
    assert (len(topic.buckets), topic.held()) == (1, pending)


async def test_second_start_joins_the_merge_that_runs(house: WorkflowHarness, topic: Stored) -> None:
    """At most one is alive for a topic."""
    topic.sealed([1], [2], [3])
    gate = house.gate(StoreOperation.PUT)
    async with house.run_until_gate(gate, merge(house)) as first:
        second = await merge(house)
        gate.open()
        assert await first.result() == await second.result()
    assert len(house.attempts("delayed.merge_pair")) == 1


@pytest.mark.external_service
@pytest.mark.parametrize("end", ["cancel", "terminate"])
async def test_merge_that_is_stopped_leaves_what_deletion_takes(
    house: WorkflowHarness, topic: Stored, end: str
) -> None:
    """Sources stay listed; the claim lapses, and another merge does it all."""
    topic.sealed([1], [2], [3])
    pending = topic.held()
    gate = house.gate(StoreOperation.PUT)
    async with house.run_until_gate(gate, merge(house)) as handle:
        await (handle.cancel() if end == "cancel" else handle.terminate())
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        gate.open()
        await assert_eventually(lambda: topic.held() == pending)
        assert end == "terminate" or isinstance(caught.value.cause, CancelledError)
        topic.world.sql("UPDATE delayed_index SET claim_until_us = 1")
        result = await (await merge(house)).result()
    assert (topic.held(), len(topic.buckets), result.outcome) == (pending, 2, MergeOutcome.WITHIN)


async def test_merges_go_on_in_a_new_run_where_the_history_is_long(house: WorkflowHarness, topic: Stored) -> None:
    """Counts are carried."""
    stored_in(house.world, SealAndMergeLimits(messages=4, ledgers=3, idle_s=60, buckets=1))
    topic.sealed(*([1 + at] for at in range(25)))
    pending = topic.held()
    async with house.worker():
        result = await (await merge(house)).result()
    assert (result.merges, len(topic.buckets), topic.held()) == (24, 1, pending)


async def test_look_for_due_topics_is_tried_again_while_the_catalog_is_away(
    house: WorkflowHarness, topic: Stored
) -> None:
    """Without end: what they decide must be decided."""
    failures = [StoreUnavailable("planned: the catalog is away")] * 3

    @activity.defn(name="delayed.due_topics")
    def list_topics_with_index_work(request: NextTopicPagesInput) -> IndexWorkTopicPages:
        if failures:
            raise failures.pop()
        return IndexWorkTopicPages(pages=[])

    async with house.worker(replacements=[list_topics_with_index_work]):
        assert await (await seal(house)).result() == SealBucketsResult()
    assert len(house.attempts("delayed.due_topics")) == 4


def test_outcomes_of_a_merge_are_the_reasons_for_which_no_pair_is_chosen() -> None:
    """The workflow ends with what its last look said."""
    assert {one.value for one in ChoiceReason} - {"PAIR"} == {one.value for one in MergeOutcome}
