"""The queue of phase two: claimed, handed over, ended once, counted once."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import ClaimHeld, InvalidInput, StaleCatalog, UnknownObject
from logstore.log.ledgers import CopyKind, CopyState
from logstore.ports.catalog.deletion import AuditCause, IntentResult, IntentRowRange, IntentTally, UndeletedCopyCounts
from logstore.positions import LedgerId, TopicId
from tests.contracts.catalog.steps import filled, listed, new_topic, newborn, race
from tests.contracts.catalog.worlds import CAUSE, World, claim

_ALL = IntentRowRange(first=0, last=2**62, rows=0)


def _batch(world: World, count: int, *, ttl_s: float = 60.0, name: str = "b") -> list[DeletionIntent]:
    """A detached batch of so many rows, held by `w`."""
    topic = new_topic(world, f"persistent://a/b/{name}")
    filled(world, topic.topic_id, count + 1)
    world.phase_one(topic.topic_id, batch_id=name, ttl_s=ttl_s)
    return world.catalog.deletions.list_intents_in_range(name, _ALL)


@pytest.mark.postgres
def test_ranges_hold_no_more_segments_than_can_be_listed_at_once(world: World) -> None:
    """Ledgers of very many segments are a range of their own: memory stays flat (apache/iceberg#14278)."""
    rows = [intent.row_id for intent in _batch(world, 4)]
    for row in rows[1:]:
        world.swell(row, segments=9_000)
    assert world.catalog.deletions.list_unfinished_ranges("b", after=0, rows=9, limit=9) == [
        IntentRowRange(first=rows[0], last=rows[2], rows=3),
        IntentRowRange(first=rows[3], last=rows[3], rows=1),
    ]
    for row in rows:
        world.swell(row, segments=90_000)
    assert [part.rows for part in world.catalog.deletions.list_unfinished_ranges("b", after=0, rows=9, limit=3)] == [
        1,
        1,
        1,
    ]


def _ended(intent: DeletionIntent, outcome: Outcome = Outcome.DELETED, objects: int = 2) -> IntentResult:
    return IntentResult(row_id=intent.row_id, outcome=outcome, objects=objects, size_bytes=10 * objects)


def _now(world: World, intent: DeletionIntent) -> DeletionIntent:
    (found,) = world.catalog.deletions.list_intents_in_range(
        intent.batch_id, IntentRowRange(first=intent.row_id, last=intent.row_id, rows=1)
    )
    return found


def test_ranges_cover_unfinished_rows_once_and_page_on(world: World) -> None:
    """Pages by row id, both ends inclusive, the last one short; finished rows and other batches are not in them."""
    rows = [intent.row_id for intent in _batch(world, 7)]
    _batch(world, 3, name="other")
    deletions = world.catalog.deletions
    assert deletions.list_unfinished_ranges("b", after=0, rows=3, limit=2) == [
        IntentRowRange(first=rows[0], last=rows[2], rows=3),
        IntentRowRange(first=rows[3], last=rows[5], rows=3),
    ]
    assert deletions.list_unfinished_ranges("b", after=rows[5], rows=3, limit=2) == [
        IntentRowRange(first=rows[6], last=rows[6], rows=1)
    ]
    assert deletions.list_unfinished_ranges("b", after=rows[6], rows=3, limit=2) == []
    assert deletions.list_unfinished_ranges("nobody", after=0, rows=3, limit=2) == []
    deletions.record_outcomes([IntentResult(row_id=row, outcome=Outcome.DELETED) for row in rows[:4]], holder="b")
    assert deletions.list_unfinished_ranges("b", after=0, rows=3, limit=9) == [
        IntentRowRange(first=rows[4], last=rows[6], rows=3)
    ]


def test_ranges_have_nothing_between_that_was_dealt_with(world: World) -> None:
    """A run that goes on where slices left off meets, and counts, only what is left of the batch."""
    rows = [intent.row_id for intent in _batch(world, 7)]
    deletions = world.catalog.deletions
    deletions.record_outcomes(
        [IntentResult(row_id=row, outcome=Outcome.DELETED) for row in (rows[0], rows[2])], holder="b"
    )
    deletions.move_to_own_workflows({rows[5]: "own"}, batch_id="b", error_by_row={}, ttl_s=60)
    alone = [IntentRowRange(first=row, last=row, rows=1) for row in (rows[1], rows[6])]
    between = IntentRowRange(first=rows[3], last=rows[4], rows=2)
    assert deletions.list_unfinished_ranges("b", after=0, rows=3, limit=9) == [alone[0], between, alone[1]]
    assert deletions.list_unfinished_ranges("b", after=0, rows=3, limit=2) == [alone[0], between]
    assert deletions.list_unfinished_ranges("b", after=rows[4], rows=3, limit=9) == [alone[1]]


def test_intents_of_a_range_are_ascending_finished_or_not(world: World) -> None:
    """A chunk that is done again sees what was done, so that it can skip it."""
    intents = _batch(world, 4)
    world.catalog.deletions.record_outcomes([_ended(intents[1])], holder="b")
    found = world.catalog.deletions.list_intents_in_range(
        "b", IntentRowRange(first=intents[1].row_id, last=intents[2].row_id, rows=2)
    )
    assert [one.row_id for one in found] == [intents[1].row_id, intents[2].row_id]
    assert [one.outcome for one in found] == [Outcome.DELETED, None]
    assert world.catalog.deletions.list_intents_in_range("other", _ALL) == []


def test_finish_row_that_ended_keeps_its_first_outcome(world: World) -> None:
    """A zombie that finishes late changes nothing: state, outcome, counts and error stay (PostHog#78455)."""
    intent = _batch(world, 1)[0]
    deletions = world.catalog.deletions
    deletions.record_outcomes(
        [IntentResult(row_id=intent.row_id, outcome=Outcome.DELETED, objects=5, size_bytes=50)], holder="b"
    )
    first = _now(world, intent)
    deletions.record_outcomes(
        [IntentResult(row_id=intent.row_id, outcome=Outcome.DEAD_LETTERED, objects=1, error="late")], holder="b"
    )
    deletions.record_outcomes([IntentResult(row_id=intent.row_id, outcome=Outcome.ALREADY_GONE)], holder="b")
    deletions.move_to_own_workflows(
        {intent.row_id: "late"}, batch_id="b", error_by_row={intent.row_id: "late"}, ttl_s=60
    )
    deletions.record_attempt_and_extend_claim(intent.row_id, claim("w"), error="late")
    assert _now(world, intent) == first
    assert (first.state, first.outcome) == (DeletionState.DELETED, Outcome.DELETED)
    assert deletions.tally_batch("b") == IntentTally(outcomes={"DELETED": 1}, objects=5, size_bytes=50)
    deletions.record_outcomes([], holder="b")


@pytest.mark.postgres
def test_finish_thirty_two_at_once_one_outcome_stands(world: World) -> None:
    """Whoever is first decides, whatever order each names the rows in; nobody deadlocks for good."""
    intents = _batch(world, 8)
    outcomes = (Outcome.DELETED, Outcome.ALREADY_GONE)

    def finish(number: int) -> None:
        order = intents if number % 2 else intents[::-1]
        world.catalog.deletions.record_outcomes(
            [_ended(one, outcomes[number % 2], objects=number) for one in order], holder="b"
        )

    assert set(race(finish)) == {None}
    found = world.catalog.deletions.list_intents_in_range("b", _ALL)
    assert {one.state for one in found} == {DeletionState.DELETED}
    tally = world.catalog.deletions.tally_batch("b")
    assert sum(tally.outcomes.values()) == 8
    assert tally.objects % 8 == 0  # one writer's answer for all of them, or none of it


@pytest.mark.parametrize("outcome", [one for one in Outcome if one.state is not DeletionState.PENDING])
def test_finish_outcome_decides_the_state(world: World, outcome: Outcome) -> None:
    """Success is DELETED; refusals and exhausted attempts stay listed with their reason, never dropped (PIP-186)."""
    intent = _batch(world, 1)[0]
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=intent.row_id, outcome=outcome, error="why")], holder="b"
    )
    found = _now(world, intent)
    assert (found.state, found.outcome, found.last_error) == (outcome.state, outcome, "why")
    dead = outcome.state is DeletionState.DEAD_LETTERED
    assert world.catalog.deletions.count_undeleted_copies() == UndeletedCopyCounts(
        estimated_inflight=0, dead_lettered=int(dead)
    )
    assert world.catalog.deletions.list_intents(outcome.state, limit=9) == [found]


def test_finish_and_hand_over_leave_a_row_that_another_batch_took_up(world: World) -> None:
    """A zombie of the old batch neither ends nor moves what is another's now, whatever it saw (PostHog#78455)."""
    intent = _batch(world, 1, ttl_s=-1)[0]
    assert world.phase_one(intent.topic_id, batch_id="taker", by="next").intents == 1
    (adopted,) = world.catalog.deletions.list_intents_in_range("taker", _ALL)
    deletions = world.catalog.deletions
    for outcome in (Outcome.DELETED, Outcome.ALREADY_GONE, Outcome.METADATA_MISMATCH):
        deletions.record_outcomes([_ended(adopted, outcome)], holder="b")
    deletions.move_to_own_workflows({adopted.row_id: "late"}, batch_id="b", error_by_row={}, ttl_s=60)
    assert deletions.list_intents_in_range("taker", _ALL) == [adopted]
    deletions.record_outcomes([_ended(adopted)], holder="taker")
    assert _now(world, adopted).outcome is Outcome.DELETED


@pytest.mark.parametrize("holder", ["b", "own"])
def test_finish_row_with_a_workflow_of_its_own_is_that_ones_or_its_batchs(world: World, holder: str) -> None:
    """Of two attempts of a chunk one may hand over what the other deleted; who never held the row ends nothing."""
    intent = _batch(world, 1)[0]
    deletions = world.catalog.deletions
    deletions.move_to_own_workflows({intent.row_id: "own"}, batch_id="b", error_by_row={}, ttl_s=60)
    before = _now(world, intent)
    for stranger in ("w", "somebody"):
        deletions.record_outcomes([_ended(intent)], holder=stranger)
    assert _now(world, intent) == before
    deletions.record_outcomes([_ended(intent)], holder=holder)
    assert _now(world, intent).outcome is Outcome.DELETED


def test_hand_over_moves_the_claim_and_counts_the_first_attempt(world: World) -> None:
    """A row handed over is held by its own workflow, even when its batch's claim has died."""
    mine, other = _batch(world, 2, ttl_s=-1)
    deletions = world.catalog.deletions
    deletions.move_to_own_workflows(
        {mine.row_id: "delete-ledger/1"}, batch_id="b", error_by_row={mine.row_id: "slow down"}, ttl_s=60
    )
    found = _now(world, mine)
    assert (found.attempts, found.last_error, found.handed_to) == (1, "slow down", "delete-ledger/1")
    assert _now(world, other) == other
    with pytest.raises(ClaimHeld, match="delete-ledger/1"):
        deletions.claim_intent(mine.ledger_id, mine.copy, mine.generation, claim("somebody"))
    taken = deletions.claim_intent(mine.ledger_id, mine.copy, mine.generation, claim("delete-ledger/1"))
    assert taken == replace(found, attempts=2)


def test_take_of_an_intent_of_another_topic_is_refused_and_changes_nothing(world: World) -> None:
    """A mistyped name beside a ledger's id means another ledger; its own name, and no name, are right."""
    intent = _batch(world, 1, ttl_s=-1)[0]
    take = partial(
        world.catalog.deletions.claim_intent, intent.ledger_id, intent.copy, intent.generation, claim("alone")
    )
    with pytest.raises(InvalidInput, match=f"topic: expected the topic of ledger {intent.ledger_id}, .*found 'other'"):
        take(topic="other")
    assert _now(world, intent) == intent
    assert take(topic=intent.topic).attempts == 1
    assert take(topic=None).attempts == 2


def test_hand_over_again_keeps_the_claim(world: World) -> None:
    """A repeated hand-over, to the same workflow or another, neither moves the claim nor counts again."""
    intent = _batch(world, 1)[0]
    deletions = world.catalog.deletions
    deletions.move_to_own_workflows({intent.row_id: "first"}, batch_id="b", error_by_row={}, ttl_s=60)
    before = _now(world, intent)
    deletions.move_to_own_workflows(
        {intent.row_id: "second"}, batch_id="b", error_by_row={intent.row_id: "again"}, ttl_s=600
    )
    assert _now(world, intent) == before
    assert (before.attempts, before.handed_to) == (1, "first")
    deletions.move_to_own_workflows({}, batch_id="b", error_by_row={}, ttl_s=60)


def test_take_while_another_workflow_is_at_work_is_refused(world: World) -> None:
    """The batch's live claim covers its rows; the holder itself may take, and take again."""
    intent = _batch(world, 1)[0]
    key = (intent.ledger_id, intent.copy, intent.generation)
    with pytest.raises(ClaimHeld, match="found w"):
        world.catalog.deletions.claim_intent(*key, claim("somebody"))
    assert _now(world, intent) == intent
    assert world.catalog.deletions.claim_intent(*key, claim("w")).attempts == 1
    assert world.catalog.deletions.claim_intent(*key, claim("w")).attempts == 2


def test_take_dead_claim_is_taken_over(world: World) -> None:
    """Once a claim has ended its row is anybody's, and then its new holder's alone."""
    intent = _batch(world, 1, ttl_s=-1)[0]
    key = (intent.ledger_id, intent.copy, intent.generation)
    world.catalog.deletions.claim_intent(*key, claim("first", ttl_s=-1))
    taken = world.catalog.deletions.claim_intent(*key, claim("second"))
    assert (taken.attempts, taken.handed_to) == (2, "second")
    with pytest.raises(ClaimHeld, match="found second"):
        world.catalog.deletions.claim_intent(*key, claim("first"))


@pytest.mark.postgres
def test_take_thirty_two_at_once_exactly_one_holds(world: World) -> None:
    """A stalled row is claimed by one workflow; the others are told, and none counted an attempt."""
    intent = _batch(world, 1, ttl_s=-1)[0]
    key = (intent.ledger_id, intent.copy, intent.generation)
    answers = race(lambda number: world.catalog.deletions.claim_intent(*key, claim(f"w{number}")))
    winners = [answer for answer in answers if isinstance(answer, DeletionIntent)]
    assert len(winners) == 1
    assert {type(answer) for answer in answers} == {DeletionIntent, ClaimHeld}
    assert _now(world, intent) == winners[0]
    assert winners[0].attempts == 1


def test_take_finished_row_is_returned_as_it_is(world: World) -> None:
    """A workflow that comes late learns the outcome and counts no attempt beyond the batch's (PIP-186, idempotency)."""
    intent = _batch(world, 1)[0]
    world.catalog.deletions.record_outcomes([_ended(intent)], holder="b")
    taken = world.catalog.deletions.claim_intent(intent.ledger_id, intent.copy, intent.generation, claim("somebody"))
    assert (taken.outcome, taken.attempts, taken.handed_to) == (Outcome.DELETED, 1, None)


def test_take_unknown_row_is_refused(world: World) -> None:
    """Another copy, generation or ledger is another row."""
    intent = _batch(world, 1)[0]
    for key in (
        (LedgerId(intent.ledger_id + 9), intent.copy, intent.generation),
        (intent.ledger_id, CopyKind.OFFLOADED_LEDGER, intent.generation),
        (intent.ledger_id, intent.copy, intent.generation + 1),
    ):
        with pytest.raises(UnknownObject, match="deletion"):
            world.catalog.deletions.claim_intent(*key, claim())


def test_hold_keeps_the_error_and_the_claim_of_its_holder_only(world: World) -> None:
    """The holder's error is kept and its claim prolonged; another workflow's word changes nothing."""
    intent = _batch(world, 1)[0]
    deletions = world.catalog.deletions
    key = (intent.ledger_id, intent.copy, intent.generation)
    taken = deletions.claim_intent(*key, claim("w", ttl_s=-1))
    with pytest.raises(ClaimHeld, match="found w"):
        deletions.record_attempt_and_extend_claim(intent.row_id, claim("zombie"), error="mine")
    assert _now(world, intent) == taken
    deletions.record_attempt_and_extend_claim(intent.row_id, claim("w", ttl_s=60), error="storage is away")
    assert _now(world, intent) == replace(taken, last_error="storage is away")
    deletions.record_attempt_and_extend_claim(intent.row_id, claim("w", ttl_s=60))
    assert _now(world, intent).last_error == "storage is away"
    with pytest.raises(ClaimHeld, match="found w"):
        deletions.claim_intent(*key, claim("zombie"))


@pytest.mark.postgres
def test_hold_counts_attempts_in_a_row_that_left_as_many_keys(world: World) -> None:
    """Another number begins anew; an attempt that storage did not answer neither counts nor interrupts."""
    intent = _batch(world, 1, ttl_s=-1)[0]
    deletions = world.catalog.deletions
    deletions.claim_intent(intent.ledger_id, intent.copy, intent.generation, claim("w"))
    told = [
        deletions.record_attempt_and_extend_claim(intent.row_id, claim("w"), keys_left=left)
        for left in (3, 3, None, 3, 2, 3, None, 0, 0)
    ]
    assert told == [1, 2, 0, 3, 1, 1, 0, 1, 2]
    assert _now(world, intent).keys_left_attempts == 2
    deletions.record_outcomes([_ended(intent)], holder="w")
    assert deletions.record_attempt_and_extend_claim(intent.row_id, claim("w"), keys_left=0) == 0


def test_renew_is_refused_while_another_holds_and_taken_over_once_dead(world: World) -> None:
    """One workflow at a time works on a batch; a new attempt of the same one goes on."""
    _batch(world, 1)
    deletions = world.catalog.deletions
    with pytest.raises(ClaimHeld, match="found w"):
        deletions.renew_batch_claim("b", claim("other"))
    deletions.renew_batch_claim("b", replace(claim("w", ttl_s=-1), run_id="second attempt"))
    deletions.renew_batch_claim("b", claim("other"))
    with pytest.raises(ClaimHeld, match="found other"):
        deletions.renew_batch_claim("b", claim("w"))


def test_renew_by_the_same_run_never_shortens_its_claim(world: World) -> None:
    """A chunk in hand renews for a minute beside a pause that holds for fifteen; another run begins its own."""
    _batch(world, 1)
    deletions = world.catalog.deletions
    deletions.renew_batch_claim("b", claim("w", ttl_s=900))
    deletions.renew_batch_claim("b", claim("w", ttl_s=-1))
    with pytest.raises(ClaimHeld, match="found w"):
        deletions.renew_batch_claim("b", claim("other"))
    deletions.renew_batch_claim("b", replace(claim("w", ttl_s=-1), run_id="continued"))
    deletions.renew_batch_claim("b", claim("other"))


@pytest.mark.postgres
def test_renew_thirty_two_at_once_exactly_one_takes_a_dead_batch(world: World) -> None:
    """The update's own condition decides, looked at again by whoever waited."""
    _batch(world, 1, ttl_s=-1)
    answers = race(lambda number: world.catalog.deletions.renew_batch_claim("b", claim(f"w{number}")))
    assert sum(answer is None for answer in answers) == 1
    assert {type(answer) for answer in answers} == {type(None), ClaimHeld}


def test_renew_unknown_or_finished_batch_is_refused(world: World) -> None:
    """A heartbeat that comes after the end brings nothing back to life."""
    _batch(world, 1)
    with pytest.raises(UnknownObject, match="batch"):
        world.catalog.deletions.renew_batch_claim("nobody", claim())
    world.catalog.deletions.close_batch("b", CAUSE)
    with pytest.raises(ClaimHeld, match="finished"):
        world.catalog.deletions.renew_batch_claim("b", claim())


def test_tally_repeated_work_counts_once(world: World) -> None:
    """Running any step twice gives the same counters (PIP-186, idempotency)."""
    intents = _batch(world, 4)
    deletions = world.catalog.deletions
    assert deletions.tally_batch("nobody") == IntentTally(outcomes={}, objects=0, size_bytes=0)
    for _ in range(3):
        deletions.record_outcomes([_ended(one) for one in intents[:2]], holder="b")
        deletions.record_outcomes([_ended(intents[2], Outcome.METADATA_MISMATCH, objects=0)], holder="b")
        deletions.move_to_own_workflows({intents[3].row_id: "own"}, batch_id="b", error_by_row={}, ttl_s=60)
    expected = {"DELETED": 2, "METADATA_MISMATCH": 1, "RETRYING": 1}
    assert deletions.tally_batch("b") == IntentTally(outcomes=expected, objects=4, size_bytes=40)
    deletions.record_outcomes([_ended(intents[3], objects=1)], holder="own")
    assert deletions.tally_batch("b").outcomes == {"DELETED": 3, "METADATA_MISMATCH": 1}


def test_finish_and_hand_over_say_which_rows_this_call_changed(world: World) -> None:
    """What is counted is what the catalog changed: a repeated call changes nothing, nor does a zombie."""
    intents = _batch(world, 3)
    deletions, (a, b, c) = world.catalog.deletions, [one.row_id for one in intents]
    ended = [_ended(one) for one in intents[:2]]
    assert deletions.record_outcomes(ended[:1], holder="b") == {a}
    assert deletions.record_outcomes(ended, holder="b") == {b}
    assert deletions.record_outcomes(ended, holder="b") == frozenset()
    assert deletions.record_outcomes([_ended(intents[2])], holder="a stranger") == frozenset()
    names = {a: "late", c: "own"}
    assert deletions.move_to_own_workflows(names, batch_id="b", error_by_row={}, ttl_s=60) == {c}
    assert deletions.move_to_own_workflows(names, batch_id="b", error_by_row={}, ttl_s=60) == frozenset()
    assert (
        deletions.record_outcomes([], holder="b")
        == deletions.move_to_own_workflows({}, batch_id="b", error_by_row={}, ttl_s=60)
        == frozenset()
    )


@pytest.mark.postgres
def test_finish_at_once_tells_each_row_to_one_caller(world: World) -> None:
    """Of eight who end the same rows, each row is one's: a counter over all of them adds up."""
    intents = _batch(world, 5)
    told = race(lambda _: world.catalog.deletions.record_outcomes([_ended(one) for one in intents], holder="b"), 8)
    changed = [row for rows in told if isinstance(rows, frozenset) for row in rows]
    assert sorted(changed) == [one.row_id for one in intents]


def test_finish_of_a_row_alone_leaves_an_audit_row_of_its_own(world: World) -> None:
    """Its batch's row says no more than RETRYING: its own says how it ended, with who and why of the batch."""
    first, second = _batch(world, 2)
    deletions = world.catalog.deletions
    deletions.record_outcomes([_ended(first)], holder="b")
    deletions.move_to_own_workflows({second.row_id: "delete-ledger/9"}, batch_id="b", error_by_row={}, ttl_s=60)
    letter = IntentResult(row_id=second.row_id, outcome=Outcome.DEAD_LETTERED, error="StoreUnavailable: 503")
    for _ in range(2):
        deletions.record_outcomes([letter], holder="delete-ledger/9")
    (row,) = world.audited("delete-ledger")
    assert (row.actor, row.reason, row.workflow_id) == ("tests", "a test", "delete-ledger/9")
    assert (row.detail["ledger"], row.detail["outcome"], row.detail["error"]) == (
        second.ledger_id,
        "DEAD_LETTERED",
        "StoreUnavailable: 503",
    )


@pytest.mark.postgres
def test_audit_names_who_decided_whatever_batch_has_the_row_in_the_end(world: World) -> None:
    """Another's batch covers the ledger's id with its range and has it not; a sweep's batch names nobody at all."""
    topic = new_topic(world)
    first, second, third, _ = filled(world, topic.topic_id, 4)
    deletions = world.catalog.deletions

    def detach(ids: list[LedgerId], actor: str, batch_id: str, ttl_s: float) -> None:
        cause = AuditCause(actor=actor, reason=f"{actor}'s reason", workflow_id="w")
        held = claim(ttl_s=ttl_s)
        world.catalog.phase_one.detach_ledgers(
            topic.topic_id, ids, force=False, batch_id=batch_id, claim=held, cause=cause
        )

    detach([second], "anna", "a", -1)
    detach([first, third], "bert", "b", 60)
    assert world.catalog.upkeep.move_abandoned_work_to_batch(batch_id="sweep", claim=claim(), limit=9).intents == 1
    (row,) = deletions.list_intents_in_range("sweep", _ALL)
    assert (row.ledger_id, row.actor, row.reason) == (second, "anna", "anna's reason")
    deletions.move_to_own_workflows({row.row_id: "delete-ledger/9"}, batch_id="sweep", error_by_row={}, ttl_s=60)
    deletions.record_outcomes([_ended(row)], holder="delete-ledger/9")
    (told,) = world.audited("delete-ledger")
    assert (told.actor, told.reason) == ("anna", "anna's reason")


def test_close_says_which_call_closed_the_batch(world: World) -> None:
    """Of calls that race, one; and none where there is no such batch."""
    _batch(world, 1)
    tallies = race(lambda _: world.catalog.deletions.close_batch("b", CAUSE), 8)
    assert [isinstance(one, IntentTally) and one.closed for one in tallies].count(True) == 1
    assert not world.catalog.deletions.close_batch("nobody", CAUSE).closed


def test_close_audits_once_and_lets_go(world: World) -> None:
    """Every destructive act leaves one row, however often the end is reported; what is left over is stalled."""
    intents = _batch(world, 2)
    world.catalog.deletions.record_outcomes([_ended(intents[0])], holder="b")
    race(lambda _: world.catalog.deletions.close_batch("b", CAUSE), 8)
    (row,) = world.audited("delete-ledgers")
    assert (row.actor, row.reason, row.workflow_id) == ("tests", "a test", "w")
    assert row.detail["outcomes"] == {"DELETED": 1, "RETRYING": 1}
    left = intents[1]
    assert world.catalog.deletions.claim_intent(left.ledger_id, left.copy, left.generation, claim("next")).attempts == 1
    world.catalog.deletions.close_batch("nobody", CAUSE)


def test_inflight_counts_unfinished_and_dead_lettered(world: World) -> None:
    """Only both at zero mean that all is deleted."""
    deletions = world.catalog.deletions
    assert deletions.count_undeleted_copies() == UndeletedCopyCounts(estimated_inflight=0, dead_lettered=0)
    assert deletions.count_undeleted_copies().oldest_us is None
    intents = _batch(world, 5)
    deletions.move_to_own_workflows({intents[0].row_id: "own"}, batch_id="b", error_by_row={}, ttl_s=60)
    deletions.record_outcomes([_ended(intents[1]), _ended(intents[2], Outcome.DEAD_LETTERED)], holder="b")
    assert deletions.count_undeleted_copies() == UndeletedCopyCounts(estimated_inflight=3, dead_lettered=1)
    assert deletions.count_undeleted_copies().oldest_us is not None


def test_list_is_newest_first_by_state_and_limited(world: World) -> None:
    """What an operator reads."""
    intents = _batch(world, 3)
    rows = [one.row_id for one in intents]
    deletions = world.catalog.deletions
    assert [one.row_id for one in deletions.list_intents(None, limit=2)] == [rows[2], rows[1]]
    deletions.record_outcomes([_ended(intents[2])], holder="b")
    assert [one.row_id for one in deletions.list_intents(DeletionState.PENDING, limit=9)] == [rows[1], rows[0]]
    assert deletions.list_intents(DeletionState.DEAD_LETTERED, limit=9) == []


@pytest.mark.postgres
def test_referenced_is_per_copy(world: World) -> None:
    """Phase two asks for this copy, by kind and by uuid, not for the ledger (PIP-186, second phase)."""
    _, primary, tiered, older = (intent.row_id for intent in _batch(world, 4))
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    world.add_copy(ledger, CopyState.LIVE, uuid="u-2")
    world.forge(primary, ledger, CopyKind.LEDGER)
    world.forge(tiered, ledger, CopyKind.OFFLOADED_LEDGER, uuid="u-2")
    world.forge(older, ledger, CopyKind.OFFLOADED_LEDGER, generation=2, uuid="u-1")
    assert _referenced(world) == {primary, tiered}
    world.remove_copy(ledger, CopyKind.LEDGER)
    assert _referenced(world) == {tiered}
    world.forge(tiered, ledger, CopyKind.OFFLOADED_LEDGER, generation=6, uuid="u-2")
    world.phase_one(topic.topic_id, [ledger])
    assert _referenced(world) == set()


def test_take_says_whether_the_copy_is_referenced(world: World) -> None:
    """One transaction claims the row and asks the list, so nothing can come between."""
    intent = _batch(world, 1, ttl_s=-1)[0]
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    key = (LedgerId(ledger), CopyKind.LEDGER, 1)
    world.forge(intent.row_id, ledger, CopyKind.LEDGER)
    assert world.catalog.deletions.claim_intent(*key, claim("w")).referenced
    world.remove_copy(ledger, CopyKind.LEDGER)
    assert not world.catalog.deletions.claim_intent(*key, claim("w")).referenced


def test_take_for_another_epoch_claims_nothing(world: World) -> None:
    """A request that speaks of an older catalog changes nothing, not even a claim."""
    intent = _batch(world, 1, ttl_s=-1)[0]
    key = (intent.ledger_id, intent.copy, intent.generation)
    with pytest.raises(StaleCatalog, match="catalog epoch: expected 1, found 7"):
        world.catalog.deletions.claim_intent(*key, claim("stale"), epoch=7)
    assert world.catalog.deletions.claim_intent(*key, claim("other"), epoch=1).attempts == 1


def _referenced(world: World) -> set[int]:
    return {one.row_id for one in world.catalog.deletions.list_intents_in_range("b", _ALL) if one.referenced}


def test_row_ids_are_never_given_again(world: World) -> None:
    """Pages go on behind the highest row id seen, so a row that is removed leaves its id unused."""
    last = _batch(world, 1)[0].row_id
    world.forget_intents()
    assert _batch(world, 1, name="next")[0].row_id > last


def test_newborn_is_not_listed_and_its_intent_is_not_referenced(world: World) -> None:
    """What was abandoned before it was attached can be deleted."""
    topic = new_topic(world)
    born = newborn(world, topic.topic_id)
    world.age(born, seconds=601)
    world.phase_one(topic.topic_id, batch_id="trim")
    (intent,) = world.catalog.deletions.list_intents_in_range("trim", _ALL)
    assert intent.ledger_id == born
    assert listed(world, topic.topic_id) == []
    assert not intent.referenced


@pytest.mark.postgres
def test_list_shows_of_a_topic_or_a_ledger_only_what_is_of_it(world: World) -> None:
    """Newest first, as many as asked for; what is of nobody is an empty list."""
    first, other = _batch(world, 3), _batch(world, 2, name="other")
    deletions, topic = world.catalog.deletions, first[0].topic
    rows = sorted((one.row_id for one in first), reverse=True)
    assert [one.row_id for one in deletions.list_intents(None, topic=topic, limit=9)] == rows
    assert [one.row_id for one in deletions.list_intents(DeletionState.PENDING, topic=topic, limit=2)] == rows[:2]
    assert deletions.list_intents(DeletionState.DELETED, topic=topic, limit=9) == []
    ledger = other[0].ledger_id
    assert [one.ledger_id for one in deletions.list_intents(None, ledger_id=ledger, limit=9)] == [ledger]
    assert deletions.list_intents(None, topic=topic, ledger_id=ledger, limit=9) == []
    assert deletions.list_intents(None, topic="persistent://a/b/none", limit=9) == []


@pytest.mark.postgres
@pytest.mark.sql
def test_failures_are_dead_letters_and_what_is_tried_again_alone(world: World) -> None:
    """Of a topic, a batch or some ledgers, newest first; what its batch has yet to try, or what is gone, is none."""
    intents, others = _batch(world, 4), _batch(world, 1, name="other")
    deletions = world.catalog.deletions
    _, alone, dead, _ = (one.row_id for one in intents)
    deletions.record_outcomes([_ended(intents[0]), _ended(intents[2], Outcome.DEAD_LETTERED)], holder="b")
    deletions.move_to_own_workflows({alone: "own"}, batch_id="b", error_by_row={alone: "slow"}, ttl_s=60)
    deletions.record_outcomes([_ended(others[0], Outcome.METADATA_MISMATCH)], holder="other")

    def found(**of: Any) -> list[int]:
        return [one.row_id for one in deletions.list_failed_intents(**{"limit": 9, **of})]

    assert found() == [others[0].row_id, dead, alone]
    assert found(limit=1) == [others[0].row_id]
    assert found(batch_id="b") == [dead, alone]
    assert found(topic_id=intents[0].topic_id, batch_id="b") == [dead, alone]
    assert found(topic_id=TopicId(0)) == []
    assert found(ledger_ids=[intents[0].ledger_id, intents[1].ledger_id]) == [alone]
    assert found(ledger_ids=[]) == []
