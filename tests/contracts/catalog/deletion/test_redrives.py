"""Dead letters go back into the queue: all or nothing, audited, and found by a sweep if nobody starts on them."""

import pytest

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import InvalidInput, PreconditionFailed, UnknownObject
from logstore.ports.catalog.deletion import DetachedBatch, IntentResult, IntentRowRange, UndeletedCopyCounts
from tests.contracts.catalog.steps import filled, new_topic, race
from tests.contracts.catalog.worlds import CAUSE, SqlWorld, World, claim

_ALL = IntentRowRange(first=0, last=2**62, rows=0)


def _dead(world: World, count: int, *, name: str = "b") -> list[DeletionIntent]:
    """So many dead letters, and two rows beside them: one deleted, one pending."""
    topic = new_topic(world, f"persistent://a/b/{name}")
    filled(world, topic.topic_id, count + 3)
    world.phase_one(topic.topic_id, batch_id=name)
    rows = world.catalog.deletions.list_intents_in_range(name, _ALL)
    dead = [IntentResult(row_id=one.row_id, outcome=Outcome.DEAD_LETTERED, error="503") for one in rows[:count]]
    gone = IntentResult(row_id=rows[count].row_id, outcome=Outcome.DELETED, objects=2, size_bytes=20)
    world.catalog.deletions.record_outcomes([*dead, gone], holder=name)
    return rows


def _redrive(world: World, ids: list[int] | None, batch_id: str = "again", *, ttl_s: float = 60) -> DetachedBatch:
    owner = claim(f"delete-ledgers/{batch_id}", ttl_s=ttl_s)
    return world.catalog.upkeep.redrive_dead_letters(ids, batch_id=batch_id, claim=owner, cause=CAUSE)


def test_redrive_of_given_rows_makes_them_work_again(world: World) -> None:
    """Pending, counted from none again, with the last error until there is another, in a claimed batch (PIP-186)."""
    first, second, *_ = _dead(world, 2)
    world.exhaust(second.row_id)
    assert _redrive(world, [second.row_id]) == DetachedBatch(batch_id="again", ledgers=0, intents=1)
    (found,) = world.catalog.deletions.list_intents_in_range("again", _ALL)
    assert (found.row_id, found.state, found.outcome) == (second.row_id, DeletionState.PENDING, None)
    assert (found.attempts, found.last_error, found.handed_to) == (0, "503", None)
    assert world.catalog.deletions.count_undeleted_copies() == UndeletedCopyCounts(
        estimated_inflight=2, dead_lettered=1
    )
    world.catalog.deletions.renew_batch_claim("again", claim("delete-ledgers/again"))
    assert [one.row_id for one in world.catalog.deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9)] == [
        first.row_id
    ]


def test_redrive_forgets_how_often_storage_kept_as_many_keys(world: World) -> None:
    """Whoever mended storage gets as many attempts as anybody before it is given up again."""
    *_, open_one = _dead(world, 0)
    deletions, own = world.catalog.deletions, claim("w")
    deletions.claim_intent(open_one.ledger_id, open_one.copy, open_one.generation, own)
    assert [deletions.record_attempt_and_extend_claim(open_one.row_id, own, keys_left=3) for _ in range(4)] == [
        1,
        2,
        3,
        4,
    ]
    deletions.record_outcomes(
        [IntentResult(row_id=open_one.row_id, outcome=Outcome.DEAD_LETTERED, error="stuck")], holder="w"
    )
    _redrive(world, [open_one.row_id], ttl_s=-1)
    deletions.claim_intent(open_one.ledger_id, open_one.copy, open_one.generation, own)
    assert deletions.record_attempt_and_extend_claim(open_one.row_id, own, keys_left=3) == 1


def test_redrive_leaves_a_row_in_the_audit_log(world: World) -> None:
    """Who, why, and which ledgers."""
    rows = _dead(world, 2)
    _redrive(world, None)
    (told,) = world.audited("redrive")
    assert (told.actor, told.reason, told.workflow_id) == (CAUSE.actor, CAUSE.reason, CAUSE.workflow_id)
    ids = [one.ledger_id for one in rows[:2]]
    assert told.detail == {"rows": 2, "ledgers": 2, "first": ids[0], "last": ids[1], "sample": ids}


def test_redrive_all_takes_every_dead_letter_and_nothing_else(world: World) -> None:
    """Of every topic."""
    mine, theirs = _dead(world, 2), _dead(world, 1, name="c")
    assert world.catalog.upkeep.count_redrivable_dead_letters(None) == 3
    assert _redrive(world, None).intents == 3
    found = world.catalog.deletions.list_intents_in_range("again", _ALL)
    assert [one.row_id for one in found] == [mine[0].row_id, mine[1].row_id, theirs[0].row_id]
    assert {one.state for one in found} == {DeletionState.PENDING}


@pytest.mark.postgres
def test_redrive_mends_what_an_earlier_hand_left(sql_world: SqlWorld) -> None:
    """A state that nobody knows is mended where it is named, not by the way; nothing of the earlier end is left."""
    (dead, *_) = _dead(sql_world, 1)
    sql_world.exhaust(dead.row_id)
    sql_world.sql("UPDATE pending_deletion SET state = 'LOST' WHERE row_id = :row", row=dead.row_id)
    assert sql_world.catalog.upkeep.count_redrivable_dead_letters(None) == 0
    assert _redrive(sql_world, None, "all").intents == 0
    assert _redrive(sql_world, [dead.row_id]).intents == 1
    (found,) = sql_world.catalog.deletions.list_intents_in_range("again", _ALL)
    assert found.state is DeletionState.PENDING
    left = sql_world.sql("SELECT keys_left, finished_us FROM pending_deletion WHERE batch_id = 'again'")
    assert left == [(None, None)]


def test_redrive_all_of_none_leaves_no_trace(world: World) -> None:
    """Nothing to do is done."""
    _dead(world, 0)
    before = world.everything()
    assert world.catalog.upkeep.count_redrivable_dead_letters(None) == 0
    assert _redrive(world, None).intents == 0
    assert world.everything() == before


@pytest.mark.postgres
def test_redrive_of_rows_that_are_no_dead_letters_names_each_and_changes_nothing(world: World) -> None:
    """All or nothing: the operator learns what each id is (promise 2)."""
    dead, gone, pending = (one.row_id for one in _dead(world, 1))
    before = world.everything()
    for ask in (_redrive, lambda world, ids: world.catalog.upkeep.count_redrivable_dead_letters(ids)):
        with pytest.raises(PreconditionFailed) as caught:
            ask(world, [dead, gone, pending, 99])
        assert f"found {gone} DELETED, {pending} PENDING, 99 unknown; nothing was changed" in str(caught.value)
        with pytest.raises(UnknownObject, match="98 unknown, 99 unknown"):
            ask(world, [dead, 99, 98])
        with pytest.raises(PreconditionFailed, match="and 2 more"):
            ask(world, [pending, *range(100, 111)])
    assert world.everything() == before


@pytest.mark.parametrize("ids", [[], list(range(10_001))])
def test_redrive_of_none_or_too_many_ids_is_refused(world: World, ids: list[int]) -> None:
    """Bad input changes nothing."""
    with pytest.raises(InvalidInput, match="deletion ids"):
        _redrive(world, ids)


def test_redrive_repeated_with_its_batch_id_answers_the_same(world: World) -> None:
    """Done, and reported as failed: the second call changes nothing, and another request is told apart."""
    rows = _dead(world, 2)
    first = _redrive(world, [rows[0].row_id])
    before = world.everything()
    assert _redrive(world, [rows[0].row_id]) == first
    assert world.everything() == before
    with pytest.raises(PreconditionFailed, match="another request"):
        _redrive(world, [rows[1].row_id])


@pytest.mark.postgres
def test_redrive_whose_workflow_was_never_started_is_found_by_a_sweep(world: World) -> None:
    """A crash in between leaves stalled rows, and no dead letter (promise 8)."""
    _dead(world, 2)
    world.lapse("b")
    _redrive(world, None, ttl_s=-1)
    owner = claim("delete-ledgers/sweep")
    assert world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=owner, limit=9).intents == 3


@pytest.mark.postgres
def test_redrive_at_once_starts_each_row_once(world: World) -> None:
    """Two operators with the same idea."""
    _dead(world, 6)
    answers = race(lambda number: _redrive(world, None, f"r{number}"), 8)
    assert sum(one.intents for one in answers if isinstance(one, DetachedBatch)) == 6, answers
    assert sum(one.detail["rows"] for one in world.audited("redrive")) == 6


@pytest.mark.postgres
def test_redrive_of_the_same_rows_at_once_is_refused_but_to_one(world: World) -> None:
    """Who comes second is told that the row is pending."""
    (dead, *_) = _dead(world, 1)
    answers = race(lambda number: _redrive(world, [dead.row_id], f"r{number}"), 8)
    assert sorted({type(one).__name__ for one in answers}) == ["DetachedBatch", "PreconditionFailed"]
    assert sum(isinstance(one, DetachedBatch) for one in answers) == 1
