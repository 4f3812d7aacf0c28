"""Trims of many topics: one transaction a topic, one batch for all, counted from rows."""

import pytest

from logstore.deletion.intents import Outcome
from logstore.errors import ClaimHeld, CorruptData, PreconditionFailed, UnknownObject
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.ports.catalog.deletion import DetachedBatch, IntentResult
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.steps import acknowledge, filled, listed, new_topic, newborn, race, roll
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World, claim

BATCH = "trim-1"
NAMES = [f"persistent://a/b/{name}" for name in "cab"]


def trim(world: World, topic: Topic, batch_id: str = BATCH, *, by: str = "w", ttl_s: float = 60) -> DetachedBatch:
    """One topic's part."""
    return world.catalog.phase_one.detach_by_retention_into_batch(
        topic.topic_id, batch_id=batch_id, claim=claim(by, ttl_s=ttl_s), cause=CAUSE
    )


def three(world: SqlWorld) -> list[tuple[Topic, list[LedgerId]]]:
    """Three topics with three ledgers each, all consumed."""
    return [(topic, filled(world, topic.topic_id, 3)) for topic in (new_topic(world, name) for name in NAMES)]


def batches(world: SqlWorld) -> dict[LedgerId, str]:
    """In which batch each ledger's intent is."""
    return {one.ledger_id: one.batch_id for one in world.catalog.deletions.list_intents(None, limit=100)}


@pytest.mark.postgres
def test_topics_share_a_batch_that_is_one_run(sql_world: SqlWorld) -> None:
    """Each topic's ledgers leave in a transaction of their own, with an audit row of their own."""
    topics = three(sql_world)
    for topic, ledgers in topics:
        assert trim(sql_world, topic) == DetachedBatch(batch_id=BATCH, ledgers=2, intents=2)
        assert listed(sql_world, topic.topic_id) == ledgers[2:]
    assert sql_world.catalog.phase_one.count_detached_batch(BATCH) == DetachedBatch(
        batch_id=BATCH, ledgers=6, intents=6
    )
    assert sql_world.sql("SELECT run_id, topic_id FROM run") == [(BATCH, 0)]
    assert [one.detail["ledgers"] for one in sql_world.audited("detach")] == [2, 2, 2]
    rows = sql_world.catalog.deletions.list_unfinished_ranges(BATCH, after=0, rows=100, limit=10)
    assert [one.rows for one in rows] == [6]


def test_topic_trimmed_again_into_its_batch_is_counted_and_left_alone(sql_world: SqlWorld) -> None:
    """Idempotent by batch and topic, also when more could go by now; another batch takes that."""
    (topic, _), (other, _), _ = three(sql_world)
    first = trim(sql_world, topic)
    trim(sql_world, other)
    assert [one.rows for one in first.filed_counts] == [2]
    more = filled(sql_world, topic.topic_id, 2)
    again = trim(sql_world, topic)
    assert (again, again.filed_counts) == (first, ())
    assert trim(sql_world, topic, "trim-2").ledgers == 2
    assert listed(sql_world, topic.topic_id) == more[1:]


@pytest.mark.postgres
def test_topic_with_nothing_to_give_leaves_no_trace(sql_world: SqlWorld) -> None:
    """No run, no audit row; asked again later it may find something."""
    topic = new_topic(sql_world)
    roll(sql_world, topic.topic_id)
    assert trim(sql_world, topic).intents == 0
    assert sql_world.sql("SELECT run_id FROM run") == []
    filled(sql_world, topic.topic_id, 2)
    assert trim(sql_world, topic).ledgers == 2  # the first one was empty, and is closed now


def test_trim_keeps_what_a_subscription_needs(sql_world: SqlWorld) -> None:
    """The rule is that of a single trim: a prefix behind every cursor (apache/pulsar#20898)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "slow", latest=False)
    acknowledge(sql_world, topic.topic_id, "slow", up_to=(ledgers[0], 9))
    assert trim(sql_world, topic).ledgers == 1
    assert listed(sql_world, topic.topic_id) == ledgers[1:]


def test_trim_takes_up_stalled_intents_and_newborn_ledgers(sql_world: SqlWorld) -> None:
    """As a single trim does; intents that were filed earlier are no ledgers of this batch."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 3)
    sql_world.phase_one(topic.topic_id, ledgers[:1], batch_id="dead", ttl_s=-1)
    born = newborn(sql_world, topic.topic_id)
    sql_world.age(born, seconds=601)
    assert trim(sql_world, topic) == DetachedBatch(batch_id=BATCH, ledgers=2, intents=3)
    assert set(batches(sql_world).values()) == {BATCH}


def test_trim_into_a_batch_that_ended_or_is_anothers_changes_nothing(sql_world: SqlWorld) -> None:
    """An attempt that was taken for dead files nothing that nobody would certify (temporalio/sdk-python#1048)."""
    (topic, _), (other, ledgers), _ = three(sql_world)
    trim(sql_world, topic)
    with pytest.raises(ClaimHeld, match="trim-1"):
        trim(sql_world, other, by="somebody-else")
    sql_world.catalog.deletions.close_batch(BATCH, CAUSE)
    with pytest.raises(ClaimHeld, match="finished"):
        trim(sql_world, other)
    assert listed(sql_world, other.topic_id) == ledgers
    with pytest.raises(PreconditionFailed, match="another request"):
        sql_world.phase_one(other.topic_id, batch_id=BATCH)


def test_trim_of_an_unknown_topic_is_refused(sql_world: SqlWorld) -> None:
    """It was deleted since its page was read; the batch of the others is as it was."""
    (topic, _), *_ = three(sql_world)
    trim(sql_world, topic)
    with pytest.raises(UnknownObject):
        sql_world.catalog.phase_one.detach_by_retention_into_batch(
            TopicId(99), batch_id=BATCH, claim=claim(), cause=CAUSE
        )
    assert sql_world.catalog.phase_one.count_detached_batch(BATCH).intents == 2


def test_trim_repeated_after_its_topic_has_gone_is_answered_by_its_batch(world: World) -> None:
    """The answer of the first call was lost, and the topic was deleted before the second one."""
    topic = new_topic(world)
    filled(world, topic.topic_id, 3)
    first = trim(world, topic)
    assert first.intents == 2
    world.remove_topic(topic.topic_id)
    assert trim(world, topic) == first
    with pytest.raises(UnknownObject):
        trim(world, topic, "trim-2")


@pytest.mark.postgres
def test_trim_that_meets_a_damaged_cursor_changes_nothing(sql_world: SqlWorld) -> None:
    """One topic's row that cannot be read is that topic's trouble (YahooArchive/bookkeeper#17)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 3)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "s", latest=False)
    acknowledge(sql_world, topic.topic_id, "s", up_to=(ledgers[1], 9))
    sql_world.sql("UPDATE cursor SET acknowledged = :bytes", bytes=b"no bitmap at all")
    with pytest.raises(CorruptData):
        trim(sql_world, topic)
    assert listed(sql_world, topic.topic_id) == ledgers


def test_trim_holds_the_batch_further(sql_world: SqlWorld) -> None:
    """Each topic renews the claim, so that rows of the first page are not taken for stalled."""
    (topic, _), (other, _), _ = three(sql_world)
    trim(sql_world, topic, ttl_s=-1)
    trim(sql_world, other, ttl_s=600)
    assert sql_world.phase_one(topic.topic_id, batch_id="another").intents == 0


def test_batch_counts_exclude_what_another_took_up(sql_world: SqlWorld) -> None:
    """A batch whose claim ended loses its rows to whoever comes, and says so."""
    (topic, _), (other, _), _ = three(sql_world)
    trim(sql_world, topic, ttl_s=-1)
    assert sql_world.phase_one(topic.topic_id, batch_id="another").intents == 2
    assert trim(sql_world, other).intents == 2
    assert sql_world.catalog.phase_one.count_detached_batch(BATCH) == DetachedBatch(
        batch_id=BATCH, ledgers=2, intents=2
    )


@pytest.mark.postgres
def test_promising_topics_are_those_in_which_something_may_be_found(sql_world: SqlWorld) -> None:
    """Closed ledgers, stalled intents, abandoned newborns; not a topic with its open ledger alone."""
    names = ["idle", "empty", "closed", "stalled", "live", "newborn", "young"]
    topics = {name: new_topic(sql_world, f"persistent://a/b/{name}") for name in names}
    ids = {name: topic.topic_id for name, topic in topics.items()}
    filled(sql_world, ids["idle"], 1)
    filled(sql_world, ids["closed"], 2)
    for name, ttl_s in (("stalled", -1), ("live", 60)):
        filled(sql_world, ids[name], 2)
        sql_world.phase_one(ids[name], batch_id=name, ttl_s=ttl_s)
    sql_world.age(newborn(sql_world, ids["newborn"]), seconds=601)
    newborn(sql_world, ids["young"])
    found = sql_world.catalog.phase_one.select_detachable_topics(list(ids.values()))
    assert {name for name, topic_id in ids.items() if topic_id in found} == {"closed", "stalled", "newborn"}
    assert sql_world.catalog.phase_one.select_detachable_topics([ids["idle"]]) == frozenset()
    assert sql_world.catalog.phase_one.select_detachable_topics([]) == frozenset()


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["before", "after", "reported_failed"])
def test_trim_interrupted_loses_no_ledger(sql_world: SqlWorld, point: str) -> None:
    """A ledger is listed or has its intent (apache/pulsar#13526); a repeat ends it."""
    (topic, ledgers), *_ = three(sql_world)
    arm(f"catalog.detach_into.{point}", "crash")
    with pytest.raises(SimulatedCrash):
        trim(sql_world, topic)
    disarm_all_and_take_hits()
    assert sorted([*listed(sql_world, topic.topic_id), *batches(sql_world)]) == ledgers
    assert trim(sql_world, topic) == DetachedBatch(batch_id=BATCH, ledgers=2, intents=2)


@pytest.mark.postgres
def test_trims_thirty_two_at_once_take_each_ledger_once(sql_world: SqlWorld) -> None:
    """Several topics, several batches, several attempts of each."""
    topics = three(sql_world)
    answers = race(lambda number: trim(sql_world, topics[number % 3][0], f"trim-{number % 4}"))
    assert all(isinstance(answer, DetachedBatch) for answer in answers), answers
    assert sql_world.intents() == sorted(one for _, ledgers in topics for one in ledgers[:2])
    counted = [sql_world.catalog.phase_one.count_detached_batch(f"trim-{number}") for number in range(4)]
    assert sum(one.ledgers for one in counted) == 6


def test_row_of_the_batch_that_ended_is_not_taken_out_again(sql_world: SqlWorld) -> None:
    """An attempt that comes while phase two is at work finds nothing more of what is gone."""
    (topic, _), *_ = three(sql_world)
    trim(sql_world, topic)
    for one in sql_world.catalog.deletions.list_intents(None, limit=9):
        ended = IntentResult(row_id=one.row_id, outcome=Outcome.DELETED)
        sql_world.catalog.deletions.record_outcomes([ended], holder=BATCH)
    assert trim(sql_world, topic).intents == 0
    assert sql_world.catalog.deletions.tally_batch(BATCH).outcomes == {"DELETED": 2}


@pytest.mark.postgres
def test_topic_that_waited_for_the_batch_to_be_opened_counts_its_ledgers(sql_world: SqlWorld) -> None:
    """It filed its intents before the run says that the batch began: they are its own, and not taken up."""
    (topic, _), (other, _), _ = three(sql_world)
    trim(sql_world, topic)
    sql_world.sql("UPDATE run SET created_us = created_us + 3600000000")
    assert trim(sql_world, other).ledgers == 2
