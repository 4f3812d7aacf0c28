"""The activities of seals and merges: claims, what is counted, and topics that fail alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from activities import heartbeats
from activities.delayed.seal_and_merge_buckets import (
    ChoiceReason,
    ChoosePairInput,
    IndexWorkTopicPages,
    MergePairInput,
    PairChoice,
    ReleaseListInput,
    SealTopicInput,
    SealTopicsInput,
    SealTopicsResult,
)
from activities.deletion.trim_by_retention import NextTopicPagesInput
from logstore.delayed.services.bucket_merger import MergedPair
from logstore.deletion.retention import RetentionPolicy
from logstore.errors import InvalidInput, PreconditionFailed, StoreUnavailable, UnknownObject
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.ports.catalog.deletion import Claim
from logstore.ports.catalog.log import Topic
from logstore.positions import TopicId
from tests.activities.activity_world import World, make_activity_environment
from tests.fakes.meter import FakeMeter, metric_series
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.delayed.stored import HOUR_MS, Stored, stored_in
from tests.logstore.eventually import assert_eventually

T = TypeVar("T")

_ME = "merge-buckets/1"
_OTHER = Claim(workflow_id="seal-buckets", run_id="r", ttl_s=60)


@pytest.fixture
def topic(world: World) -> Stored:
    """One topic without messages."""
    return stored_in(world)


def _run(activity: Callable[..., T], request: object, meter: FakeMeter | None = None) -> T:
    env = make_activity_environment(_ME)
    if meter:
        env.metric_meter = meter
    return env.run(activity, request)


def _another(topic: Stored, name: str, *hours: int) -> Topic:
    """One more topic of the same world, with so many delayed messages."""
    made = topic.world.catalog.topics.create_topic(f"persistent://tenant/namespace/{name}", RetentionPolicy())
    entries = [NewEntry(payload=b"x", deliver_at_ms=topic.now_ms + hour * HOUR_MS) for hour in hours]
    topic.world.log.topic_logs.append(made, ProducedEntries(entries=entries))
    return made


def _claimed_by(topic: Stored) -> str | None:
    (row,) = topic.world.sql("SELECT claim_workflow FROM delayed_index WHERE topic_id = :id", id=topic.topic_id)
    return row.claim_workflow  # type: ignore[no-any-return]  # a column


def test_due_topics_come_in_pages(topic: Stored) -> None:
    """By id, those alone for which it is time and on which nobody works."""
    topic.append(1)
    due = [_another(topic, f"t{at}", 1, 2, 3, 4).topic_id for at in range(3)]
    buckets = topic.world.activities.delayed
    asked = NextTopicPagesInput(after=-1, topics=2, limit=2)
    assert _run(buckets.list_topics_with_index_work, asked) == IndexWorkTopicPages(pages=[[*due[:2]], [*due[2:]]])
    assert _run(
        buckets.list_topics_with_index_work, NextTopicPagesInput(after=due[0], topics=1, limit=1)
    ) == IndexWorkTopicPages(pages=[[due[1]]])
    assert topic.index.claim_bucket_list(due[0], _OTHER)
    assert _run(buckets.list_topics_with_index_work, asked) == IndexWorkTopicPages(pages=[[*due[1:]]])


def test_topic_that_fails_keeps_no_other_from_being_sealed(topic: Stored) -> None:
    """It is named, and claims of all of them are let go."""
    (position, *_) = topic.append(1, 2, 3, 4)
    good = _another(topic, "good", 1, 2, 3, 4)
    topic.world.objects.delete([segment_key(position.ledger_id, 0)])
    request = SealTopicsInput(topic_ids=[topic.topic_id, good.topic_id, 99])
    done = _run(topic.world.activities.delayed.drop_and_seal_topics, request)
    assert (done.topics, done.buckets, done.messages, done.failed, done.held) == (3, 1, 4, 1, 1)
    assert "persistent://tenant/namespace/orders: MissingData" in done.troubles[0]
    assert len(topic.index.get_bucket_list(good.topic_id).buckets) == 1
    assert _claimed_by(topic) is None


def test_topic_that_another_job_works_on_is_left_to_it(topic: Stored) -> None:
    """Whether it is asked for or due; and that job's claim stays."""
    topic.append(1, 2, 3, 4)
    assert topic.index.claim_bucket_list(topic.topic_id, _OTHER)
    buckets = topic.world.activities.delayed
    held = SealTopicsResult(topics=1, held=1)
    assert _run(buckets.drop_and_seal_topics, SealTopicsInput(topic_ids=[topic.topic_id])) == held
    assert _run(buckets.seal_whole_topic, SealTopicInput(topic_id=topic.topic_id)) == held
    assert _run(buckets.claim_list_and_choose_pair, ChoosePairInput(topic_id=topic.topic_id)) == PairChoice(
        chosen=ChoiceReason.HELD, limit=2
    )
    _run(buckets.release_bucket_list, ReleaseListInput(topic_id=topic.topic_id))
    assert _claimed_by(topic) == _OTHER.workflow_id


def test_claim_that_has_lapsed_is_taken_up(topic: Stored) -> None:
    """By the catalog's clock: a job that died holds nothing up for longer."""
    topic.append(1, 2, 3, 4)
    assert topic.index.claim_bucket_list(topic.topic_id, Claim(workflow_id="dead", run_id="r", ttl_s=-1))
    done = _run(topic.world.activities.delayed.drop_and_seal_topics, SealTopicsInput(topic_ids=[topic.topic_id]))
    assert (done.buckets, done.held) == (1, 0)


def test_claim_is_renewed_while_a_seal_takes_long(topic: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """With heartbeats; another job finds it held all the time."""
    monkeypatch.setattr(heartbeats, "_BEAT_INTERVAL_S", 0.01)
    monkeypatch.setattr(heartbeats, "_RENEWAL_INTERVAL_S", 0.01)
    topic.append(1, 2, 3, 4)

    def lapse_and_wait() -> None:
        topic.world.sql("UPDATE delayed_index SET claim_until_us = 1")
        assert_eventually(lambda: topic.world.sql("SELECT claim_until_us FROM delayed_index")[0].claim_until_us > 1)

    topic.world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lapse_and_wait))
    done = _run(topic.world.activities.delayed.seal_whole_topic, SealTopicInput(topic_id=topic.topic_id))
    assert done.buckets == 1


def test_one_topic_is_sealed_however_little_it_is(topic: Stored) -> None:
    """And its errors are the activity's."""
    topic.append(1)
    request = SealTopicInput(topic_id=topic.topic_id, topic=topic.world.topic.name)
    seal = topic.world.activities.delayed.seal_whole_topic
    assert _run(seal, request) == SealTopicsResult(topics=1, buckets=1, messages=1)
    with pytest.raises(InvalidInput, match="topic"):
        _run(seal, SealTopicInput(topic_id=topic.topic_id, topic="persistent://tenant/namespace/other"))
    with pytest.raises(UnknownObject):
        _run(seal, SealTopicInput(topic_id=99))
    topic.append(2)
    topic.world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        _run(seal, request)
    assert _claimed_by(topic) is None
    topic.world.sql("UPDATE topic SET state = 'DELETING'")
    with pytest.raises(PreconditionFailed, match="expected state ACTIVE, found DELETING"):
        _run(seal, request)


def test_topics_with_too_many_buckets_are_named(topic: Stored) -> None:
    """Their merges are started by name."""
    topic.sealed([1], [2], [3])
    done = _run(topic.world.activities.delayed.drop_and_seal_topics, SealTopicsInput(topic_ids=[topic.topic_id]))
    assert [(one.topic_id, one.topic) for one in done.over_limit] == [(topic.topic_id, topic.world.topic.name)]


def test_merge_that_can_read_no_two_neighbours_is_told_once_and_not_started_again(
    topic: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the list changes, by a seal or by a build; a merge that an operator asks for looks all the same."""
    _, second, _ = topic.sealed([1], [2], [3])
    seal, choose = (
        topic.world.activities.delayed.drop_and_seal_topics,
        topic.world.activities.delayed.claim_list_and_choose_pair,
    )
    page, asked = SealTopicsInput(topic_ids=[topic.topic_id]), ChoosePairInput(topic_id=topic.topic_id)
    stuck = replace(asked, damaged=[int(second.bucket_id)])
    for _ in range(2):
        assert _run(choose, stuck).chosen is ChoiceReason.DAMAGED
        _run(topic.world.activities.delayed.release_bucket_list, ReleaseListInput(topic_id=topic.topic_id))
        assert _run(seal, page).over_limit == []
    told = [one.getMessage() for one in caplog.records if "DelayedBucketsStuck" in one.getMessage()]
    assert len(told) == 1
    assert f"sexton delayed build {topic.world.topic.name}" in told[0]
    assert _run(choose, asked).chosen is ChoiceReason.PAIR
    _run(topic.world.activities.delayed.release_bucket_list, ReleaseListInput(topic_id=topic.topic_id))
    topic.sealed([4])
    assert [one.topic_id for one in _run(seal, page).over_limit] == [topic.topic_id]
    assert _run(choose, stuck).chosen is ChoiceReason.PAIR


def test_pair_with_the_fewest_messages_is_chosen_and_claimed(topic: Stored) -> None:
    """None of buckets that cannot be read; and none where there are few enough."""
    first, second, third, fourth = topic.sealed([1, 1, 1], [2, 2], [3, 3], [4])
    choose = topic.world.activities.delayed.claim_list_and_choose_pair
    found = _run(choose, ChoosePairInput(topic_id=topic.topic_id))
    assert (found.chosen, found.buckets, found.limit) == (ChoiceReason.PAIR, 4, 2)
    assert [one.bucket_id for one in found.pair] == [third.bucket_id, fourth.bucket_id]
    assert _claimed_by(topic) == _ME
    found = _run(choose, ChoosePairInput(topic_id=topic.topic_id, damaged=[fourth.bucket_id]))
    assert [one.bucket_id for one in found.pair] == [second.bucket_id, third.bucket_id]
    damaged = [int(one.bucket_id) for one in (second, third)]
    assert _run(choose, ChoosePairInput(topic_id=topic.topic_id, damaged=damaged)).chosen is ChoiceReason.DAMAGED
    assert topic.merger.merge_pair(topic.topic_id, (third.bucket_id, fourth.bucket_id)).switched
    assert topic.merger.merge_pair(topic.topic_id, (first.bucket_id, second.bucket_id)).switched
    assert _run(choose, ChoosePairInput(topic_id=topic.topic_id)) == PairChoice(
        chosen=ChoiceReason.WITHIN, buckets=2, limit=2
    )
    _run(topic.world.activities.delayed.release_bucket_list, ReleaseListInput(topic_id=topic.topic_id))
    assert _claimed_by(topic) is None


def test_topic_that_is_being_deleted_has_nothing_to_merge(topic: Stored) -> None:
    """Its ledgers go with it; a merge in hand ends without a bucket."""
    first, second, _ = topic.sealed([1], [2], [3])
    topic.world.sql("UPDATE topic SET state = 'DELETING'")
    buckets = topic.world.activities.delayed
    assert (
        _run(buckets.claim_list_and_choose_pair, ChoosePairInput(topic_id=topic.topic_id)).chosen is ChoiceReason.GONE
    )
    merge = MergePairInput(topic_id=topic.topic_id, bucket_ids=[first.bucket_id, second.bucket_id])
    assert _run(buckets.merge_pair, merge) == MergedPair(switched=False)
    assert _run(buckets.drop_and_seal_topics, SealTopicsInput(topic_ids=[topic.topic_id])).failed == 0


def test_merge_is_done_once_and_counted_once(topic: Stored) -> None:
    """What is repeated finds other buckets in the list."""
    first, second, _ = topic.sealed([1, 9], [2], [3])
    meter, buckets, pending = FakeMeter(), topic.world.activities.delayed, topic.held()
    merge = MergePairInput(topic_id=topic.topic_id, bucket_ids=[first.bucket_id, second.bucket_id])
    assert _run(buckets.merge_pair, merge, meter) == MergedPair(switched=True, messages=3)
    assert _run(buckets.merge_pair, merge, meter) == MergedPair(switched=False)
    assert topic.held() == pending
    assert meter.values[metric_series("sexton_delayed_merges_total", outcome="MERGED")] == 1
    assert meter.values[metric_series("sexton_delayed_merges_total", outcome="OVERTAKEN")] == 1
    assert meter.total("sexton_delayed_merged_messages_total") == 3
    assert meter.total("sexton_delayed_loads_total") == 2
    assert meter.total("sexton_delayed_alarms_total") == 0


def test_bucket_that_cannot_be_read_raises_the_alarm(topic: Stored) -> None:
    """Its messages are read in the log, which is slower."""
    first, second, _ = topic.sealed([1], [2], [3])
    topic.world.objects.delete([segment_key(second.bucket_id, 0)])
    meter = FakeMeter()
    merge = MergePairInput(topic_id=topic.topic_id, bucket_ids=[first.bucket_id, second.bucket_id])
    found = _run(topic.world.activities.delayed.merge_pair, merge, meter)
    assert found == MergedPair(switched=False, damaged=second.bucket_id)
    assert meter.total("sexton_delayed_alarms_total") == 1
    assert meter.values[metric_series("sexton_delayed_merges_total", outcome="DAMAGED")] == 1


def test_seal_counts_what_it_did(topic: Stored) -> None:
    """Buckets, messages, and what was dropped."""
    (old,) = topic.sealed([1])
    topic.world.sql("UPDATE delayed_bucket SET last_ms = 1 WHERE ledger_id = :id", id=old.bucket_id)
    topic.append(1, 2, 3, 4)
    meter = FakeMeter()
    _run(topic.world.activities.delayed.drop_and_seal_topics, SealTopicsInput(topic_ids=[topic.topic_id]), meter)
    found: dict[str, Any] = {name: meter.total(f"sexton_delayed_{name}_total") for name in _SEALED}
    assert found == {"sealed_buckets": 1, "sealed_messages": 4, "dropped_buckets": 1}


_SEALED = ("sealed_buckets", "sealed_messages", "dropped_buckets")


def test_catalog_that_is_away_ends_the_page(topic: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """No claim can be taken for any topic: the activity is tried again, and no topic counts as failed."""
    topic.append(1, 2, 3, 4)

    def away(topic_id: TopicId, claim: Claim) -> bool:
        raise StoreUnavailable("planned: the catalog is away")

    with monkeypatch.context() as patch:
        patch.setattr(topic.index, "claim_bucket_list", away)
        with pytest.raises(StoreUnavailable):
            _run(topic.world.activities.delayed.drop_and_seal_topics, SealTopicsInput(topic_ids=[topic.topic_id]))
    assert (
        _run(topic.world.activities.delayed.drop_and_seal_topics, SealTopicsInput(topic_ids=[topic.topic_id])).buckets
        == 1
    )
