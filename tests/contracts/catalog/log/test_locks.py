"""Decisions are taken after the lock is held: whoever waited sees what the one before it committed.

Each test holds a row in a transaction of another connection, lets a method of the port run into it, changes in that
transaction what the method must look at, and commits. On SQLite the one write lock does all of this; on PostgreSQL,
READ COMMITTED, a row that was read before the wait would be the old one.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import event, text

from logstore.catalog import tables
from logstore.cursors.cursor_state import CursorState
from logstore.deletion.intents import DeletionIntent, Outcome
from logstore.errors import (
    AlreadyExists,
    ClaimHeld,
    LedgerFenced,
    LedgerStillNeeded,
    PreconditionFailed,
    ProducerFenced,
)
from logstore.log.entries import ProducerSequenceRange
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.cursors import StoredCursor
from logstore.ports.catalog.deletion import DetachedBatch, IntentResult, IntentRowRange
from logstore.ports.catalog.log import (
    AcknowledgeResult,
    AcknowledgeWrite,
    RegisterSegmentResult,
    RegisterSegmentWrite,
    Topic,
)
from logstore.positions import LedgerId
from tests.contracts.catalog.blocking import behind
from tests.contracts.catalog.steps import acknowledge, at, filled, listed, new_topic, newborn, roll
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, claim

pytestmark = pytest.mark.postgres


@pytest.mark.external_service
def test_sweep_asks_again_under_the_rows_locks_whether_they_are_still_stalled(postgres_url: str) -> None:
    """Its batch was taken up again between the look and the lock, which no lock of a row of it tells: PostgreSQL only.

    On SQLite nobody writes between the two.
    """
    world = SqlWorld(postgres_url)
    topic = new_topic(world)
    filled(world, topic.topic_id, 3)
    world.phase_one(topic.topic_id, batch_id="b", ttl_s=-1)

    looks: list[str] = []

    def renewed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "SKIP LOCKED" in statement and not looks:
            looks.append(statement)
            world.catalog.deletions.renew_batch_claim("b", claim("w"))

    event.listen(world.database.engine, "after_cursor_execute", renewed)
    adopted = world.catalog.upkeep.move_abandoned_work_to_batch(
        batch_id="sweep", claim=claim("delete-ledgers/sweep"), limit=9
    )
    assert (len(looks), adopted.intents) == (1, 0)
    assert len(world.catalog.deletions.list_intents_in_range("b", IntentRowRange(first=0, last=2**62, rows=0))) == 2
    world.database.close()


_LIST = "UPDATE ledger_list SET version = version + 1"


def _segment(topic: Topic, ledger_id: LedgerId, number: int = 5, first: int = 0) -> RegisterSegmentWrite:
    return RegisterSegmentWrite(
        topic_id=topic.topic_id,
        ledger_id=ledger_id,
        epoch=1,
        number=number,
        entries=10,
        size_bytes=100,
        producers=(ProducerSequenceRange(producer="p", first=first, last=first),),
    )


def test_sweep_behind_an_attach_keeps_the_newborn(sql_world: SqlWorld) -> None:
    """It was taken for dead, and came into its list while the sweep waited for that: it may hold entries by now."""
    topic = new_topic(sql_world)
    roll(sql_world, topic.topic_id)
    born = newborn(sql_world, topic.topic_id)
    sql_world.age(born, seconds=601)
    attached = f"UPDATE ledger SET state = 'OPEN', place = {born} WHERE ledger_id = {born}"

    def sweep() -> DetachedBatch:
        return sql_world.catalog.upkeep.move_abandoned_work_to_batch(
            batch_id="sweep", claim=claim("delete-ledgers/sweep"), limit=9
        )

    swept = behind(sql_world, [_LIST], sweep, [attached])
    assert isinstance(swept, DetachedBatch), swept
    assert (swept.ledgers, swept.intents) == (0, 0)
    assert sql_world.intents() == []
    assert born in listed(sql_world, topic.topic_id)


def test_detach_behind_a_subscribe_keeps_what_it_needs(sql_world: SqlWorld) -> None:
    """A subscription committed while the detach waited for the list counts (promise 1)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 3)
    cursor = (
        "INSERT INTO cursor (topic_id, name, mark_ledger, mark_entry, acknowledged, created_us) "
        f"VALUES ({topic.topic_id}, 'late', {ledgers[1]}, 3, '', 0)"
    )
    by_id = behind(sql_world, [_LIST], lambda: sql_world.phase_one(topic.topic_id, [ledgers[1]]), [cursor])
    assert isinstance(by_id, LedgerStillNeeded), by_id
    moved = f"UPDATE cursor SET mark_ledger = {ledgers[0]}, mark_entry = 8"
    behind(sql_world, [_LIST], lambda: sql_world.phase_one(topic.topic_id), [moved])
    assert listed(sql_world, topic.topic_id) == ledgers


def test_detach_behind_an_offload_keeps_the_ledger(sql_world: SqlWorld) -> None:
    """An offload that began while the detach waited counts (apache/pulsar#13219)."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 2)
    copy = (
        "INSERT INTO ledger_copy (ledger_id, kind, state, context) "
        f"VALUES ({ledgers[0]}, 'OFFLOADED_LEDGER', 'WRITING', '{{}}')"
    )
    behind(sql_world, [_LIST], lambda: sql_world.phase_one(topic.topic_id), [copy])
    assert listed(sql_world, topic.topic_id) == ledgers


def test_detach_forced_behind_an_acknowledgement_does_not_undo_it(sql_world: SqlWorld) -> None:
    """Acknowledgements do not lock the list: closing a hole starts from what they left, not from what was seen."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 3)
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "busy", latest=False)
    acknowledge(sql_world, topic.topic_id, "busy", (ledgers[0], 5), (ledgers[1], 0))
    held = f"UPDATE cursor SET mark_ledger = {ledgers[2]}, mark_entry = 4, acknowledged = ''"
    behind(sql_world, [held], lambda: sql_world.phase_one(topic.topic_id, ledgers[:1], force=True))
    state = sql_world.catalog.cursors.get_cursor(topic.topic_id, "busy").state
    assert state == CursorState(at(ledgers[2], 4))


def test_detach_behind_a_finish_does_not_adopt_the_row(sql_world: SqlWorld) -> None:
    """A stalled row that ended while it was being adopted stays where it ended."""
    topic = new_topic(sql_world)
    filled(sql_world, topic.topic_id, 2)
    sql_world.phase_one(topic.topic_id, batch_id="dead", ttl_s=-1)
    held = "UPDATE pending_deletion SET state = 'DELETED', outcome = 'DELETED'"
    done = behind(sql_world, [held], lambda: sql_world.phase_one(topic.topic_id, batch_id="next"))
    assert getattr(done, "intents", done) == 0
    assert sql_world.catalog.deletions.tally_batch("dead").outcomes == {"DELETED": 1}


def test_attach_behind_another_attach_loses(sql_world: SqlWorld) -> None:
    """The list's last ledger is looked up under the list's lock (apache/pulsar#350)."""
    topic = new_topic(sql_world)
    first = roll(sql_world, topic.topic_id)
    born, other = newborn(sql_world, topic.topic_id), newborn(sql_world, topic.topic_id)
    then = f"UPDATE ledger SET place = {other}, state = 'OPEN' WHERE ledger_id = {other}"
    assert (
        behind(sql_world, [_LIST], lambda: sql_world.catalog.ledgers.attach_ledger(born, after=first), [then]) is False
    )
    assert listed(sql_world, topic.topic_id) == [first, other]
    assert sql_world.intents() == [born]


def test_attach_behind_a_trim_that_took_the_newborn_is_false(sql_world: SqlWorld) -> None:
    """A newborn that was abandoned while its creator waited does not come back."""
    topic = new_topic(sql_world)
    born = newborn(sql_world, topic.topic_id)
    then = f"DELETE FROM ledger WHERE ledger_id = {born}"
    assert (
        behind(sql_world, [_LIST], lambda: sql_world.catalog.ledgers.attach_ledger(born, after=None), [then]) is False
    )
    assert listed(sql_world, topic.topic_id) == []


@pytest.mark.parametrize(
    ("held", "refusal"),
    [
        ("UPDATE ledger SET state = 'CLOSED'", LedgerFenced),
        ("UPDATE ledger SET last_segment = 5", AlreadyExists),
        ("DELETE FROM ledger", LedgerFenced),
        ("UPDATE producer_sequence SET sequence_id = 7", ProducerFenced),
    ],
)
def test_append_behind_a_change_that_forbids_it_is_refused(
    sql_world: SqlWorld, held: str, refusal: type[Exception]
) -> None:
    """Whatever an append depends on is looked at under its lock (apache/bookkeeper#4462, #4812)."""
    topic = new_topic(sql_world)
    ledger = roll(sql_world, topic.topic_id)
    sql_world.catalog.commits.commit_writes([_segment(topic, ledger, number=0)])
    write = _segment(topic, ledger, first=7)
    answer = behind(sql_world, [held], lambda: sql_world.catalog.commits.commit_writes([write])[0])
    assert type(answer) is refusal, answer
    assert [one.number for one in sql_world.catalog.ledgers.list_segments(ledger)] == [0]


def test_append_behind_another_append_goes_on_after_it(sql_world: SqlWorld) -> None:
    """The first entry is taken from the row as it is under the lock: no gap, no overlap."""
    topic = new_topic(sql_world)
    ledger = roll(sql_world, topic.topic_id)
    held = "UPDATE ledger SET entries = 33, size_bytes = 1, last_segment = 4, segments = 1"
    answer = behind(sql_world, [held], lambda: sql_world.catalog.commits.commit_writes([_segment(topic, ledger)])[0])
    assert answer == RegisterSegmentResult(first_entry=33, ledger_entries=43, ledger_size_bytes=101)


def test_acknowledge_behind_another_adds_to_it(sql_world: SqlWorld) -> None:
    """Two acknowledgements of one cursor are both kept."""
    topic = new_topic(sql_world)
    ledger = filled(sql_world, topic.topic_id, 1)[0]
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "busy", latest=False)
    write = AcknowledgeWrite(topic_id=topic.topic_id, subscription="busy", positions=(at(ledger, 5),))
    held = "UPDATE cursor SET mark_entry = 4"
    answer = behind(sql_world, [held], lambda: sql_world.catalog.commits.commit_writes([write])[0])
    assert answer == AcknowledgeResult(mark_delete=at(ledger, 5))


@pytest.mark.parametrize("act", ["subscribe", "seek", "create", "append"])
def test_work_behind_a_topics_deletion_is_refused(sql_world: SqlWorld, act: str) -> None:
    """A topic that is DELETING when we get its lock takes nothing new, though it was ACTIVE when we asked."""
    topic = new_topic(sql_world)
    ledger = filled(sql_world, topic.topic_id, 1)[0]
    sql_world.catalog.cursors.create_subscription(topic.topic_id, "old", latest=True)

    def work() -> object:
        if act == "create":
            return newborn(sql_world, topic.topic_id)
        if act == "seek":
            return sql_world.catalog.cursors.seek_cursor(topic.topic_id, "old", at(0, 0))
        if act == "append":
            return sql_world.catalog.commits.commit_writes([_segment(topic, ledger)])[0]
        return sql_world.catalog.cursors.create_subscription(topic.topic_id, "new", latest=True)

    lock = "SELECT topic_id FROM topic" + ("" if sql_world.database.is_sqlite else " FOR UPDATE")
    answer = behind(sql_world, [lock, "UPDATE topic SET state = 'DELETING'"], work)
    assert isinstance(answer, PreconditionFailed), answer


@pytest.mark.external_service
def test_deletion_begins_beside_who_works_on_the_topic_and_detaches_what_it_leaves(postgres_url: str) -> None:
    """Beginning waits for nobody, or a busy topic would never go; who was there before it is waited for then."""
    world = SqlWorld(postgres_url)
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 1)
    phase_one = world.catalog.phase_one
    share = "SELECT topic_id FROM topic FOR KEY SHARE"
    with world.database.engine.connect() as connection, connection.begin(), ThreadPoolExecutor(1) as pool:
        connection.execute(text(share))
        pool.submit(phase_one.begin_topic_deletion, topic.topic_id, topic.name, CAUSE).result(timeout=20)
    late = LedgerId(ledgers[0] + 1)
    columns = _rest("ledger")
    copied = f"INSERT INTO ledger (ledger_id, {columns}) SELECT {late}, {columns.replace('place', '9')} FROM ledger"
    detach = partial(phase_one.detach_whole_topic, topic.topic_id, batch_id="all", claim=claim(ttl_s=60), cause=CAUSE)
    done = behind(world, [share], detach, [copied])
    assert isinstance(done, DetachedBatch), done
    assert world.intents() == [*ledgers, late]
    world.database.close()


def test_subscribe_behind_a_detach_begins_at_what_is_left(sql_world: SqlWorld) -> None:
    """The first listed entry is looked up under the list's lock."""
    topic = new_topic(sql_world)
    ledgers = filled(sql_world, topic.topic_id, 3)
    then = f"DELETE FROM ledger WHERE ledger_id < {ledgers[2]}"
    subscribe = sql_world.catalog.cursors.create_subscription
    answer = behind(sql_world, [_LIST], lambda: subscribe(topic.topic_id, "new", latest=False), [then])
    assert isinstance(answer, StoredCursor)
    assert answer.state == CursorState(at(ledgers[2], -1))


def _intent(world: SqlWorld, *, ttl_s: float) -> DeletionIntent:
    topic = new_topic(world)
    filled(world, topic.topic_id, 2)
    world.phase_one(topic.topic_id, batch_id="b", ttl_s=ttl_s)
    return world.catalog.deletions.list_intents_in_range("b", IntentRowRange(first=0, last=99, rows=1))[0]


_CLAIMED = "UPDATE pending_deletion SET claim_workflow = 'first', claim_run = 'r', claim_until_us = 9000000000000000"


def test_take_behind_another_take_is_refused(sql_world: SqlWorld) -> None:
    """A row claimed while we waited for it is held."""
    intent = _intent(sql_world, ttl_s=-1)
    take = sql_world.catalog.deletions.claim_intent
    answer = behind(sql_world, [_CLAIMED], lambda: take(intent.ledger_id, CopyKind.LEDGER, 1, claim("second")))
    assert isinstance(answer, ClaimHeld), answer


def test_take_behind_a_finish_returns_the_outcome(sql_world: SqlWorld) -> None:
    """A row that ended while we waited is returned as it ended, and keeps no claim of ours."""
    intent = _intent(sql_world, ttl_s=-1)
    held = "UPDATE pending_deletion SET state = 'DELETED', outcome = 'ALREADY_GONE'"
    take = sql_world.catalog.deletions.claim_intent
    answer = behind(sql_world, [held], lambda: take(intent.ledger_id, CopyKind.LEDGER, 1, claim("second")))
    assert isinstance(answer, DeletionIntent)
    assert (answer.outcome, answer.attempts, answer.handed_to) == (Outcome.ALREADY_GONE, 0, None)


def test_finish_hand_over_and_hold_behind_a_finish_change_nothing(sql_world: SqlWorld) -> None:
    """The first outcome stands against whoever waited."""
    intent = _intent(sql_world, ttl_s=60)
    deletions = sql_world.catalog.deletions
    held = "UPDATE pending_deletion SET state = 'DELETED', outcome = 'DELETED', attempts = 1, claim_workflow = NULL"
    late = IntentResult(row_id=intent.row_id, outcome=Outcome.DEAD_LETTERED, error="late")
    works: list[Callable[[], object]] = [
        lambda: deletions.record_outcomes([late], holder=intent.batch_id),
        lambda: deletions.move_to_own_workflows(
            {intent.row_id: "late"}, batch_id=intent.batch_id, error_by_row={}, ttl_s=60
        ),
        lambda: deletions.record_attempt_and_extend_claim(intent.row_id, claim("w"), error="late"),
    ]
    for work in works:
        sql_world.sql("UPDATE pending_deletion SET state = 'PENDING', outcome = NULL, claim_workflow = 'w'")
        if work is works[1]:
            sql_world.sql("UPDATE pending_deletion SET claim_workflow = NULL")
        assert behind(sql_world, [held], work) in (frozenset(), 0)
        (found,) = deletions.list_intents(None, limit=9)
        assert (found.outcome, found.attempts, found.handed_to, found.last_error) == (Outcome.DELETED, 1, None, None)


def test_hand_over_behind_a_take_leaves_the_claim(sql_world: SqlWorld) -> None:
    """A row claimed while we waited keeps its holder."""
    intent = _intent(sql_world, ttl_s=60)
    second, batch_id = {intent.row_id: "second"}, intent.batch_id
    hand_over = sql_world.catalog.deletions.move_to_own_workflows
    behind(sql_world, [_CLAIMED], lambda: hand_over(second, batch_id=batch_id, error_by_row={}, ttl_s=60))
    assert [one.handed_to for one in sql_world.catalog.deletions.list_intents(None, limit=9)] == ["first"]


def test_renew_behind_another_renew_is_refused(sql_world: SqlWorld) -> None:
    """A dead batch that was taken while we waited is held."""
    _intent(sql_world, ttl_s=-1)
    held = "UPDATE run SET claim_workflow = 'first', claim_until_us = 9000000000000000"
    answer = behind(sql_world, [held], lambda: sql_world.catalog.deletions.renew_batch_claim("b", claim("second")))
    assert isinstance(answer, ClaimHeld), answer


def test_close_behind_another_close_audits_nothing(sql_world: SqlWorld) -> None:
    """The run's end decides who writes the audit row."""
    _intent(sql_world, ttl_s=60)
    behind(sql_world, ["UPDATE run SET finished_us = 1"], lambda: sql_world.catalog.deletions.close_batch("b", CAUSE))
    assert sql_world.sql("SELECT act FROM audit WHERE act = 'delete-ledgers'") == []


@pytest.mark.external_service
def test_newborn_that_turns_up_while_others_are_filed_is_not_lost(postgres_url: str) -> None:
    """Statements of one transaction see different moments: no row goes that the first of them filed no intent for."""
    world = SqlWorld(postgres_url)
    topic = new_topic(world)
    old = newborn(world, topic.topic_id)
    world.sql("UPDATE ledger SET created_us = 0")
    late = LedgerId(old + 1)

    @event.listens_for(world.database.engine, "before_cursor_execute")
    def turn_up(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("DELETE FROM segment") and not event_seen:
            event_seen.append(late)
            for table, columns in (("ledger", _rest("ledger")), ("ledger_copy", _rest("ledger_copy"))):
                world.sql(f"INSERT INTO {table} (ledger_id, {columns}) SELECT {late}, {columns} FROM {table}")

    event_seen: list[LedgerId] = []
    world.phase_one(topic.topic_id)
    assert event_seen
    assert world.intents() == [old]
    assert world.sql("SELECT ledger_id FROM ledger") == world.sql("SELECT ledger_id FROM ledger_copy") == [(late,)]
    world.phase_one(topic.topic_id)
    assert world.intents() == [old, late]
    world.database.close()


def _rest(table: str) -> str:
    return ", ".join(name for name in sorted(tables.metadata.tables[table].columns.keys()) if name != "ledger_id")


def test_trim_behind_a_sweep_leaves_it_the_rows(sql_world: SqlWorld) -> None:
    """Rows that a sweep took while the trim waited for them are the sweep's, whose batch the trim cannot know of."""
    intent = _intent(sql_world, ttl_s=-1)
    adopted = "UPDATE pending_deletion SET batch_id = 'sweep', claim_workflow = NULL"
    run = (
        "INSERT INTO run (run_id, kind, topic_id, summary, claim_workflow, claim_until_us, created_us)"
        " VALUES ('sweep', 'delete-ledgers', 0, '{}', 'w', 9000000000000000, 1)"
    )
    answer = behind(sql_world, [adopted, run], lambda: sql_world.phase_one(intent.topic_id, batch_id="trim"))
    assert isinstance(answer, DetachedBatch), answer
    assert answer.intents == 0
    assert [one.batch_id for one in sql_world.catalog.deletions.list_intents(None, limit=9)] == ["sweep"]
