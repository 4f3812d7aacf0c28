"""Phase one: what may go, all or nothing, once."""

import pytest
from sqlalchemy import event

from logstore.cursors import CursorState
from logstore.deletion import DeletionState, Outcome
from logstore.errors import InvalidInput, LedgerStillNeeded, PreconditionFailed, UnknownObject
from logstore.failpoints import SimulatedCrash, arm
from logstore.ledgers import CopyKind
from logstore.ports.catalog import Detached, Ended, TopicState
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
from tests.contracts.catalog.worlds import SqlWorld, claim


def _versions(world: SqlWorld) -> list[int]:
    return [row[0] for row in world.sql("SELECT version FROM ledger_list ORDER BY list_id")]


def test_detach_by_retention_replaces_consumed_ledgers_by_intents(sql_world: SqlWorld) -> None:
    """Every ledger that leaves the list is an intent with all that phase two needs (apache/pulsar#13526, PIP-186)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4, entries=10, size_bytes=100)
    before = _versions(sql_world)[0]
    assert sql_world.catalog.deletions.preview(topic.topic_id, None, force=False) == ledgers[:3]
    done = sql_world.phase_one(topic.topic_id, batch_id="b")
    assert done == Detached(batch_id="b", ledgers=3, intents=3)
    assert listed(sql_world, topic.topic_id) == ledgers[3:]
    assert _versions(sql_world) == [before + 1]  # one metadata update for a batch of any size
    assert sql_world.sql("SELECT ledger_id FROM segment") == [(ledgers[3],)]
    assert sql_world.sql("SELECT ledger_id FROM ledger_copy") == [(ledgers[3],)]
    found = sql_world.catalog.deletions.list(None, limit=10)
    assert [intent.ledger_id for intent in found] == ledgers[2::-1]
    first = found[-1]
    assert (first.batch_id, first.copy, first.generation, first.epoch) == ("b", CopyKind.LEDGER, 1, 1)
    assert (first.application, first.component, first.keys) == ("sexton", "MANAGED_LEDGER", {})
    assert (first.topic_id, first.topic) == (topic.topic_id, topic.name)
    assert (first.segments, first.size_bytes, first.context) == (1, 100, {})
    assert (first.state, first.outcome, first.attempts) == (DeletionState.PENDING, None, 0)
    assert first.handed_to is None


def test_detach_empty_or_single_list_takes_nothing(sql_world: SqlWorld) -> None:
    """The last ledger never goes, and nothing done leaves no run."""
    topic = new_topic(sql_world)
    assert sql_world.phase_one(topic.topic_id).intents == 0
    ledger = roll(sql_world, topic.topic_id)
    assert sql_world.phase_one(topic.topic_id).ledgers == 0
    assert listed(sql_world, topic.topic_id) == [ledger]
    assert sql_world.sql("SELECT run_id FROM run") == []


def test_detach_with_a_batch_id_of_another_request_is_refused(sql_world: SqlWorld) -> None:
    """A name used twice is told from a call repeated, and nobody is certified what another one asked for."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    sql_world.phase_one(topic.topic_id, ledgers[:1], batch_id="b")
    other = new_topic(sql_world, "persistent://a/b/other")
    for topic_id, ids, force in (
        (topic.topic_id, ledgers[1:2], False),
        (topic.topic_id, ledgers[:1], True),
        (topic.topic_id, None, False),
        (other.topic_id, None, False),
    ):
        with pytest.raises(PreconditionFailed, match="another request"):
            sql_world.phase_one(topic_id, ids, force=force, batch_id="b")
    assert listed(sql_world, topic.topic_id) == ledgers[1:]


def test_attach_of_a_newborn_abandoned_too_early_lets_phase_two_look_again(sql_world: SqlWorld) -> None:
    """A creator that slept through the timeout has put a meta.json since: its intent is open again."""
    topic = new_topic(sql_world)
    late = newborn(sql_world, topic.topic_id)
    sql_world.sql("UPDATE ledger SET created_us = 0")
    sql_world.phase_one(topic.topic_id)
    row = sql_world.catalog.deletions.list(None, limit=1)[0]
    sql_world.catalog.deletions.finish([Ended(row_id=row.row_id, outcome=Outcome.ALREADY_GONE)])
    assert not sql_world.catalog.ledgers.attach(late, after=None)
    assert sql_world.catalog.deletions.inflight().estimated_inflight == 1
    assert sql_world.phase_one(topic.topic_id).intents == 1


def test_detach_of_ids_that_another_batch_works_on_tells_so(sql_world: SqlWorld) -> None:
    """Asked for twice at once, the second one hears that the first is at work, and takes nothing from it."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 3)
    sql_world.phase_one(topic.topic_id, ledgers[:2], batch_id="first")
    second = sql_world.phase_one(topic.topic_id, ledgers[:2], batch_id="second")
    assert second == Detached(batch_id="second", ledgers=0, intents=0, finished={"RETRYING": 2})
    assert {intent.batch_id for intent in sql_world.catalog.deletions.list(None, limit=10)} == {"first"}


@pytest.mark.parametrize("mark", [(0, -1), (0, 4), (1, 9), (2, 3), (2, 9), (3, 9)])
def test_detach_by_retention_is_the_prefix_behind_every_cursor(sql_world: SqlWorld, mark: tuple[int, int]) -> None:
    """What goes is a prefix, up to the slowest cursor (apache/pulsar#20898)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 5)
    for name in ("fast", "slow"):
        sql_world.catalog.cursors.subscribe(topic.topic_id, name, latest=name == "fast")
    if mark != (0, -1):
        acknowledge(sql_world, topic.topic_id, "slow", up_to=mark)
    acknowledge(sql_world, topic.topic_id, "slow", *((ledgers[3], entry) for entry in range(9)))
    consumed = mark[0] + (mark[1] == 9)
    sql_world.phase_one(topic.topic_id)
    assert sql_world.intents() == ledgers[:consumed]
    assert listed(sql_world, topic.topic_id) == ledgers[consumed:]


def test_detach_by_retention_waits_for_age_or_size(sql_world: SqlWorld) -> None:
    """Either limit lets go: too old, or enough newer bytes behind it; in between nothing does."""
    topic = new_topic(sql_world, retention_s=3600, retention_bytes=250)
    ledgers = filled(sql_world, topic.topic_id, 5, size_bytes=100)
    assert sql_world.phase_one(topic.topic_id).ledgers == 2  # 300 bytes are newer than the second
    sql_world.sql("UPDATE ledger SET closed_us = closed_us - 3601000000 WHERE ledger_id = :id", id=ledgers[3])
    assert sql_world.phase_one(topic.topic_id).ledgers == 0  # the third is young: the walk ends there
    sql_world.sql("UPDATE ledger SET closed_us = closed_us - 3601000000 WHERE ledger_id = :id", id=ledgers[2])
    assert sql_world.phase_one(topic.topic_id).ledgers == 2
    assert listed(sql_world, topic.topic_id) == ledgers[4:]


def test_detach_by_retention_stops_at_a_ledger_that_is_being_offloaded(sql_world: SqlWorld) -> None:
    """Delete and offload of one ledger exclude each other (apache/pulsar#13219)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    sql_world.sql(
        "INSERT INTO ledger_copy (ledger_id, kind, state, context) VALUES (:id, 'OFFLOADED_LEDGER', 'WRITING', '{}')",
        id=ledgers[1],
    )
    with pytest.raises(LedgerStillNeeded, match="a copy of it is being written"):
        sql_world.phase_one(topic.topic_id, [ledgers[1]], force=True)
    sql_world.phase_one(topic.topic_id)
    assert listed(sql_world, topic.topic_id) == ledgers[1:]


def test_detach_ledger_with_two_copies_files_an_intent_each(sql_world: SqlWorld) -> None:
    """A ledger in both buckets gets two rows, handled alone; the offload context travels (apache/pulsar#16687)."""
    topic = new_topic(sql_world)
    ledger = filled(sql_world, topic.topic_id, 2)[0]
    sql_world.sql(
        "INSERT INTO ledger_copy (ledger_id, kind, state, context) VALUES (:id, 'OFFLOADED_LEDGER', 'LIVE', :context)",
        id=ledger,
        context='{"uuid": "u-1", "bucket": "cold"}',
    )
    assert sql_world.catalog.ledgers.listed(topic.topic_id)[0].copies == (CopyKind.LEDGER, CopyKind.OFFLOADED_LEDGER)
    assert sql_world.phase_one(topic.topic_id) == Detached(batch_id="batch-1", ledgers=1, intents=2)
    tiered, primary = sql_world.catalog.deletions.list(None, limit=10)
    assert (primary.copy, primary.context) == (CopyKind.LEDGER, {})
    assert (tiered.copy, tiered.context) == (CopyKind.OFFLOADED_LEDGER, {"uuid": "u-1", "bucket": "cold"})


def test_detach_repeated_with_its_batch_id_answers_the_same(sql_world: SqlWorld) -> None:
    """A caller unsure of its commit asks again and nothing more goes (PIP-186, idempotency)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 3)
    first = sql_world.phase_one(topic.topic_id, batch_id="b")
    filled(sql_world, topic.topic_id, 2)
    assert sql_world.phase_one(topic.topic_id, batch_id="b") == first
    assert sql_world.intents() == ledgers[:2]
    assert len(sql_world.sql("SELECT audit_id FROM audit WHERE act = 'detach'")) == 1


def test_detach_thirty_two_at_once_take_each_ledger_once(sql_world: SqlWorld) -> None:
    """Racing trims file one intent a copy between them; racing repeats of one batch all get one answer."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 6)
    answers = race(lambda number: sql_world.phase_one(topic.topic_id, batch_id=f"b{number % 4}"))
    assert all(isinstance(answer, Detached) for answer in answers), answers
    assert sql_world.intents() == ledgers[:5]
    assert sum({one.batch_id: one.ledgers for one in answers if isinstance(one, Detached)}.values()) == 5


def test_detach_explicit_ids_is_all_or_nothing(sql_world: SqlWorld) -> None:
    """One id that must stay keeps all of them; the error names it and why."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    sql_world.catalog.cursors.subscribe(topic.topic_id, "slow", latest=False)
    acknowledge(sql_world, topic.topic_id, "slow", up_to=(ledgers[0], 9))
    for ask in (sql_world.phase_one, sql_world.catalog.deletions.preview):
        with pytest.raises(LedgerStillNeeded, match=f"ledger {ledgers[1]}: .*slow"):
            ask(topic.topic_id, [ledgers[0], ledgers[1]], force=False)
    assert listed(sql_world, topic.topic_id) == ledgers
    assert sql_world.intents() == []
    assert sql_world.sql("SELECT run_id FROM run") == []
    assert sql_world.phase_one(topic.topic_id, [ledgers[0]]).ledgers == 1


def test_detach_explicit_ids_need_no_prefix_and_no_limit(sql_world: SqlWorld) -> None:
    """An explicit delete asks for the rule without the prefix and the limits; ids may come twice, in any order."""
    topic = new_topic(sql_world, retention_s=3600)
    ledgers = filled(sql_world, topic.topic_id, 5)
    wanted = [ledgers[3], ledgers[1], ledgers[3]]
    assert sql_world.catalog.deletions.preview(topic.topic_id, wanted, force=False) == [ledgers[1], ledgers[3]]
    assert sql_world.phase_one(topic.topic_id, wanted).ledgers == 2
    assert listed(sql_world, topic.topic_id) == [ledgers[0], ledgers[2], ledgers[4]]


@pytest.mark.parametrize("force", [False, True])
def test_detach_last_ledger_never_goes(sql_world: SqlWorld, force: bool) -> None:
    """The open last ledger stays whatever force says, and so does a last one that was closed."""
    topic = new_topic(sql_world)
    ledger = filled(sql_world, topic.topic_id, 2)[1]
    with pytest.raises(LedgerStillNeeded, match="it is OPEN"):
        sql_world.phase_one(topic.topic_id, [ledger], force=force)
    sql_world.sql("UPDATE ledger SET state = 'CLOSED', closed_us = 1 WHERE ledger_id = :id", id=ledger)
    with pytest.raises(LedgerStillNeeded, match="the last of its list"):
        sql_world.phase_one(topic.topic_id, [ledger], force=force)
    sql_world.phase_one(topic.topic_id)
    assert listed(sql_world, topic.topic_id) == [ledger]


def test_detach_unknown_ids_are_refused(sql_world: SqlWorld) -> None:
    """An id of another topic, of nobody, or of a newborn is no ledger of this list; no ids are no request."""
    topic, other = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/other")
    mine, theirs = filled(sql_world, topic.topic_id, 2)[0], filled(sql_world, other.topic_id, 2)[0]
    born = newborn(sql_world, topic.topic_id)
    for wrong in (theirs, born, LedgerId(born + 1), LedgerId(2**63 - 1), LedgerId(-1)):
        with pytest.raises(UnknownObject, match="ledger"):
            sql_world.phase_one(topic.topic_id, [mine, wrong], force=True)
    with pytest.raises(UnknownObject, match="topic"):
        sql_world.phase_one(TopicId(topic.topic_id + 9))
    with pytest.raises(InvalidInput, match="ledger ids"):
        sql_world.phase_one(topic.topic_id, [])
    assert sql_world.intents() == []


def test_detach_ids_that_ended_before_answers_their_outcomes(sql_world: SqlWorld) -> None:
    """Asking again for what is gone is answered from its row, which stays as it is."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    sql_world.phase_one(topic.topic_id, ledgers[:2])
    rows = [intent.row_id for intent in sql_world.catalog.deletions.list(None, limit=9)]
    outcomes = (Outcome.DELETED, Outcome.METADATA_MISMATCH)
    sql_world.catalog.deletions.finish([Ended(row_id=r, outcome=o) for r, o in zip(rows, outcomes, strict=True)])
    again = sql_world.phase_one(topic.topic_id, ledgers[:3], batch_id="again")
    assert again == Detached(batch_id="again", ledgers=1, intents=1, finished={"DELETED": 1, "METADATA_MISMATCH": 1})
    assert sql_world.phase_one(topic.topic_id, ledgers[:3], batch_id="again") == again


def test_detach_forced_moves_cursors_over_the_hole(sql_world: SqlWorld) -> None:
    """Nobody waits for what is gone: frontier and bitmaps pass the hole (apache/pulsar#18620), audited."""
    topic = new_topic(sql_world)
    a, b, c, d = filled(sql_world, topic.topic_id, 4)
    for name in ("at-start", "inside", "before", "beyond"):
        sql_world.catalog.cursors.subscribe(topic.topic_id, name, latest=False)
    acknowledge(sql_world, topic.topic_id, "inside", (b, 7), (c, 0), (c, 1), up_to=(b, 3))
    acknowledge(sql_world, topic.topic_id, "before", (b, 2), (c, 5), up_to=(a, 9))
    acknowledge(sql_world, topic.topic_id, "beyond", (d, 4), up_to=(c, 2))
    sql_world.phase_one(topic.topic_id, [b], force=True)
    states = {found.name: found.state for found in sql_world.catalog.cursors.all(topic.topic_id)}
    assert states["at-start"] == CursorState(at(a, -1))
    assert states["inside"] == CursorState(at(c, 1))
    assert states["before"].mark_delete == at(a, 9)
    assert list(states["before"].acknowledged) == [c]
    assert states["beyond"].mark_delete == at(c, 2)
    assert list(states["beyond"].acknowledged) == [d]
    for name in states:
        acknowledge(sql_world, topic.topic_id, name, up_to=(a, 9))
        acknowledge(sql_world, topic.topic_id, name, *((c, entry) for entry in range(10)))
    assert {found.state.mark_delete >= at(c, 9) for found in sql_world.catalog.cursors.all(topic.topic_id)} == {True}
    assert sql_world.phase_one(topic.topic_id).ledgers == 2
    actor, reason, detail = sql_world.sql("SELECT actor, reason, detail FROM audit ORDER BY audit_id")[0]
    assert (actor, reason) == ("tests", "a test")
    assert str(b) in str(detail)


def test_detach_deleting_topic_is_allowed(sql_world: SqlWorld) -> None:
    """DELETING stops what adds reasons to keep, not what removes."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 3)
    sql_world.set_state(topic.topic_id, TopicState.DELETING)
    assert sql_world.phase_one(topic.topic_id).ledgers == 2


def test_detach_newborn_is_abandoned_after_the_timeout_only(sql_world: SqlWorld) -> None:
    """A creator that died leaves a row that trim files, and not before its time (apache/pulsar#350)."""
    topic, other = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/other")
    last = roll(sql_world, topic.topic_id)
    old, young, theirs = (newborn(sql_world, one.topic_id) for one in (topic, topic, other))
    age = "UPDATE ledger SET created_us = created_us - :age WHERE ledger_id = :id"
    sql_world.sql(age, age=601_000_000, id=old)
    sql_world.sql(age, age=590_000_000, id=young)
    sql_world.sql(age, age=601_000_000, id=theirs)
    sql_world.sql(age, age=601_000_000, id=last)  # old and listed
    assert sql_world.phase_one(topic.topic_id) == Detached(batch_id="batch-1", ledgers=0, intents=1)
    assert sql_world.intents() == [old]
    assert not sql_world.catalog.ledgers.attach(old, after=last)
    assert sql_world.catalog.ledgers.attach(young, after=last)


def test_detach_adopts_stalled_intents_and_no_live_ones(sql_world: SqlWorld) -> None:
    """Unfinished without a live claim is taken up by whoever comes next; what is being worked on is left alone."""
    topic, other = new_topic(sql_world), new_topic(sql_world, "persistent://a/b/other")
    dead = filled(sql_world, topic.topic_id, 3)[:2]
    sql_world.phase_one(topic.topic_id, batch_id="dead", ttl_s=-1)
    filled(sql_world, other.topic_id, 2)
    sql_world.phase_one(other.topic_id, batch_id="elsewhere", ttl_s=-1)
    live = listed(sql_world, topic.topic_id)
    filled(sql_world, topic.topic_id, 1)
    own = sql_world.catalog.deletions.take(dead[0], CopyKind.LEDGER, 1, claim("one-of-its-own"))
    done = sql_world.phase_one(topic.topic_id, batch_id="live")
    assert (done.ledgers, done.intents) == (1, 2)
    assert {one.ledger_id: one.batch_id for one in sql_world.catalog.deletions.list(None, limit=9)} == {
        dead[0]: "dead",
        dead[1]: "live",
        live[0]: "live",
        3: "elsewhere",
    }
    sql_world.catalog.deletions.hold(own.row_id, claim("one-of-its-own", ttl_s=-1))
    assert sql_world.phase_one(topic.topic_id, batch_id="last").intents == 1
    (taken,) = (one for one in sql_world.catalog.deletions.list(None, limit=9) if one.batch_id == "last")
    assert (taken.ledger_id, taken.handed_to, taken.attempts) == (dead[0], None, 1)


def test_detach_explicit_ids_adopt_their_own_stalled_intents_only(sql_world: SqlWorld) -> None:
    """Asking for one ledger takes up its row and leaves its neighbours' alone."""
    topic = new_topic(sql_world)
    a, b, _ = filled(sql_world, topic.topic_id, 3)
    sql_world.phase_one(topic.topic_id, batch_id="dead", ttl_s=-1)
    assert sql_world.phase_one(topic.topic_id, [b], batch_id="b").intents == 1
    assert sql_world.phase_one(topic.topic_id, [b], batch_id="c").intents == 0  # b's batch lives
    assert {i.ledger_id: i.batch_id for i in sql_world.catalog.deletions.list(None, limit=9)} == {a: "dead", b: "b"}


def test_detach_losers_intent_is_stalled_at_once_and_adopted(sql_world: SqlWorld) -> None:
    """The newborn that lost the race has an intent that nobody holds: the next trim takes it up."""
    topic = new_topic(sql_world)
    first = roll(sql_world, topic.topic_id)
    born = newborn(sql_world, topic.topic_id)
    roll(sql_world, topic.topic_id)
    assert not sql_world.catalog.ledgers.attach(born, after=first)
    done = sql_world.phase_one(topic.topic_id, batch_id="trim")
    assert (done.ledgers, done.intents) == (1, 2)
    assert {one.batch_id for one in sql_world.catalog.deletions.list(None, limit=9)} == {"trim"}


@pytest.mark.parametrize("point", ["before", "after", "reported_failed"])
@pytest.mark.parametrize("act", ["detach", "attach"])
def test_ledgers_at_every_crash_point_are_listed_or_intended(sql_world: SqlWorld, act: str, point: str) -> None:
    """Around each effect a ledger has its list or its intent (apache/pulsar#13526, #16569); a repeat ends it."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    born = newborn(sql_world, topic.topic_id)
    arm(f"catalog.{act}.{point}", "crash")

    def work() -> object:
        if act == "detach":
            return sql_world.phase_one(topic.topic_id, batch_id="b")
        return sql_world.catalog.ledgers.attach(born, after=ledgers[0])

    with pytest.raises(SimulatedCrash):
        work()
    _assert_nothing_forgotten(sql_world, topic.topic_id, [*ledgers, born])
    work()
    _assert_nothing_forgotten(sql_world, topic.topic_id, [*ledgers, born])
    assert sql_world.intents() == (ledgers[:3] if act == "detach" else [born])


def _assert_nothing_forgotten(world: SqlWorld, topic_id: TopicId, ledgers: list[LedgerId]) -> None:
    rows = [row[0] for row in world.sql("SELECT ledger_id FROM ledger")]
    assert sorted([*rows, *world.intents()]) == sorted(ledgers)  # one of the two, never both
    assert set(listed(world, topic_id)) <= set(rows)
    copies = [row[0] for row in world.sql("SELECT ledger_id FROM ledger_copy")]
    assert sorted(copies) == sorted(rows)


@pytest.mark.filterwarnings("ignore:.*ServerCursor:pytest.PytestUnraisableExceptionWarning")  # made, then never run
def test_detach_dying_at_any_statement_changes_nothing(sql_world: SqlWorld) -> None:
    """Phase one is one transaction: whichever statement is its last, ledgers, cursors and intents are as before."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 4)
    sql_world.catalog.cursors.subscribe(topic.topic_id, "slow", latest=False)
    before = (listed(sql_world, topic.topic_id), sql_world.catalog.cursors.all(topic.topic_id), _versions(sql_world))
    left = [0]

    def die(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise SimulatedCrash("statement")

    for moment in ("before_cursor_execute", "commit"):
        event.listen(sql_world.database.engine, moment, die)
    statements = 0
    while True:
        statements += 1
        left[0] = statements
        try:
            sql_world.phase_one(topic.topic_id, ledgers[:2], force=True, batch_id="b")
            left[0] = 0
            break
        except SimulatedCrash:
            left[0] = 0
            _assert_nothing_forgotten(sql_world, topic.topic_id, ledgers)
            cursors = sql_world.catalog.cursors.all(topic.topic_id)
            assert (listed(sql_world, topic.topic_id), cursors, _versions(sql_world)) == before
            assert sql_world.intents() == []
    assert statements > 10
    assert sql_world.intents() == ledgers[:2]
