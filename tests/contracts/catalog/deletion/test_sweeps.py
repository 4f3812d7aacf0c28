"""Upkeep of the queue: work that nobody does is taken up, whoever had it; what ended long ago is forgotten."""

import pytest

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import ClaimHeld, PreconditionFailed, UnknownObject
from logstore.ports.catalog.deletion import (
    DetachedBatch,
    IntentResult,
    IntentRowRange,
    IntentTally,
    RemovedRowCounts,
    SweepBacklogCounts,
)
from logstore.positions import LedgerId
from tests.contracts.catalog.steps import filled, listed, new_topic, newborn, race
from tests.contracts.catalog.worlds import CAUSE, World, claim

_ALL = IntentRowRange(first=0, last=2**62, rows=0)
_MONTH = 30 * 86_400


def _batch(world: World, count: int, *, ttl_s: float = 60.0, name: str = "b") -> list[DeletionIntent]:
    topic = new_topic(world, f"persistent://a/b/{name}")
    filled(world, topic.topic_id, count + 1)
    world.phase_one(topic.topic_id, batch_id=name, ttl_s=ttl_s)
    return world.catalog.deletions.list_intents_in_range(name, _ALL)


def _adopt(world: World, batch_id: str = "sweep", *, limit: int = 100, ttl_s: float = 60) -> DetachedBatch:
    owner = claim(f"delete-ledgers/{batch_id}", ttl_s=ttl_s)
    return world.catalog.upkeep.move_abandoned_work_to_batch(batch_id=batch_id, claim=owner, limit=limit)


def _ids(world: World, batch_id: str) -> list[LedgerId]:
    return [one.ledger_id for one in world.catalog.deletions.list_intents_in_range(batch_id, _ALL)]


@pytest.mark.postgres
def test_adopt_takes_stalled_rows_of_every_topic_and_of_none(world: World) -> None:
    """A batch that died, and one whose topic is gone: each row is some batch's again (promise 2; PIP-186, back-off)."""
    a, b = _batch(world, 2, ttl_s=-1, name="a"), _batch(world, 1, ttl_s=-1, name="c")
    world.remove_topic(b[0].topic_id)
    found = _adopt(world)
    assert found == DetachedBatch(batch_id="sweep", ledgers=0, intents=3)
    assert _ids(world, "sweep") == [one.ledger_id for one in (*a, *b)]
    assert all(one.handed_to is None for one in world.catalog.deletions.list_intents_in_range("sweep", _ALL))
    world.catalog.deletions.renew_batch_claim("sweep", claim("delete-ledgers/sweep"))


def test_adopt_leaves_what_somebody_works_on(world: World) -> None:
    """A live batch keeps its rows, and a row with a live claim of its own is nobody else's."""
    alive = _batch(world, 1, name="alive")
    alone, ended = _batch(world, 2, name="dead")
    deletions = world.catalog.deletions
    deletions.move_to_own_workflows({alone.row_id: "delete-ledger/1"}, batch_id="dead", error_by_row={}, ttl_s=60)
    deletions.record_outcomes([IntentResult(row_id=ended.row_id, outcome=Outcome.INVALID)], holder="dead")
    world.lapse("dead")
    before = world.everything()
    assert _adopt(world).intents == 0
    assert world.everything() == before
    assert _ids(world, "alive") == [alive[0].ledger_id]


@pytest.mark.postgres
@pytest.mark.sql
def test_paused_batch_is_nobodys_else_however_long_its_workers_are_away(world: World) -> None:
    """Its claim has lapsed: no sweep, no trim and no other workflow takes up what an operator holds back."""
    mine, others = _batch(world, 2, name="mine"), _batch(world, 1, name="others")
    deletions = world.catalog.deletions
    deletions.pause_batch("mine")
    deletions.pause_batch("mine")
    world.lapse("mine")
    world.lapse("others")
    assert _adopt(world).intents == len(others)
    assert world.phase_one(mine[0].topic_id).intents == 0
    with pytest.raises(ClaimHeld, match="found w"):
        deletions.claim_intent(mine[0].ledger_id, mine[0].copy, mine[0].generation, claim("thief"))
    with pytest.raises(ClaimHeld, match="found w"):
        deletions.renew_batch_claim("mine", claim("thief"))
    deletions.renew_batch_claim("mine", claim("w", ttl_s=-1))
    assert {one.batch_id: one.paused for one in deletions.list_intents(None, limit=9)} == {"mine": True, "sweep": False}
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=_MONTH).stalled == 0
    deletions.resume_batch("mine")
    assert _adopt(world, "next").intents == len(mine)


@pytest.mark.postgres
@pytest.mark.sql
def test_paused_batch_lets_rows_with_a_workflow_of_their_own_go_on(world: World) -> None:
    """What was handed over is not held back, and what is left of it is taken up."""
    alone, other = _batch(world, 2, name="b")
    deletions = world.catalog.deletions
    deletions.move_to_own_workflows({alone.row_id: "delete-ledger/1"}, batch_id="b", error_by_row={}, ttl_s=-1)
    deletions.pause_batch("b")
    assert [one.paused for one in deletions.list_intents(None, limit=9)] == [True, False]
    assert _adopt(world).intents == 1
    assert _ids(world, "b") == [other.ledger_id]


@pytest.mark.postgres
@pytest.mark.sql
def test_released_batch_is_taken_up_by_the_next_sweep(world: World) -> None:
    """Its workflow is gone, its claim was still live; what is not paused, not there or finished is left alone."""
    (row,) = _batch(world, 1, name="b")
    deletions = world.catalog.deletions
    assert not deletions.release_paused_batch("b")
    assert _adopt(world).intents == 0
    deletions.pause_batch("b")
    assert deletions.release_paused_batch("b")
    assert _adopt(world).intents == 1
    assert _ids(world, "sweep") == [row.ledger_id]
    deletions.close_batch("sweep", CAUSE)
    assert [deletions.release_paused_batch(name) for name in ("sweep", "nobody's")] == [False, False]


@pytest.mark.sql
def test_released_batch_is_remembered_as_long_as_any_other(world: World) -> None:
    """A detach that is repeated under its name finds what it did, although a sweep has taken its rows."""
    _batch(world, 1, name="b")
    world.catalog.deletions.pause_batch("b")
    assert world.catalog.deletions.release_paused_batch("b")
    assert _adopt(world).intents == 1
    assert _forget(world) == RemovedRowCounts()


@pytest.mark.postgres
@pytest.mark.sql
def test_pause_that_comes_after_the_release_pauses_nothing(world: World) -> None:
    """An activity that was given up may still run: the sweep takes up what the operator let go, all the same."""
    _batch(world, 1, name="b")
    deletions = world.catalog.deletions
    deletions.pause_batch("b")
    assert deletions.release_paused_batch("b")
    with pytest.raises(PreconditionFailed, match="released"):
        deletions.pause_batch("b")
    assert _adopt(world).intents == 1


@pytest.mark.postgres
@pytest.mark.sql
def test_renewal_that_comes_after_the_release_claims_nothing(world: World) -> None:
    """What held a paused batch may outlive its workflow: its renewal would hide the rows from the sweep."""
    _batch(world, 1, name="b")
    deletions = world.catalog.deletions
    deletions.pause_batch("b")
    assert deletions.release_paused_batch("b")
    for late in (claim("w", ttl_s=900), claim("another")):
        with pytest.raises(ClaimHeld, match="released"):
            deletions.renew_batch_claim("b", late)
    assert _adopt(world).intents == 1


@pytest.mark.postgres
@pytest.mark.sql
def test_pause_of_what_is_no_batch_or_over_is_refused(world: World) -> None:
    """And changes nothing."""
    _batch(world, 1, name="b")
    deletions = world.catalog.deletions
    deletions.close_batch("b", CAUSE)
    before = world.everything()
    for tell in (deletions.pause_batch, deletions.resume_batch):
        with pytest.raises(PreconditionFailed, match="finished"):
            tell("b")
        with pytest.raises(UnknownObject, match="batch"):
            tell("nobody's")
    assert world.everything() == before


def test_adopt_takes_a_row_whose_own_workflow_was_terminated(world: World) -> None:
    """Handed over, and its claim lapsed: found whatever became of the workflow (apache/pulsar#982)."""
    (alone,) = _batch(world, 1)
    deletions = world.catalog.deletions
    deletions.move_to_own_workflows(
        {alone.row_id: "delete-ledger/1"}, batch_id="b", error_by_row={alone.row_id: "503"}, ttl_s=-1
    )
    assert _adopt(world).intents == 1
    (found,) = deletions.list_intents_in_range("sweep", _ALL)
    assert (found.row_id, found.handed_to, found.attempts, found.last_error) == (alone.row_id, None, 1, "503")


@pytest.mark.postgres
def test_adopt_with_nothing_to_do_leaves_no_trace(world: World) -> None:
    """Asked every minute for a year, it writes nothing."""
    _batch(world, 2)
    new_topic(world, "persistent://a/b/young")
    newborn(world, world.catalog.topics.get_topic("persistent://a/b/young").topic_id)
    before = world.everything()
    for number in range(3):
        assert _adopt(world, f"s{number}") == DetachedBatch(batch_id=f"s{number}", ledgers=0, intents=0)
    assert world.everything() == before


def test_adopt_repeated_with_its_batch_id_answers_the_same(world: World) -> None:
    """Done, and reported as failed: the second call takes nothing more, whatever has stalled since."""
    _batch(world, 2, ttl_s=-1)
    first = _adopt(world)
    _batch(world, 3, ttl_s=-1, name="later")
    assert _adopt(world) == first
    assert len(_ids(world, "sweep")) == 2
    with pytest.raises(PreconditionFailed, match="another request"):
        _adopt(world, "later")


def test_adopt_goes_page_by_page(world: World) -> None:
    """A page is bounded; the next call finds the rest, and then nothing."""
    rows = _batch(world, 5, ttl_s=-1)
    assert [_adopt(world, f"s{n}", limit=2).intents for n in range(4)] == [2, 2, 1, 0]
    assert _ids(world, "s0") == [one.ledger_id for one in rows[:2]]


@pytest.mark.postgres
def test_adopt_sixteen_at_once_gives_each_row_to_one(world: World) -> None:
    """Overlapping sweeps neither lose a row nor count it twice."""
    _batch(world, 30, ttl_s=-1)
    answers = race(lambda number: _adopt(world, f"s{number}", limit=3), 16)
    taken = [one for one in answers if isinstance(one, DetachedBatch)]
    assert len(taken) == 16, answers
    found = [ledger for number in range(16) for ledger in _ids(world, f"s{number}")]
    assert len(found) == len(set(found)) == sum(one.intents for one in taken)
    left = sum(_adopt(world, f"t{number}").intents for number in range(2))
    assert len(found) + left == 30


def test_adopt_beside_trims_gives_each_row_to_one(world: World) -> None:
    """A trim of the topic and sweeps at the same moment: no row is in two hands."""
    (first, *_) = _batch(world, 20, ttl_s=-1)

    def both(number: int) -> int:
        if number % 2:
            return world.phase_one(first.topic_id, batch_id=f"t{number}").intents
        return _adopt(world, f"s{number}", limit=4).intents

    counts = race(both, 12)
    assert all(isinstance(one, int) for one in counts), counts
    rest = _adopt(world, "rest").intents
    assert sum(one for one in counts if isinstance(one, int)) + rest == 20
    runs = world.rows().runs
    assert sum(one.batch_id in runs for one in world.catalog.deletions.list_intents(None, limit=99)) == 20


def test_adopt_detaches_newborn_ledgers_of_idle_topics(world: World) -> None:
    """A creator that died before it attached its ledger, on a topic that nobody trims (apache/pulsar#350)."""
    topics = [new_topic(world, f"persistent://a/b/{name}") for name in ("x", "y", "z")]
    kept = filled(world, topics[0].topic_id, 1)
    born = [newborn(world, topic.topic_id) for topic in topics]
    for one in born[:2]:
        world.age(one, seconds=601)
    found = _adopt(world)
    assert found == DetachedBatch(batch_id="sweep", ledgers=2, intents=2)
    assert _ids(world, "sweep") == born[:2]
    assert world.rows().ledgers == sorted([*kept, born[2]])
    assert listed(world, topics[0].topic_id) == kept
    assert not world.catalog.ledgers.attach_ledger(born[0], after=kept[-1])


@pytest.mark.postgres
def test_adopt_takes_copies_of_dead_uploads_from_idle_topics(world: World) -> None:
    """An uploader that died, on a topic that nobody trims: its objects go, and its ledger stays."""
    topics = [new_topic(world, f"persistent://a/b/{name}") for name in ("x", "y", "z")]
    ledgers = [filled(world, topic.topic_id, 2)[0] for topic in topics]
    for at, ledger in enumerate(ledgers):
        world.catalog.offloads.begin_offload(ledger, uuid=f"u-{at}", driver_metadata={"bucket": "cold"}, timeout_s=60)
    assert _adopt(world, "early") == DetachedBatch(batch_id="early", ledgers=0, intents=0)
    for ledger in ledgers:
        world.let_upload_end(ledger)
    world.catalog.offloads.begin_offload(ledgers[2], uuid="u-9", driver_metadata={"bucket": "cold"}, timeout_s=2**30)
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=_MONTH).uploads == 2
    assert _adopt(world).ledgers == 0
    rows = world.catalog.deletions.list_intents_in_range("sweep", _ALL)
    assert sorted(row.context["uuid"] for row in rows) == ["u-0", "u-1", "u-2"]
    assert _adopt(world, "again") == DetachedBatch(batch_id="again", ledgers=0, intents=0)
    assert [listed(world, topic.topic_id)[0] for topic in topics] == ledgers
    assert world.catalog.offloads.publish_tiered_copy(ledgers[2], "u-9")


def _finished(world: World, *, days: int) -> list[DeletionIntent]:
    rows = _batch(world, 4)
    ends = (Outcome.DELETED, Outcome.ALREADY_GONE, Outcome.METADATA_MISMATCH)
    ended = [IntentResult(row_id=row.row_id, outcome=outcome) for row, outcome in zip(rows, ends, strict=False)]
    world.catalog.deletions.record_outcomes(ended, holder="b")
    world.end_earlier(days=days)
    return rows


def _forget(world: World, *, limit: int = 100) -> RemovedRowCounts:
    return world.catalog.upkeep.remove_finished_rows(older_than_s=_MONTH, limit=limit, cause=CAUSE)


def test_due_counts_what_a_sweep_would_find_and_changes_nothing(world: World) -> None:
    """A dry run: afterwards the sweep finds just that, and then nothing is due."""
    _batch(world, 2, ttl_s=-1, name="dead")
    _batch(world, 1, name="alive")
    late = newborn(world, new_topic(world, "persistent://a/b/young").topic_id)
    world.age(late, seconds=601)
    old = _batch(world, 3, name="old")
    ended = [IntentResult(row_id=one.row_id, outcome=Outcome.DELETED) for one in old]
    world.catalog.deletions.record_outcomes(ended, holder="old")
    world.catalog.deletions.close_batch("old", CAUSE)
    world.end_earlier(days=31)
    before = world.everything()
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=_MONTH) == SweepBacklogCounts(
        stalled=2, newborn=1, uploads=0, rows=3, runs=0
    )
    assert world.everything() == before
    assert _adopt(world).intents == 3
    assert _forget(world).rows == 3
    assert _forget(world) == RemovedRowCounts()
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=_MONTH) == SweepBacklogCounts(
        stalled=0, newborn=0, uploads=0, rows=0, runs=0
    )


def test_due_counts_each_dead_upload_of_a_topic(world: World) -> None:
    """What a dry run shows comes to the intents that the sweep then takes."""
    ledgers = filled(world, new_topic(world).topic_id, 4)[:3]
    for at, ledger in enumerate(ledgers):
        patience_s = 60 if at < 2 else 2**30
        world.catalog.offloads.begin_offload(
            ledger, uuid=f"u-{at}", driver_metadata={"bucket": "cold"}, timeout_s=patience_s
        )
    for ledger in ledgers[:2]:
        world.let_upload_end(ledger)
    assert world.catalog.upkeep.count_sweep_backlog(older_than_s=_MONTH) == SweepBacklogCounts(
        stalled=0, newborn=0, uploads=2, rows=0, runs=0
    )
    assert _adopt(world).intents == 2


def test_forget_removes_what_ended_long_ago_and_never_a_dead_letter(world: World) -> None:
    """Refusals and unfinished rows stay for ever; a later question about the others is UNKNOWN (promise 2)."""
    gone, also, dead, open_one = _finished(world, days=31)
    world.catalog.deletions.close_batch("b", CAUSE)
    world.end_earlier(days=31)
    assert _forget(world) == RemovedRowCounts(rows=2, runs=0)
    assert _ids(world, "b") == [dead.ledger_id, open_one.ledger_id]
    with pytest.raises(UnknownObject, match="deletion"):
        world.catalog.deletions.claim_intent(gone.ledger_id, gone.copy, gone.generation, claim())
    with pytest.raises(UnknownObject, match="ledger"):
        world.phase_one(also.topic_id, [also.ledger_id])
    (told,) = world.audited("forget")
    assert (told.actor, told.detail["rows"], told.detail["runs"]) == ("tests", 2, 0)


def test_forget_leaves_what_is_younger(world: World) -> None:
    """Nothing to forget is nothing done: no row, no run, no word in the audit log."""
    _finished(world, days=29)
    world.catalog.deletions.close_batch("b", CAUSE)
    before = world.everything()
    assert _forget(world) == RemovedRowCounts()
    assert world.everything() == before


def test_forget_keeps_the_rows_of_a_batch_at_work(world: World) -> None:
    """A batch that was paused for longer than a month still certifies all of its rows."""
    _finished(world, days=40)
    assert _forget(world) == RemovedRowCounts()
    assert world.catalog.deletions.tally_batch("b") == IntentTally(
        outcomes={"ALREADY_GONE": 1, "DELETED": 1, "METADATA_MISMATCH": 1, "RETRYING": 1}, objects=0, size_bytes=0
    )
    world.lapse("b")
    assert _forget(world).rows == 2


def test_forget_goes_page_by_page_and_then_takes_the_empty_batch(world: World) -> None:
    """The run goes with its last row, not before."""
    rows = _batch(world, 5)
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=one.row_id, outcome=Outcome.DELETED) for one in rows], holder="b"
    )
    world.catalog.deletions.close_batch("b", CAUSE)
    world.end_earlier(days=31)
    pages = [_forget(world, limit=2) for _ in range(4)]
    assert [(one.rows, one.runs) for one in pages] == [(2, 0), (2, 0), (1, 1), (0, 0)]
    assert world.rows().runs == []


def test_forget_takes_the_batch_of_a_workflow_that_vanished_once_its_rows_are_anothers(world: World) -> None:
    """Never closed, and empty since a sweep: it would stay for ever."""
    _batch(world, 1, ttl_s=-1)
    _adopt(world)
    assert _forget(world) == RemovedRowCounts()
    world.lapse("b")
    assert _forget(world) == RemovedRowCounts(rows=0, runs=1)
    assert world.rows().runs == ["sweep"]


@pytest.mark.postgres
def test_forget_at_once_counts_each_row_once(world: World) -> None:
    """Two sweeps that overlap tell the audit log of each row once."""
    rows = _batch(world, 20)
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=one.row_id, outcome=Outcome.DELETED) for one in rows], holder="b"
    )
    world.catalog.deletions.close_batch("b", CAUSE)
    world.end_earlier(days=31)
    answers = race(lambda _: _forget(world, limit=6), 8)
    assert sum(one.rows for one in answers if isinstance(one, RemovedRowCounts)) == 20 - len(_ids(world, "b"))
    told = sum(one.detail["rows"] for one in world.audited("forget"))
    assert told + len(_ids(world, "b")) == 20


@pytest.mark.postgres
def test_forget_row_opened_again_behind_it_stays(world: World) -> None:
    """A newborn's creator that came back: its row is work again, and no longer something to forget."""
    topic = new_topic(world)
    late = newborn(world, topic.topic_id)
    world.age(late, seconds=601)
    _adopt(world)
    (row,) = world.catalog.deletions.list_intents_in_range("sweep", _ALL)
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=row.row_id, outcome=Outcome.ALREADY_GONE)], holder="sweep"
    )
    world.catalog.deletions.close_batch("sweep", CAUSE)
    world.end_earlier(days=31)
    assert not world.catalog.ledgers.attach_ledger(late, after=None)
    assert _forget(world).rows == 0
    assert [one.state for one in world.catalog.deletions.list_intents(None, limit=9)] == [DeletionState.PENDING]
