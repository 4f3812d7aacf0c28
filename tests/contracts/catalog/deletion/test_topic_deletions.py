"""A topic's deletion in the catalog: begun once, everything detached, nothing left, the name free."""

from collections.abc import Callable

import pytest

from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import AlreadyExists, PreconditionFailed, SextonError, UnknownObject
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.ports.catalog.deletion import AuditCause, DetachedBatch, IntentResult, TopicContentCounts
from logstore.ports.catalog.log import AcknowledgeWrite, RegisterSegmentResult, Topic, TopicState
from logstore.positions import TopicId
from tests.contracts.catalog.deletion.topic_deletion_steps import (
    OTHER,
    begin,
    delete,
    detach_all,
    intents,
    left_of,
    remove,
    rich,
    schema_ledger,
)
from tests.contracts.catalog.log.component_steps import CURSOR
from tests.contracts.catalog.steps import (
    at,
    filled,
    listed,
    new_topic,
    newborn,
    roll,
    segment,
)
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World


def test_delete_topic_leaves_intents_and_audit_only(world: World) -> None:
    """Every component, state and copy becomes an intent with all of its keys; no row of the topic is left."""
    topic, other = new_topic(world), new_topic(world, OTHER)
    copies = rich(world, topic)
    theirs = filled(world, other.topic_id, 2)
    begin(world, topic)
    ledgers = {ledger_id for ledger_id, _ in copies}
    assert detach_all(world, topic) == DetachedBatch(batch_id="all", ledgers=len(ledgers), intents=len(copies))
    assert intents(world) == copies
    keys = {one.component: one.keys for one in world.catalog.deletions.list_intents(None, limit=10)}
    assert keys["MANAGED_CURSOR"] == {"cursor": CURSOR}
    assert {(one.topic, one.topic_id) for one in world.catalog.deletions.list_intents(None, limit=10)} == {
        (topic.name, topic.topic_id)
    }
    contexts = {
        one.ledger_id: one.context for one in world.catalog.deletions.list_intents(None, limit=10) if one.context
    }
    assert contexts == {one: {"uuid": f"u-{one}"} for one, copy in copies if copy == "OFFLOADED_LEDGER"}
    assert remove(world, topic)
    assert left_of(world, topic.topic_id) == {}
    assert sorted(set(world.rows().segments)) == theirs
    assert listed(world, other.topic_id) == theirs


@pytest.mark.postgres
def test_delete_topic_is_audited_once_a_step_with_who_and_why(sql_world: SqlWorld) -> None:
    """A resumed deletion writes no second row of the same act."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 2)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "s", latest=True)
    first = begin(sql_world, topic, AuditCause(actor="ann", reason="old", workflow_id="delete-topic/1"))
    assert begin(sql_world, topic, AuditCause(actor="bob", reason="again", workflow_id="delete-topic/1")) == first
    for _ in range(2):
        detach_all(sql_world, topic)
        remove(sql_world, topic)
    assert begin(sql_world, topic) == first  # of a topic that is gone: the answer was lost, and is asked for again
    rows = sql_world.sql("SELECT act, actor, reason, workflow_id, topic_id, topic FROM audit ORDER BY audit_id")
    assert [row[0] for row in rows] == ["delete-topic", "detach", "remove-topic"]
    assert tuple(rows[0][1:4]) == ("ann", "old", "delete-topic/1")
    assert {tuple(row[4:]) for row in rows} == {(topic.topic_id, topic.name)}
    detail = str(sql_world.sql("SELECT detail FROM audit WHERE act = 'remove-topic'"))
    assert "cursor" in detail


@pytest.mark.postgres
def test_detach_repeated_after_its_topic_was_deleted_answers_the_same(world: World) -> None:
    """Its answer was lost, and the topic went meanwhile: that nothing changed would be untrue."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    first = world.phase_one(topic.topic_id, ledgers[:1], batch_id="b")
    delete(world, topic)
    assert world.phase_one(topic.topic_id, ledgers[:1], batch_id="b") == first
    with pytest.raises(PreconditionFailed, match="another request"):
        world.phase_one(topic.topic_id, ledgers[:2], batch_id="b")
    with pytest.raises(UnknownObject, match="topic_id"):
        world.phase_one(topic.topic_id, ledgers[:1], batch_id="another")


def test_begin_of_another_topic_is_refused(world: World) -> None:
    """An id that never was, or one that bears another name, is no topic to delete (promise 3)."""
    topic = new_topic(world)
    begin_ = world.catalog.phase_one.begin_topic_deletion
    with pytest.raises(UnknownObject, match="existing topic"):
        begin_(TopicId(topic.topic_id + 1), topic.name, CAUSE)
    with pytest.raises(PreconditionFailed, match="expected the name"):
        begin_(topic.topic_id, OTHER, CAUSE)
    assert world.catalog.topics.get_topic(topic.name).state is TopicState.ACTIVE
    assert world.audited("delete-topic") == []


def test_detach_all_and_remove_of_an_active_topic_are_refused(world: World) -> None:
    """Nobody takes everything of a topic to which things can still be attached."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    for step in (detach_all, remove):
        with pytest.raises(PreconditionFailed, match="expected state DELETING, found ACTIVE"):
            step(world, topic)
    assert listed(world, topic.topic_id) == ledgers


def test_detach_all_repeated_with_its_batch_id_answers_the_same(world: World) -> None:
    """Also once the topic is gone; another batch finds nothing, and a batch id of another request is refused."""
    topic, other = new_topic(world), new_topic(world, OTHER)
    filled(world, topic.topic_id, 2)
    begin(world, topic)
    first = detach_all(world, topic)
    assert detach_all(world, topic) == first
    assert remove(world, topic)
    assert detach_all(world, topic) == first
    assert detach_all(world, topic, "second") == DetachedBatch(batch_id="second", ledgers=0, intents=0)
    begin(world, other)
    with pytest.raises(PreconditionFailed, match="another request"):
        detach_all(world, other)


def test_detach_all_takes_up_stalled_intents_and_leaves_live_ones(world: World) -> None:
    """What a dead trim left joins the batch; what is being worked on goes on where it is."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    world.phase_one(topic.topic_id, ledgers[:1], batch_id="dead", ttl_s=-1)
    world.phase_one(topic.topic_id, ledgers[1:2], batch_id="live")
    begin(world, topic)
    assert detach_all(world, topic) == DetachedBatch(batch_id="all", ledgers=2, intents=3)
    batches = {one.ledger_id: one.batch_id for one in world.catalog.deletions.list_intents(None, limit=9)}
    assert batches == {ledgers[0]: "all", ledgers[1]: "live", ledgers[2]: "all", ledgers[3]: "all"}


@pytest.mark.postgres
def test_detach_all_gives_a_ledger_without_copies_its_primary_one(sql_world: SqlWorld) -> None:
    """A row that lost its copies' rows does not stay for ever: storage is asked for what may be there."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    sql_world.sql("DELETE FROM ledger_copy")
    begin(sql_world, topic)
    assert detach_all(sql_world, topic).intents == 1
    assert intents(sql_world) == {(ledger, "LEDGER"): "MANAGED_LEDGER"}
    assert remove(sql_world, topic)


def test_remove_with_a_ledger_attached_changes_nothing(world: World) -> None:
    """Newborn or listed, of whatever component: first it needs its intent."""
    topic = new_topic(world)
    world.catalog.cursors.create_subscription(topic.topic_id, "s", latest=True)
    schema_ledger(world, topic)
    begin(world, topic)
    before = left_of(world, topic.topic_id)
    assert not remove(world, topic)
    assert left_of(world, topic.topic_id) == before
    detach_all(world, topic)
    assert remove(world, topic)


def test_topic_name_is_free_again_and_gets_another_id(world: World) -> None:
    """Only once the topic is gone; the new one shares nothing with the old one, nor does deleting the old one again."""
    topic = new_topic(world)
    rich(world, topic)
    begin(world, topic)
    with pytest.raises(AlreadyExists, match="a topic that is DELETING"):
        new_topic(world)
    detach_all(world, topic)
    assert remove(world, topic)
    again = new_topic(world)
    assert again.topic_id > topic.topic_id
    ledgers = filled(world, again.topic_id, 1)
    assert world.catalog.ledgers.producer_sequences(again.topic_id, ["p"]) == {}
    assert world.catalog.cursors.list_cursors(again.topic_id) == []
    assert remove(world, topic)
    assert detach_all(world, topic, "once-more").intents == 0
    assert listed(world, again.topic_id) == ledgers


def test_work_on_a_deleting_or_deleted_topic_is_refused(world: World) -> None:
    """Append, create, attach, subscribe and seek require ACTIVE; an acknowledgement disturbs nobody."""
    topic, other = new_topic(world), new_topic(world, OTHER)
    ledger = roll(world, topic.topic_id)
    theirs = roll(world, other.topic_id)
    world.catalog.cursors.create_subscription(topic.topic_id, "s", latest=False)
    born = newborn(world, topic.topic_id)
    cursors, ledgers = world.catalog.cursors, world.catalog.ledgers
    work: list[Callable[[], object]] = [
        lambda: newborn(world, topic.topic_id),
        lambda: cursors.create_subscription(topic.topic_id, "new", latest=True),
        lambda: cursors.create_subscription(topic.topic_id, "s", latest=True),
        lambda: cursors.seek_cursor(topic.topic_id, "s", at(ledger, 0)),
    ]
    steps: tuple[Callable[[World, Topic], object], ...] = (begin, detach_all, remove)
    for number, step in enumerate(steps):
        step(world, topic)
        for refused in work:
            with pytest.raises((PreconditionFailed, UnknownObject)):
                refused()
        mine = segment(topic.topic_id, ledger, number)
        good = segment(other.topic_id, theirs, number)
        acked = AcknowledgeWrite(topic_id=topic.topic_id, subscription="s", positions=(at(ledger, 0),))
        answers = world.catalog.commits.commit_writes([mine, acked, good])
        assert isinstance(answers[0], PreconditionFailed | UnknownObject)
        assert isinstance(answers[1], SextonError)
        assert isinstance(answers[2], RegisterSegmentResult)
    assert ledgers.attach_ledger(born, after=ledger) is False
    assert left_of(world, topic.topic_id) == {}


@pytest.mark.postgres
def test_dead_letters_and_retrying_rows_outlive_the_topic(sql_world: SqlWorld) -> None:
    """They stay listed with their own copy of name and keys, and the tally tells of them (PIP-186)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 6)
    sql_world.phase_one(topic.topic_id, ledgers[:2], batch_id="before")
    old, dead = (one.row_id for one in reversed(sql_world.catalog.deletions.list_intents(None, limit=9)))
    finish = sql_world.catalog.deletions.record_outcomes
    finish([IntentResult(row_id=old, outcome=Outcome.DELETED, objects=7, size_bytes=70)], holder="before")
    finish([IntentResult(row_id=dead, outcome=Outcome.METADATA_MISMATCH, error="theirs")], holder="before")
    sql_world.sql("UPDATE pending_deletion SET finished_us = 1 WHERE state = 'DELETED'")
    since_us = begin(sql_world, topic)
    detach_all(sql_world, topic)
    rows = {one.ledger_id: one.row_id for one in sql_world.catalog.deletions.list_intents(None, limit=9)}
    ended = (Outcome.DELETED, Outcome.ALREADY_GONE, Outcome.DEAD_LETTERED)
    finish(
        [
            IntentResult(row_id=rows[one], outcome=outcome, objects=2, size_bytes=20, error=f"{one}")
            for one, outcome in zip(ledgers[2:5], ended, strict=True)
        ],
        holder="all",
    )
    assert remove(sql_world, topic)
    tally = sql_world.catalog.phase_one.tally_topic_intents(topic.topic_id, since_us=since_us)
    assert tally.outcomes == {
        "ALREADY_GONE": 1,
        "DEAD_LETTERED": 1,
        "DELETED": 1,
        "METADATA_MISMATCH": 1,
        "RETRYING": 1,
    }
    assert (tally.objects, tally.size_bytes) == (6, 60)
    sql_world.sql("UPDATE pending_deletion SET state = 'NEWER' WHERE outcome = 'DEAD_LETTERED'")
    assert (
        sum(sql_world.catalog.phase_one.tally_topic_intents(topic.topic_id, since_us=since_us).outcomes.values()) == 5
    )
    letters = sql_world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)
    assert {(one.topic, one.topic_id) for one in letters} == {(topic.name, topic.topic_id)}
    assert sql_world.catalog.deletions.count_undeleted_copies().estimated_inflight == 1


@pytest.mark.postgres
@pytest.mark.sql
def test_contents_counts_what_would_go_and_changes_nothing(world: World) -> None:
    """By component and by kind of copy."""
    topic = new_topic(world)
    rich(world, topic)
    new_topic(world, OTHER)
    before = left_of(world, topic.topic_id)
    assert world.catalog.phase_one.count_topic_contents(topic.topic_id) == TopicContentCounts(
        ledgers={"DELAYED_INDEX": 1, "MANAGED_CURSOR": 1, "MANAGED_LEDGER": 4, "SCHEMA_STORAGE": 1},
        copies={
            "DELAYED_INDEX": {"LEDGER": 1},
            "MANAGED_CURSOR": {"LEDGER": 1},
            "MANAGED_LEDGER": {"LEDGER": 4, "OFFLOADED_LEDGER": 2},
            "SCHEMA_STORAGE": {"LEDGER": 1},
        },
        subscriptions=1,
    )
    assert left_of(world, topic.topic_id) == before
    with pytest.raises(UnknownObject):
        world.catalog.phase_one.count_topic_contents(TopicId(topic.topic_id + 9))


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["before", "after", "reported_failed"])
@pytest.mark.parametrize("step", ["begin_topic_deletion", "detach_topic", "remove_topic"])
def test_delete_topic_interrupted_at_a_step_ends_the_same(world: World, step: str, point: str) -> None:
    """Between any two steps a ledger has its row or its intent (apache/pulsar#13526); a repeat ends it."""
    topic = new_topic(world)
    copies = rich(world, topic)
    arm(f"catalog.{step}.{point}", "crash")
    with pytest.raises(SimulatedCrash):
        delete(world, topic)
    disarm_all_and_take_hits()
    rows = set(world.rows().ledgers)
    assert rows | {one for one, _ in intents(world)} == {one for one, _ in copies}
    assert not rows & {one for one, _ in intents(world)}
    delete(world, topic)
    assert intents(world) == copies
    assert left_of(world, topic.topic_id) == {}


@pytest.mark.postgres
def test_delete_topic_dying_at_any_statement_changes_nothing_or_all(sql_world: SqlWorld) -> None:
    """Each step is one transaction, whichever statement is its last."""
    topic = new_topic(sql_world)
    copies = rich(sql_world, topic)
    steps: tuple[Callable[[], object], ...] = (
        lambda: begin(sql_world, topic),
        lambda: detach_all(sql_world, topic),
        lambda: remove(sql_world, topic),
    )
    tried = 0
    for step in steps:
        before = (left_of(sql_world, topic.topic_id), intents(sql_world))
        for _ in sql_world.deaths_in(step):
            assert (left_of(sql_world, topic.topic_id), intents(sql_world)) == before
            tried += 1
    assert tried > 20
    assert intents(sql_world) == copies
    assert left_of(sql_world, topic.topic_id) == {}
