"""Dead letters go back into the queue: all or nothing, audited, and found by a sweep if nobody starts on them."""

import pytest

from logstore.deletion import DeletionIntent, DeletionState, Outcome
from logstore.errors import InvalidInput, PreconditionFailed, UnknownObject
from logstore.ports.catalog import Detached, Ended, Inflight, RowRange
from tests.contracts.catalog.steps import filled, new_topic, race
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, claim

_ALL = RowRange(first=0, last=2**62, rows=0)


def _dead(world: SqlWorld, count: int, *, name: str = "b") -> list[DeletionIntent]:
    """So many dead letters, and two rows beside them: one deleted, one pending."""
    topic = new_topic(world, f"persistent://a/b/{name}")
    filled(world, topic.topic_id, count + 3)
    world.phase_one(topic.topic_id, batch_id=name)
    rows = world.catalog.deletions.intents(name, _ALL)
    dead = [Ended(row_id=one.row_id, outcome=Outcome.DEAD_LETTERED, error="503") for one in rows[:count]]
    gone = Ended(row_id=rows[count].row_id, outcome=Outcome.DELETED, objects=2, size_bytes=20)
    world.catalog.deletions.finish([*dead, gone], holder=name)
    return rows


def _redrive(world: SqlWorld, ids: list[int] | None, batch_id: str = "again", *, ttl_s: float = 60) -> Detached:
    owner = claim(f"delete-ledgers/{batch_id}", ttl_s=ttl_s)
    return world.catalog.redrives.redrive(ids, batch_id=batch_id, claim=owner, cause=CAUSE)


def _everything(world: SqlWorld) -> list[object]:
    return [world.sql(f"SELECT * FROM {table}") for table in ("pending_deletion", "run", "audit")]


def test_redrive_of_given_rows_makes_them_work_again(sql_world: SqlWorld) -> None:
    """Pending, counted from none again, with the last error until there is another, in a claimed batch (n 5)."""
    first, second, *_ = _dead(sql_world, 2)
    sql_world.sql("UPDATE pending_deletion SET attempts = 10, keys_left = 3")
    assert _redrive(sql_world, [second.row_id]) == Detached(batch_id="again", ledgers=0, intents=1)
    (found,) = sql_world.catalog.deletions.intents("again", _ALL)
    assert (found.row_id, found.state, found.outcome) == (second.row_id, DeletionState.PENDING, None)
    assert (found.attempts, found.last_error, found.handed_to) == (0, "503", None)
    left = sql_world.sql("SELECT keys_left, finished_us FROM pending_deletion WHERE batch_id = 'again'")
    assert left == [(None, None)]
    assert sql_world.catalog.deletions.inflight() == Inflight(estimated_inflight=2, dead_lettered=1)
    sql_world.catalog.deletions.renew("again", claim("delete-ledgers/again"))
    assert [one.row_id for one in sql_world.catalog.deletions.list(DeletionState.DEAD_LETTERED, limit=9)] == [
        first.row_id
    ]


def test_redrive_leaves_a_row_in_the_audit_log(sql_world: SqlWorld) -> None:
    """Who, why, and which ledgers."""
    rows = _dead(sql_world, 2)
    _redrive(sql_world, None)
    (told,) = sql_world.audited("redrive")
    assert (told.actor, told.reason, told.workflow_id) == (CAUSE.actor, CAUSE.reason, CAUSE.workflow_id)
    ids = [one.ledger_id for one in rows[:2]]
    assert told.detail == {"rows": 2, "ledgers": 2, "first": ids[0], "last": ids[1], "sample": ids}


def test_redrive_all_takes_every_dead_letter_and_nothing_else(sql_world: SqlWorld) -> None:
    """Of every topic, and of a state that nobody knows, which is mended by it."""
    mine, theirs = _dead(sql_world, 2), _dead(sql_world, 1, name="c")
    sql_world.sql("UPDATE pending_deletion SET state = 'LOST' WHERE row_id = :row", row=theirs[0].row_id)
    assert sql_world.catalog.redrives.preview(None) == 3
    assert _redrive(sql_world, None).intents == 3
    found = sql_world.catalog.deletions.intents("again", _ALL)
    assert [one.row_id for one in found] == [mine[0].row_id, mine[1].row_id, theirs[0].row_id]
    assert {one.state for one in found} == {DeletionState.PENDING}


def test_redrive_all_of_none_leaves_no_trace(sql_world: SqlWorld) -> None:
    """Nothing to do is done."""
    _dead(sql_world, 0)
    before = _everything(sql_world)
    assert sql_world.catalog.redrives.preview(None) == 0
    assert _redrive(sql_world, None).intents == 0
    assert _everything(sql_world) == before


def test_redrive_of_rows_that_are_no_dead_letters_names_each_and_changes_nothing(sql_world: SqlWorld) -> None:
    """All or nothing: the operator learns what each id is (promise 2)."""
    dead, gone, pending = (one.row_id for one in _dead(sql_world, 1))
    before = _everything(sql_world)
    for ask in (_redrive, lambda world, ids: world.catalog.redrives.preview(ids)):
        with pytest.raises(PreconditionFailed) as caught:
            ask(sql_world, [dead, gone, pending, 99])
        assert f"found {gone} DELETED, {pending} PENDING, 99 unknown; nothing was changed" in str(caught.value)
        with pytest.raises(UnknownObject, match="98 unknown, 99 unknown"):
            ask(sql_world, [dead, 99, 98])
        with pytest.raises(PreconditionFailed, match="and 2 more"):
            ask(sql_world, [pending, *range(100, 111)])
    assert _everything(sql_world) == before


@pytest.mark.parametrize("ids", [[], list(range(10_001))])
def test_redrive_of_none_or_too_many_ids_is_refused(sql_world: SqlWorld, ids: list[int]) -> None:
    """Bad input changes nothing."""
    with pytest.raises(InvalidInput, match="deletion ids"):
        _redrive(sql_world, ids)


def test_redrive_repeated_with_its_batch_id_answers_the_same(sql_world: SqlWorld) -> None:
    """Done, and reported as failed: the second call changes nothing, and another request is told apart."""
    rows = _dead(sql_world, 2)
    first = _redrive(sql_world, [rows[0].row_id])
    before = _everything(sql_world)
    assert _redrive(sql_world, [rows[0].row_id]) == first
    assert _everything(sql_world) == before
    with pytest.raises(PreconditionFailed, match="another request"):
        _redrive(sql_world, [rows[1].row_id])


def test_redrive_whose_workflow_was_never_started_is_found_by_a_sweep(sql_world: SqlWorld) -> None:
    """A crash in between leaves stalled rows, and no dead letter (promise 8)."""
    _dead(sql_world, 2)
    sql_world.sql("UPDATE run SET claim_until_us = 1")
    _redrive(sql_world, None, ttl_s=-1)
    owner = claim("delete-ledgers/sweep")
    assert sql_world.catalog.sweeps.adopt(batch_id="sweep", claim=owner, limit=9).intents == 3


def test_redrive_at_once_starts_each_row_once(sql_world: SqlWorld) -> None:
    """Two operators with the same idea."""
    _dead(sql_world, 6)
    answers = race(lambda number: _redrive(sql_world, None, f"r{number}"), 8)
    assert sum(one.intents for one in answers if isinstance(one, Detached)) == 6, answers
    assert sum(one.detail["rows"] for one in sql_world.audited("redrive")) == 6


def test_redrive_of_the_same_rows_at_once_is_refused_but_to_one(sql_world: SqlWorld) -> None:
    """Who comes second is told that the row is pending."""
    (dead, *_) = _dead(sql_world, 1)
    answers = race(lambda number: _redrive(sql_world, [dead.row_id], f"r{number}"), 8)
    assert sorted({type(one).__name__ for one in answers}) == ["Detached", "PreconditionFailed"]
    assert sum(isinstance(one, Detached) for one in answers) == 1
