"""Phase one: what may go, all or nothing, once."""

import pytest

from logstore.cursors.cursor_state import CursorState
from logstore.deletion.intents import DeletionState, Outcome
from logstore.errors import InvalidInput, LedgerStillNeeded, PreconditionFailed, UnknownObject
from logstore.failpoints import SimulatedCrash, arm
from logstore.log.ledger_object_keys import SHARDS
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ports.catalog.deletion import DetachedBatch, FiledIntentCount, IntentResult, IntentRowRange
from logstore.ports.catalog.log import TopicState
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.steps import (
    acknowledge,
    at,
    filled,
    listed,
    new_topic,
    newborn,
    race,
    roll,
)
from tests.contracts.catalog.worlds import SqlWorld, World, claim


def test_detach_by_retention_replaces_consumed_ledgers_by_intents(world: World) -> None:
    """Every ledger that leaves the list is an intent with all that phase two needs (apache/pulsar#13526, PIP-186)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4, entries=10, size_bytes=100)
    before = world.rows().versions[0]
    assert world.catalog.phase_one.preview_detach(topic.topic_id, None, force=False) == ledgers[:3]
    done = world.phase_one(topic.topic_id, batch_id="b")
    assert done == DetachedBatch(batch_id="b", ledgers=3, intents=3)
    assert listed(world, topic.topic_id) == ledgers[3:]
    assert world.rows().versions == [before + 1]  # one metadata update for a batch of any size
    assert world.rows().segments == world.rows().copies == [ledgers[3]]
    found = world.catalog.deletions.list_intents(None, limit=10)
    assert [intent.ledger_id for intent in found] == ledgers[2::-1]
    first = found[-1]
    assert (first.batch_id, first.copy, first.generation, first.epoch) == ("b", CopyKind.LEDGER, 1, 1)
    assert (first.application, first.component, first.keys) == ("sexton", "MANAGED_LEDGER", {})
    assert (first.topic_id, first.topic) == (topic.topic_id, topic.name)
    assert (first.segments, first.size_bytes, first.context) == (1, 100, {})
    assert (first.state, first.outcome, first.attempts) == (DeletionState.PENDING, None, 0)
    assert first.handed_to is None


@pytest.mark.postgres
def test_preview_of_a_last_ledger_that_is_rolled_is_what_goes_after_the_roll(world: World) -> None:
    """A trim rolls a last ledger that is due, and then deletes it; before, it stays, and so it does if it is needed."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2, entries=10, size_bytes=100)
    preview = world.catalog.phase_one.preview_detach
    assert preview(topic.topic_id, None, force=False) == ledgers[:1]
    going = preview(topic.topic_id, None, force=False, rolled=ledgers[1])
    assert listed(world, topic.topic_id) == ledgers
    roll(world, topic.topic_id)
    assert going == preview(topic.topic_id, None, force=False) == ledgers


@pytest.mark.postgres
def test_detach_files_intents_in_the_order_of_shards(sql_world: SqlWorld) -> None:
    """A range of rows holds few shards, whose ledgers share listings."""
    sql_world.start_ids_at(LedgerId(SHARDS - 2))
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 4)
    sql_world.start_ids_at(LedgerId(2 * SHARDS - 2))
    filled(sql_world, topic.topic_id, 4)
    sql_world.phase_one(topic.topic_id, batch_id="b")
    found = [
        one.ledger_id
        for one in sql_world.catalog.deletions.list_intents_in_range("b", IntentRowRange(first=0, last=99, rows=99))
    ]
    assert found == [256, 512, 257, 254, 510, 255, 511]


def test_detach_empty_or_single_list_takes_nothing(world: World) -> None:
    """The last ledger never goes, and nothing done leaves no run."""
    topic = new_topic(world)
    assert world.phase_one(topic.topic_id).intents == 0
    ledger = roll(world, topic.topic_id)
    assert world.phase_one(topic.topic_id).ledgers == 0
    assert listed(world, topic.topic_id) == [ledger]
    assert world.rows().runs == []


def test_detach_with_a_batch_id_of_another_request_is_refused(world: World) -> None:
    """A name used twice is told from a call repeated, and nobody is certified what another one asked for."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    world.phase_one(topic.topic_id, ledgers[:1], batch_id="b")
    other = new_topic(world, "persistent://a/b/other")
    for topic_id, ids, force in (
        (topic.topic_id, ledgers[1:2], False),
        (topic.topic_id, ledgers[:1], True),
        (topic.topic_id, None, False),
        (other.topic_id, None, False),
    ):
        with pytest.raises(PreconditionFailed, match="another request"):
            world.phase_one(topic_id, ids, force=force, batch_id="b")
    assert listed(world, topic.topic_id) == ledgers[1:]


def test_attach_of_a_newborn_abandoned_too_early_lets_phase_two_look_again(world: World) -> None:
    """A creator that slept through the timeout has put a meta.json since: its intent is open again."""
    topic = new_topic(world)
    late = newborn(world, topic.topic_id)
    world.age(late, seconds=601)
    world.phase_one(topic.topic_id)
    row = world.catalog.deletions.list_intents(None, limit=1)[0]
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=row.row_id, outcome=Outcome.ALREADY_GONE)], holder=row.batch_id
    )
    assert not world.catalog.ledgers.attach_ledger(late, after=None)
    assert world.catalog.deletions.count_undeleted_copies().estimated_inflight == 1
    assert world.phase_one(topic.topic_id).intents == 1


def test_attach_of_a_newborn_whose_deletion_is_at_work_takes_the_row_from_it(world: World) -> None:
    """An attempt that listed nothing before the creator put its meta.json may not end the row afterwards."""
    topic = new_topic(world)
    late = newborn(world, topic.topic_id)
    world.age(late, seconds=601)
    world.phase_one(topic.topic_id, batch_id="early")
    row = world.catalog.deletions.list_intents(None, limit=1)[0]
    assert not world.catalog.ledgers.attach_ledger(late, after=None)
    gone = [IntentResult(row_id=row.row_id, outcome=Outcome.ALREADY_GONE)]
    assert world.catalog.deletions.record_outcomes(gone, holder="early") == frozenset()
    assert world.catalog.deletions.count_undeleted_copies().estimated_inflight == 1
    assert world.phase_one(topic.topic_id, batch_id="next").intents == 1


def test_detach_of_ids_that_another_batch_works_on_tells_so(world: World) -> None:
    """Asked for twice at once, the second one hears that the first is at work, and takes nothing from it."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    world.phase_one(topic.topic_id, ledgers[:2], batch_id="first")
    second = world.phase_one(topic.topic_id, ledgers[:2], batch_id="second")
    assert second == DetachedBatch(batch_id="second", ledgers=0, intents=0, finished={"RETRYING": 2})
    assert {intent.batch_id for intent in world.catalog.deletions.list_intents(None, limit=10)} == {"first"}


@pytest.mark.postgres
@pytest.mark.parametrize("mark", [(0, -1), (0, 4), (1, 9), (2, 3), (2, 9), (3, 9)])
def test_detach_by_retention_is_the_prefix_behind_every_cursor(world: World, mark: tuple[int, int]) -> None:
    """What goes is a prefix, up to the slowest cursor (apache/pulsar#20898)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 5)
    for name in ("fast", "slow"):
        world.catalog.cursors.create_subscription(topic.topic_id, name, latest=name == "fast")
    if mark != (0, -1):
        acknowledge(world, topic.topic_id, "slow", up_to=mark)
    acknowledge(world, topic.topic_id, "slow", *((ledgers[3], entry) for entry in range(9)))
    consumed = mark[0] + (mark[1] == 9)
    world.phase_one(topic.topic_id)
    assert world.intents() == ledgers[:consumed]
    assert listed(world, topic.topic_id) == ledgers[consumed:]


@pytest.mark.postgres
def test_detach_by_retention_waits_for_age_or_size(world: World) -> None:
    """Either limit lets go: too old, or enough newer bytes behind it; in between nothing does."""
    topic = new_topic(world, retention_s=3600, retention_bytes=250)
    ledgers = filled(world, topic.topic_id, 5, size_bytes=100)
    assert world.phase_one(topic.topic_id).ledgers == 2  # 300 bytes are newer than the second
    world.age(ledgers[3], seconds=3601)
    assert world.phase_one(topic.topic_id).ledgers == 0  # the third is young: the walk ends there
    world.age(ledgers[2], seconds=3601)
    assert world.phase_one(topic.topic_id).ledgers == 2
    assert listed(world, topic.topic_id) == ledgers[4:]


def test_detach_by_retention_stops_at_a_ledger_that_is_being_offloaded(world: World) -> None:
    """Delete and offload of one ledger exclude each other (apache/pulsar#13219)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    world.add_copy(ledgers[1], CopyState.WRITING)
    with pytest.raises(LedgerStillNeeded, match="a copy of it is being written"):
        world.phase_one(topic.topic_id, [ledgers[1]], force=True)
    world.phase_one(topic.topic_id)
    assert listed(world, topic.topic_id) == ledgers[1:]


def test_detach_ledger_with_two_copies_files_an_intent_each(world: World) -> None:
    """A ledger in both buckets gets two rows, handled alone; the offload context travels (apache/pulsar#16687)."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    world.add_copy(ledger, CopyState.LIVE, uuid="u-1", bucket="cold")
    assert world.catalog.ledgers.list_ledgers(topic.topic_id)[0].copies == (CopyKind.LEDGER, CopyKind.OFFLOADED_LEDGER)
    assert world.phase_one(topic.topic_id) == DetachedBatch(batch_id="batch-1", ledgers=1, intents=2)
    tiered, primary = world.catalog.deletions.list_intents(None, limit=10)
    assert (primary.copy, primary.context) == (CopyKind.LEDGER, {})
    assert (tiered.copy, tiered.context) == (CopyKind.OFFLOADED_LEDGER, {"uuid": "u-1", "bucket": "cold"})


def test_detach_repeated_with_its_batch_id_answers_the_same(world: World) -> None:
    """A caller unsure of its commit asks again and nothing more goes (PIP-186, idempotency)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    first = world.phase_one(topic.topic_id, batch_id="b")
    filled(world, topic.topic_id, 2)
    assert world.phase_one(topic.topic_id, batch_id="b") == first
    assert world.intents() == ledgers[:2]
    assert len(world.audited("detach")) == 1


@pytest.mark.postgres
def test_detach_thirty_two_at_once_take_each_ledger_once(world: World) -> None:
    """Racing trims file one intent a copy between them; racing repeats of one batch all get one answer."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 6)
    answers = race(lambda number: world.phase_one(topic.topic_id, batch_id=f"b{number % 4}"))
    assert all(isinstance(answer, DetachedBatch) for answer in answers), answers
    assert world.intents() == ledgers[:5]
    assert sum({one.batch_id: one.ledgers for one in answers if isinstance(one, DetachedBatch)}.values()) == 5


def test_detach_explicit_ids_is_all_or_nothing(world: World) -> None:
    """One id that must stay keeps all of them; the error names it and why."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    world.catalog.cursors.create_subscription(topic.topic_id, "slow", latest=False)
    acknowledge(world, topic.topic_id, "slow", up_to=(ledgers[0], 9))
    for ask in (world.phase_one, world.catalog.phase_one.preview_detach):
        with pytest.raises(LedgerStillNeeded, match=f"ledger {ledgers[1]}: .*slow"):
            ask(topic.topic_id, [ledgers[0], ledgers[1]], force=False)
    assert listed(world, topic.topic_id) == ledgers
    assert world.intents() == []
    assert world.rows().runs == []
    assert world.phase_one(topic.topic_id, [ledgers[0]]).ledgers == 1


def test_detach_explicit_ids_need_no_prefix_and_no_limit(world: World) -> None:
    """An explicit delete asks for the rule without the prefix and the limits; ids may come twice, in any order."""
    topic = new_topic(world, retention_s=3600)
    ledgers = filled(world, topic.topic_id, 5)
    wanted = [ledgers[3], ledgers[1], ledgers[3]]
    assert world.catalog.phase_one.preview_detach(topic.topic_id, wanted, force=False) == [ledgers[1], ledgers[3]]
    assert world.phase_one(topic.topic_id, wanted).ledgers == 2
    assert listed(world, topic.topic_id) == [ledgers[0], ledgers[2], ledgers[4]]


@pytest.mark.postgres
@pytest.mark.parametrize("force", [False, True])
def test_detach_last_ledger_never_goes(world: World, force: bool) -> None:
    """The open last ledger stays whatever force says, and so does a last one that was closed."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[1]
    with pytest.raises(LedgerStillNeeded, match="it is OPEN"):
        world.phase_one(topic.topic_id, [ledger], force=force)
    world.close_ledger(ledger)
    with pytest.raises(LedgerStillNeeded, match="the last of its list"):
        world.phase_one(topic.topic_id, [ledger], force=force)
    world.phase_one(topic.topic_id)
    assert listed(world, topic.topic_id) == [ledger]


def test_detach_unknown_ids_are_refused(world: World) -> None:
    """An id of another topic, of nobody, or of a newborn is no ledger of this list; no ids are no request."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    mine, theirs = filled(world, topic.topic_id, 2)[0], filled(world, other.topic_id, 2)[0]
    born = newborn(world, topic.topic_id)
    for wrong in (theirs, born, LedgerId(born + 1), LedgerId(2**63 - 1), LedgerId(-1)):
        with pytest.raises(UnknownObject, match="ledger"):
            world.phase_one(topic.topic_id, [mine, wrong], force=True)
    with pytest.raises(UnknownObject, match="topic"):
        world.phase_one(TopicId(topic.topic_id + 9))
    with pytest.raises(InvalidInput, match="ledger ids"):
        world.phase_one(topic.topic_id, [])
    assert world.intents() == []


def test_detach_ids_that_ended_before_answers_their_outcomes(world: World) -> None:
    """Asking again for what is gone is answered from its row, which stays as it is."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    world.phase_one(topic.topic_id, ledgers[:2])
    rows = world.catalog.deletions.list_intents(None, limit=9)
    outcomes = (Outcome.DELETED, Outcome.METADATA_MISMATCH)
    ended = [IntentResult(row_id=row.row_id, outcome=one) for row, one in zip(rows, outcomes, strict=True)]
    world.catalog.deletions.record_outcomes(ended, holder=rows[0].batch_id)
    again = world.phase_one(topic.topic_id, ledgers[:3], batch_id="again")
    assert again == DetachedBatch(
        batch_id="again", ledgers=1, intents=1, finished={"DELETED": 1, "METADATA_MISMATCH": 1}
    )
    assert world.phase_one(topic.topic_id, ledgers[:3], batch_id="again") == again


@pytest.mark.postgres
def test_detach_forced_moves_cursors_over_the_hole(world: World) -> None:
    """Nobody waits for what is gone: frontier and bitmaps pass the hole (apache/pulsar#18620), audited."""
    topic = new_topic(world)
    a, b, c, d = filled(world, topic.topic_id, 4)
    for name in ("at-start", "inside", "before", "beyond"):
        world.catalog.cursors.create_subscription(topic.topic_id, name, latest=False)
    acknowledge(world, topic.topic_id, "inside", (b, 7), (c, 0), (c, 1), up_to=(b, 3))
    acknowledge(world, topic.topic_id, "before", (b, 2), (c, 5), up_to=(a, 9))
    acknowledge(world, topic.topic_id, "beyond", (d, 4), up_to=(c, 2))
    world.phase_one(topic.topic_id, [b], force=True)
    states = {found.name: found.state for found in world.catalog.cursors.list_cursors(topic.topic_id)}
    assert states["at-start"] == CursorState(at(a, -1))
    assert states["inside"] == CursorState(at(c, 1))
    assert states["before"].mark_delete == at(a, 9)
    assert list(states["before"].acknowledged) == [c]
    assert states["beyond"].mark_delete == at(c, 2)
    assert list(states["beyond"].acknowledged) == [d]
    for name in states:
        acknowledge(world, topic.topic_id, name, up_to=(a, 9))
        acknowledge(world, topic.topic_id, name, *((c, entry) for entry in range(10)))
    assert {found.state.mark_delete >= at(c, 9) for found in world.catalog.cursors.list_cursors(topic.topic_id)} == {
        True
    }
    assert world.phase_one(topic.topic_id).ledgers == 2
    forced = world.audited("detach")[0]
    assert (forced.actor, forced.reason, forced.detail["sample"]) == ("tests", "a test", [b])


def test_detach_deleting_topic_is_allowed(world: World) -> None:
    """DELETING stops what adds reasons to keep, not what removes."""
    topic = new_topic(world)
    filled(world, topic.topic_id, 3)
    world.set_state(topic.topic_id, TopicState.DELETING)
    assert world.phase_one(topic.topic_id).ledgers == 2


def test_detach_newborn_is_abandoned_after_the_timeout_only(world: World) -> None:
    """A creator that died leaves a row that trim files, and not before its time (apache/pulsar#350)."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    last = roll(world, topic.topic_id)
    old, young, theirs = (newborn(world, one.topic_id) for one in (topic, topic, other))
    for ledger_id, seconds in ((old, 601), (young, 590), (theirs, 601), (last, 601)):  # the last one is listed
        world.age(ledger_id, seconds=seconds)
    assert world.phase_one(topic.topic_id) == DetachedBatch(batch_id="batch-1", ledgers=0, intents=1)
    assert world.intents() == [old]
    assert not world.catalog.ledgers.attach_ledger(old, after=last)
    assert world.catalog.ledgers.attach_ledger(young, after=last)


def test_detach_adopts_stalled_intents_and_no_live_ones(world: World) -> None:
    """Unfinished without a live claim is taken up by whoever comes next; what is being worked on is left alone."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    dead = filled(world, topic.topic_id, 3)[:2]
    world.phase_one(topic.topic_id, batch_id="dead", ttl_s=-1)
    filled(world, other.topic_id, 2)
    world.phase_one(other.topic_id, batch_id="elsewhere", ttl_s=-1)
    live = listed(world, topic.topic_id)
    filled(world, topic.topic_id, 1)
    own = world.catalog.deletions.claim_intent(dead[0], CopyKind.LEDGER, 1, claim("one-of-its-own"))
    done = world.phase_one(topic.topic_id, batch_id="live")
    assert (done.ledgers, done.intents) == (1, 2)
    assert {one.ledger_id: one.batch_id for one in world.catalog.deletions.list_intents(None, limit=9)} == {
        dead[0]: "dead",
        dead[1]: "live",
        live[0]: "live",
        3: "elsewhere",
    }
    world.catalog.deletions.record_attempt_and_extend_claim(own.row_id, claim("one-of-its-own", ttl_s=-1))
    assert world.phase_one(topic.topic_id, batch_id="last").intents == 1
    (taken,) = (one for one in world.catalog.deletions.list_intents(None, limit=9) if one.batch_id == "last")
    assert (taken.ledger_id, taken.handed_to, taken.attempts) == (dead[0], None, 1)


def test_detach_explicit_ids_adopt_their_own_stalled_intents_only(world: World) -> None:
    """Asking for one ledger takes up its row and leaves its neighbours' alone."""
    topic = new_topic(world)
    a, b, _ = filled(world, topic.topic_id, 3)
    world.phase_one(topic.topic_id, batch_id="dead", ttl_s=-1)
    assert world.phase_one(topic.topic_id, [b], batch_id="b").intents == 1
    assert world.phase_one(topic.topic_id, [b], batch_id="c").intents == 0  # b's batch lives
    assert {i.ledger_id: i.batch_id for i in world.catalog.deletions.list_intents(None, limit=9)} == {a: "dead", b: "b"}


@pytest.mark.postgres
def test_detach_losers_intent_is_stalled_at_once_and_adopted(world: World) -> None:
    """The newborn that lost the race has an intent that nobody holds: the next trim takes it up."""
    topic = new_topic(world)
    first = roll(world, topic.topic_id)
    born = newborn(world, topic.topic_id)
    roll(world, topic.topic_id)
    assert not world.catalog.ledgers.attach_ledger(born, after=first)
    done = world.phase_one(topic.topic_id, batch_id="trim")
    assert (done.ledgers, done.intents) == (1, 2)
    assert {one.batch_id for one in world.catalog.deletions.list_intents(None, limit=9)} == {"trim"}


@pytest.mark.postgres
@pytest.mark.parametrize("point", ["before", "after", "reported_failed"])
@pytest.mark.parametrize("act", ["detach", "attach"])
def test_ledgers_at_every_crash_point_are_listed_or_intended(world: World, act: str, point: str) -> None:
    """Around each effect a ledger has its list or its intent (apache/pulsar#13526, #16569); a repeat ends it."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    born = newborn(world, topic.topic_id)
    arm(f"catalog.{act}.{point}", "crash")

    def work() -> object:
        if act == "detach":
            return world.phase_one(topic.topic_id, batch_id="b")
        return world.catalog.ledgers.attach_ledger(born, after=ledgers[0])

    with pytest.raises(SimulatedCrash):
        work()
    _assert_nothing_forgotten(world, topic.topic_id, [*ledgers, born])
    work()
    _assert_nothing_forgotten(world, topic.topic_id, [*ledgers, born])
    assert world.intents() == (ledgers[:3] if act == "detach" else [born])


def _assert_nothing_forgotten(world: World, topic_id: TopicId, ledgers: list[LedgerId]) -> None:
    rows = world.rows()
    assert sorted([*rows.ledgers, *world.intents()]) == sorted(ledgers)  # one of the two, never both
    assert set(listed(world, topic_id)) <= set(rows.ledgers)
    assert rows.copies == rows.ledgers


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore:.*ServerCursor:pytest.PytestUnraisableExceptionWarning")  # made, then never run
def test_detach_dying_at_any_statement_changes_nothing(sql_world: SqlWorld) -> None:
    """Phase one is one transaction: whichever statement is its last, ledgers, cursors and intents are as before."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "slow", latest=False)
    before = (
        listed(sql_world, topic.topic_id),
        sql_world.catalog.cursors.list_cursors(topic.topic_id),
        sql_world.rows().versions,
    )
    deaths = 0
    for _ in sql_world.deaths_in(lambda: sql_world.phase_one(topic.topic_id, ledgers[:2], force=True, batch_id="b")):
        _assert_nothing_forgotten(sql_world, topic.topic_id, ledgers)
        cursors = sql_world.catalog.cursors.list_cursors(topic.topic_id)
        assert (listed(sql_world, topic.topic_id), cursors, sql_world.rows().versions) == before
        assert sql_world.intents() == []
        deaths += 1
    assert deaths >= 10
    assert sql_world.intents() == ledgers[:2]


def test_detach_says_what_it_filed_and_nothing_when_it_is_repeated(world: World) -> None:
    """Only what this very call filed: neither what an earlier one did, nor stalled intents that it took up."""
    topic = new_topic(world)
    a, b, *_ = filled(world, topic.topic_id, 4)
    first = world.phase_one(topic.topic_id, [a], force=True, batch_id="first", ttl_s=-1)
    assert list(first.filed_counts) == [FiledIntentCount(component="MANAGED_LEDGER", copy="LEDGER", rows=1)]
    again = world.phase_one(topic.topic_id, [a], force=True, batch_id="first")
    assert (again, list(again.filed_counts)) == (first, [])
    second = world.phase_one(topic.topic_id, [a, b], force=True, batch_id="second")
    assert (second.intents, list(second.filed_counts)) == (
        2,
        [FiledIntentCount(component="MANAGED_LEDGER", copy="LEDGER", rows=1)],
    )
