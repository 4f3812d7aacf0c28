"""Tiered copies: begun, published, given up; what deletion and offload of one ledger do to each other."""

from functools import partial
from typing import Any

import pytest

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import InvalidInput, LedgerStillNeeded, PreconditionFailed, UnknownObject
from logstore.log.ledgers import CopyKind
from logstore.offload.tiered_copy import CopyLengths, parse_lengths
from logstore.ports.catalog.deletion import DetachedBatch, IntentResult
from logstore.ports.catalog.log import Topic, TopicState
from logstore.ports.catalog.offload import OffloadStart, OffloadStartOutcome, PublishedTieredCopy, ReadableCopies
from logstore.positions import LedgerId
from tests.contracts.catalog.steps import filled, listed, new_topic, newborn, race
from tests.contracts.catalog.world import CAUSE, World, claim

METADATA = {"driver": "aws-s3", "bucket": "cold", "region": "r-1"}
GONE = OffloadStart(answer=OffloadStartOutcome.GONE)


def begin(world: World, ledger_id: LedgerId, uuid: str = "u-1", *, timeout_s: float = 60) -> OffloadStart:
    """One attempt."""
    return world.catalog.offloads.begin_offload(ledger_id, uuid=uuid, driver_metadata=METADATA, timeout_s=timeout_s)


def offloaded(world: World, ledger_id: LedgerId, uuid: str = "u-1") -> None:
    """A published tiered copy."""
    begin(world, ledger_id, uuid)
    assert world.catalog.offloads.publish_tiered_copy(ledger_id, uuid)


def tiered_intents(world: World) -> list[DeletionIntent]:
    """Of tiered copies, oldest first."""
    rows = reversed(world.catalog.deletions.list_intents(None, limit=100))
    return [row for row in rows if row.copy is CopyKind.OFFLOADED_LEDGER]


def remove(world: World, topic: Topic, *ids: LedgerId, batch_id: str = "primaries") -> DetachedBatch:
    """Phase one for primary copies; without ids for all of them."""
    return world.catalog.offloads.detach_primary_copies(
        topic.topic_id,
        list(ids) or None,
        proved_uuid_by_ledger=proved(world, topic),
        batch_id=batch_id,
        claim=claim(),
        cause=CAUSE,
    )


def removable(world: World, topic: Topic, *, after: int = -1, limit: int = 100) -> list[PublishedTieredCopy]:
    """What `remove_primaries` may take."""
    return world.catalog.offloads.list_removable_primaries(topic.topic_id, None, after=LedgerId(after), limit=limit)


def proved(world: World, topic: Topic) -> dict[LedgerId, str]:
    """As if storage held every tiered copy."""
    return {one.statement.ledger_id: one.context["uuid"] for one in removable(world, topic)}


def end(world: World, intent: DeletionIntent, outcome: Outcome = Outcome.ALREADY_GONE) -> None:
    """Phase two has ended."""
    world.catalog.deletions.record_outcomes(
        [IntentResult(row_id=intent.row_id, outcome=outcome)], holder=intent.batch_id
    )


def test_begin_makes_the_copy_of_a_closed_ledger_the_attempts_own(world: World) -> None:
    """The context holds all that deletion will need, and by when the upload ends (apache/pulsar#16687)."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    before = world.rows().versions
    begun = begin(world, ledger, timeout_s=60)
    assert (begun.answer, begun.entries) == (OffloadStartOutcome.BEGUN, 10)
    assert begun.statement is not None
    assert (begun.statement.ledger_id, begun.statement.owner.topic) == (ledger, topic.name)
    until_us = int(begun.context["until_us"])
    assert begun.context == {**METADATA, "uuid": "u-1", "until_us": str(until_us)}
    assert 0 < until_us - world.catalog.offloads.now_us() <= 60_000_000
    assert world.rows().versions == [before[0] + 1]
    assert world.catalog.offloads.find_readable_copies(ledger) == ReadableCopies(
        primary=True
    )  # nobody reads a copy that is being written


def test_begin_of_a_ledger_of_another_topic_is_refused_and_changes_nothing(world: World) -> None:
    """A mistyped name beside a ledger's id means another ledger."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    before = world.rows().versions
    with pytest.raises(InvalidInput, match=f"topic: expected the topic of ledger {ledger}, .*found 'other'"):
        world.catalog.offloads.begin_offload(ledger, uuid="u-1", driver_metadata=METADATA, timeout_s=60, topic="other")
    assert world.rows().versions == before
    assert world.catalog.offloads.begin_offload(
        ledger, uuid="u-2", driver_metadata=METADATA, timeout_s=60, topic=topic.name
    ).statement


def test_begin_repeated_does_not_prolong_the_attempt(world: World) -> None:
    """A caller unsure of its commit gets the same answer (idempotent by uuid)."""
    ledger = filled(world, new_topic(world).topic_id, 2)[0]
    assert begin(world, ledger, timeout_s=60) == begin(world, ledger, timeout_s=900)
    assert world.intents() == []


def test_begin_of_a_published_ledger_says_so(world: World) -> None:
    """Offloading twice uploads once; the LIVE copy's context comes with the answer, without an end."""
    ledger = filled(world, new_topic(world).topic_id, 2)[0]
    offloaded(world, ledger)
    again = begin(world, ledger, "u-2")
    assert (again.answer, again.context) == (OffloadStartOutcome.ALREADY, {**METADATA, "uuid": "u-1"})
    assert world.intents() == []


def test_begin_of_what_no_list_has_is_no_error(world: World) -> None:
    """Deleted meanwhile, never attached, never born: there is nothing to offload."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    world.phase_one(topic.topic_id, ledgers[:1])
    assert [begin(world, one) for one in (ledgers[0], newborn(world, topic.topic_id), LedgerId(99))] == [GONE] * 3


def test_begin_where_it_may_not_changes_nothing(world: World) -> None:
    """An open ledger, a topic that is being deleted, a primary copy that is gone."""
    topic = new_topic(world)
    first, second, last = filled(world, topic.topic_id, 3)
    world.remove_copy(second, CopyKind.LEDGER)
    for ledger in (last, second):
        with pytest.raises(PreconditionFailed, match=f"ledger {ledger}"):
            begin(world, ledger)
    world.set_state(topic.topic_id, TopicState.DELETING)
    with pytest.raises(PreconditionFailed, match="ACTIVE"):
        begin(world, first)
    assert world.rows().copies == [first, last]


def test_begin_over_an_attempt_that_died_files_its_copy(world: World) -> None:
    """What the dead attempt may have uploaded has an intent before the next one begins (apache/pulsar#13526)."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    dead = begin(world, ledger, "u-1")
    assert begin(world, ledger, "u-2").context["uuid"] == "u-2"
    assert begin(world, ledger, "u-3").context["uuid"] == "u-3"
    first, second = tiered_intents(world)
    assert (first.context, first.generation, first.state) == (dead.context, 1, DeletionState.PENDING)
    assert (second.context["uuid"], second.generation) == ("u-2", 2)
    assert (first.segments, first.topic_id, first.ledger_created_us > 0) == (1, topic.topic_id, True)
    assert world.catalog.ledgers.list_ledgers(topic.topic_id)[0].generation == 2
    offloaded(world, ledger, "u-3")
    world.phase_one(topic.topic_id, [ledger])
    assert [row.generation for row in tiered_intents(world)] == [1, 2, 3]


def test_publish_makes_the_copy_live_once_and_for_all(world: World) -> None:
    """Readers see it, its upload is over, and a repeated call answers alike."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    begin(world, ledger)
    before = world.rows().versions[0]
    assert [world.catalog.offloads.publish_tiered_copy(ledger, "u-1") for _ in range(2)] == [True, True]
    assert world.rows().versions == [before + 1]
    assert world.catalog.offloads.find_readable_copies(ledger) == ReadableCopies(
        primary=True, tiered={**METADATA, "uuid": "u-1"}
    )
    assert world.catalog.ledgers.list_ledgers(topic.topic_id)[0].copies == (CopyKind.LEDGER, CopyKind.OFFLOADED_LEDGER)
    world.catalog.offloads.abandon_offload(ledger, "u-1")  # an attempt that was told late that it failed
    assert world.catalog.offloads.publish_tiered_copy(ledger, "u-1")
    assert world.intents() == []


def test_publish_states_the_lengths_of_the_objects(world: World) -> None:
    """Plans compare them with a listing; a copy of an earlier build has none."""
    ledger = filled(world, new_topic(world).topic_id, 2)[0]
    begin(world, ledger)
    lengths = CopyLengths(data_bytes=70, index_bytes=9)
    assert [world.catalog.offloads.publish_tiered_copy(ledger, "u-1", lengths=lengths) for _ in range(2)] == [
        True,
        True,
    ]
    assert world.catalog.offloads.publish_tiered_copy(ledger, "u-1"), "a later call without them takes none away"
    copies = world.catalog.offloads.find_readable_copies(ledger)
    assert copies is not None
    assert copies.tiered is not None
    assert parse_lengths(copies.tiered) == lengths
    assert copies.tiered == {**METADATA, "uuid": "u-1", "data_bytes": "70", "index_bytes": "9"}


@pytest.mark.parametrize("bad", [{}, {"index_bytes": "x"}, {"index_bytes": "-1"}, {"index_bytes": "9" * 19}])
def test_lengths_that_are_no_numbers_are_not_known(bad: dict[str, str]) -> None:
    """A context is read as it is found."""
    assert parse_lengths({"data_bytes": "70", **bad}) is None


@pytest.mark.postgres
def test_publish_of_a_replaced_attempt_leaves_its_objects_to_deletion_at_once(world: World) -> None:
    """The loser ends cleanly: its upload is over, so its intent need not wait (apache/pulsar#13219)."""
    ledger = filled(world, new_topic(world).topic_id, 2)[0]
    begin(world, ledger, "u-1")
    begin(world, ledger, "u-2")
    assert not world.catalog.offloads.publish_tiered_copy(ledger, "u-1")
    assert not world.catalog.offloads.publish_tiered_copy(ledger, "u-1")
    (intent,) = tiered_intents(world)
    assert intent.context == {**METADATA, "uuid": "u-1"}
    assert intent.state is DeletionState.PENDING
    assert world.catalog.offloads.publish_tiered_copy(ledger, "u-2")


def test_publish_while_the_topic_is_being_deleted_takes_the_copy_away(world: World) -> None:
    """Nothing joins a topic that is going: the pair has an intent instead."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    begin(world, ledger)
    world.set_state(topic.topic_id, TopicState.DELETING)
    assert not world.catalog.offloads.publish_tiered_copy(ledger, "u-1")
    assert [row.context for row in tiered_intents(world)] == [{**METADATA, "uuid": "u-1"}]
    assert world.catalog.offloads.find_readable_copies(ledger) == ReadableCopies(primary=True)


def test_publish_after_the_intent_ended_files_one_more(world: World) -> None:
    """A deletion that outwaited the upload saw nothing; what came after it has an intent of its own generation."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    begin(world, ledger, "u-1")
    world.let_upload_end(ledger)
    assert world.phase_one(topic.topic_id, by="trim").intents == 2  # primary and dead copy
    for row in world.catalog.deletions.list_intents(None, limit=10):
        end(world, row)
    for _ in range(2):
        assert not world.catalog.offloads.publish_tiered_copy(ledger, "u-1")
    ended, again = tiered_intents(world)
    assert (ended.outcome, again.outcome, again.state) == (Outcome.ALREADY_GONE, None, DeletionState.PENDING)
    assert again.generation == ended.generation + 1
    assert again.context == {**METADATA, "uuid": "u-1"}
    assert world.phase_one(topic.topic_id).intents == 1  # nobody works on it: the next trim does


@pytest.mark.postgres
@pytest.mark.parametrize("gives_up", [True, False])
def test_upload_past_its_end_whose_intent_is_pending_has_one_more(world: World, gives_up: bool) -> None:
    """Phase two may be at work on that intent and have looked already: what it says then must not be the last word."""
    ledger = filled(world, new_topic(world).topic_id, 2)[0]
    begin(world, ledger, "u-1")
    begin(world, ledger, "u-2")
    world.let_upload_end(ledger)
    (before,) = tiered_intents(world)
    if gives_up:
        world.catalog.offloads.abandon_offload(ledger, "u-1")
    else:
        assert not world.catalog.offloads.publish_tiered_copy(ledger, "u-1")
    waiting, again = tiered_intents(world)
    assert (waiting.context, waiting.state) == (before.context, DeletionState.PENDING)
    assert (again.context["uuid"], again.generation > waiting.generation) == ("u-1", True)
    end(world, waiting)
    assert again.state is DeletionState.PENDING


@pytest.mark.postgres
def test_publish_too_late_of_a_listed_ledger_leaves_room_for_its_later_intents(world: World) -> None:
    """The one that is filed again has a generation that no later detach of the ledger will take."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    world.catalog.cursors.create_subscription(topic.topic_id, "slow", latest=False)
    begin(world, ledger, "u-1")
    world.let_upload_end(ledger)
    assert world.phase_one(topic.topic_id).intents == 1
    end(world, tiered_intents(world)[0])
    assert not world.catalog.offloads.publish_tiered_copy(ledger, "u-1")
    offloaded(world, ledger, "u-2")
    world.phase_one(topic.topic_id, [ledger], force=True)
    assert [(row.context["uuid"], row.generation) for row in tiered_intents(world)] == [
        ("u-1", 1),
        ("u-1", 2),
        ("u-2", 3),
    ]


def test_publish_of_what_nobody_knows_is_a_loss(world: World) -> None:
    """No row, no intent: nothing to publish and nothing to file."""
    filled(world, new_topic(world).topic_id, 1)
    assert not world.catalog.offloads.publish_tiered_copy(LedgerId(77), "u-9")
    assert world.intents() == []


def test_abandon_files_the_copy_and_shortens_the_wait(world: World) -> None:
    """An attempt that failed gives the ledger back at once; what was not answered may land within a minute."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    begin(world, ledger, timeout_s=2_700)
    for _ in range(2):
        world.catalog.offloads.abandon_offload(ledger, "u-1")
    intent = tiered_intents(world)[0]
    assert 0 < int(intent.context["until_us"]) <= world.catalog.offloads.now_us()
    assert world.catalog.offloads.find_readable_copies(ledger) == ReadableCopies(primary=True)
    assert world.phase_one(topic.topic_id, [ledger]).ledgers == 1


def test_offload_that_lives_keeps_its_ledger_from_every_detach(world: World) -> None:
    """Retention, a delete by id and a forced one all wait for the upload (apache/pulsar#13219)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    begin(world, ledgers[0])
    assert world.phase_one(topic.topic_id) == DetachedBatch(batch_id="batch-1", ledgers=0, intents=0)
    for force in (True, False):
        with pytest.raises(LedgerStillNeeded, match="a copy of it is being written"):
            world.phase_one(topic.topic_id, [ledgers[0]], force=force)
    assert listed(world, topic.topic_id) == ledgers


def test_offload_that_died_does_not_keep_its_ledger_for_ever(world: World) -> None:
    """Once its upload can go on no longer, trim and delete go ahead, and take the dead copy along."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    begin(world, ledgers[0], "u-0")
    begin(world, ledgers[1], "u-1")
    for ledger in ledgers:
        world.let_upload_end(ledger)
    assert world.catalog.phase_one.preview_detach(topic.topic_id, None, force=False) == ledgers[:3]
    assert world.phase_one(topic.topic_id, [ledgers[0]]) == DetachedBatch(batch_id="batch-1", ledgers=1, intents=2)
    assert world.phase_one(topic.topic_id) == DetachedBatch(batch_id="batch-2", ledgers=2, intents=3)
    assert [row.context["uuid"] for row in tiered_intents(world)] == ["u-0", "u-1"]
    assert world.rows().copies == [ledgers[3]]


@pytest.mark.parametrize("until", ["abc", "", "-1", "1e3", "9" * 30, " 1"])
def test_upload_whose_end_cannot_be_read_is_at_work(world: World, until: str) -> None:
    """Damaged by hand: it keeps its ledger, stops no other's detach, and the next attempt replaces it."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    begin(world, ledgers[1], "u-1")
    world.say_upload_ends(ledgers[1], until)
    assert world.catalog.phase_one.preview_detach(topic.topic_id, None, force=False) == ledgers[:1]
    assert world.phase_one(topic.topic_id) == DetachedBatch(batch_id="batch-1", ledgers=1, intents=1)
    with pytest.raises(LedgerStillNeeded, match="is being written"):
        world.phase_one(topic.topic_id, [ledgers[1]])
    begin(world, ledgers[1], "u-2")
    assert world.catalog.offloads.publish_tiered_copy(ledgers[1], "u-2")


@pytest.mark.postgres
def test_abandon_of_an_upload_whose_end_cannot_be_read_sets_one(world: World) -> None:
    """The attempt itself knows best."""
    ledger = filled(world, new_topic(world).topic_id, 2)[0]
    begin(world, ledger)
    world.say_upload_ends(ledger, "abc")
    world.catalog.offloads.abandon_offload(ledger, "u-1")
    assert 0 < int(tiered_intents(world)[0].context["until_us"]) <= world.catalog.offloads.now_us()


def test_trim_takes_a_dead_copy_away_from_a_ledger_that_stays(world: World) -> None:
    """Its objects go though nothing else does; once, in the trim's own batch."""
    topic = new_topic(world)
    ledger = filled(world, topic.topic_id, 2)[0]
    world.catalog.cursors.create_subscription(topic.topic_id, "slow", latest=False)
    begin(world, ledger)
    world.let_upload_end(ledger)
    assert world.phase_one(topic.topic_id, batch_id="b") == DetachedBatch(batch_id="b", ledgers=0, intents=1)
    assert [(row.batch_id, row.generation) for row in tiered_intents(world)] == [("b", 1)]
    assert world.phase_one(topic.topic_id).intents == 0
    assert begin(world, ledger, "u-2").answer is OffloadStartOutcome.BEGUN


@pytest.mark.postgres
def test_candidates_are_closed_and_have_no_live_tiered_copy(world: World) -> None:
    """In pages, ascending; a copy that is only being written does not count; empty ledgers are left."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 5)
    offloaded(world, ledgers[1])
    begin(world, ledgers[2], "u-2")
    find = world.catalog.offloads.list_offload_candidates
    before = LedgerId(-1)
    assert find(topic.topic_id, None, after=before, limit=10) == [ledgers[0], ledgers[2], ledgers[3]]
    assert find(topic.topic_id, None, after=before, limit=2) == [ledgers[0], ledgers[2]]
    assert find(topic.topic_id, None, after=ledgers[0], limit=1) == [ledgers[2]]
    assert find(topic.topic_id, ledgers[1:3], after=before, limit=10) == [ledgers[2]]
    other = new_topic(world, "persistent://a/b/other")
    assert find(other.topic_id, ledgers, after=before, limit=10) == []


@pytest.mark.postgres
@pytest.mark.sql
def test_check_refuses_what_cannot_be_offloaded(world: World) -> None:
    """An id of another topic, and an open ledger; before anything changes."""
    topic, other = new_topic(world), new_topic(world, "persistent://a/b/other")
    ledgers = filled(world, topic.topic_id, 2)
    world.catalog.offloads.require_offloadable(topic.topic_id, ledgers[:1])
    assert world.catalog.offloads.find_unlisted_ledgers(topic.topic_id, [LedgerId(9_999), *ledgers[:1]]) == [9_999]
    with pytest.raises(PreconditionFailed, match="CLOSED"):
        world.catalog.offloads.find_unlisted_ledgers(topic.topic_id, [LedgerId(9_999), *ledgers])
    with pytest.raises(UnknownObject, match="ledger"):
        world.catalog.offloads.require_offloadable(other.topic_id, ledgers[:1])
    with pytest.raises(PreconditionFailed, match="CLOSED"):
        world.catalog.offloads.require_offloadable(topic.topic_id, ledgers)


def test_remove_primaries_leaves_the_ledgers_listed(world: World) -> None:
    """Phase one for that copy alone: rows and segments stay, the intent knows the segments, the log is audited."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    for at, ledger in enumerate(ledgers[:2]):
        offloaded(world, ledger, f"u-{at}")
    begin(world, ledgers[2], "u-2")
    before = world.rows()
    assert [one.statement.ledger_id for one in removable(world, topic)] == ledgers[:2]
    assert remove(world, topic) == DetachedBatch(batch_id="primaries", ledgers=2, intents=2)
    assert listed(world, topic.topic_id) == ledgers
    after = world.rows()
    assert (after.segments, after.versions) == (before.segments, [before.versions[0] + 1])
    found = world.catalog.ledgers.list_ledgers(topic.topic_id)
    assert [one.copies for one in found[:2]] == [(CopyKind.OFFLOADED_LEDGER,)] * 2
    assert [one.generation for one in found] == [1, 1, 0, 0]
    rows = world.catalog.deletions.list_intents(None, limit=10)
    assert {(row.ledger_id, row.copy, row.generation, row.segments, row.last_segment) for row in rows} == {
        (ledger, CopyKind.LEDGER, 1, 1, 0) for ledger in ledgers[:2]
    }
    (told,) = world.audited("remove-primaries")
    assert (told.reason, told.detail["ledgers"], told.detail["sample"]) == ("a test", 2, ledgers[:2])
    assert world.catalog.offloads.find_readable_copies(ledgers[0]) == ReadableCopies(
        primary=False, tiered={**METADATA, "uuid": "u-0"}
    )


@pytest.mark.postgres
def test_remove_primaries_never_takes_the_only_copy(world: World) -> None:
    """A ledger without a LIVE tiered copy keeps its primary, whoever asks (promise 1)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    begin(world, ledgers[0])
    offloaded(world, ledgers[1])
    assert remove(world, topic, ledgers[0], ledgers[2], batch_id="a") == DetachedBatch(
        batch_id="a", ledgers=0, intents=0
    )
    assert remove(world, topic, *ledgers[:2], batch_id="b") == DetachedBatch(batch_id="b", ledgers=1, intents=1)
    assert remove(world, topic, batch_id="c") == DetachedBatch(batch_id="c", ledgers=0, intents=0)
    assert world.intents() == [ledgers[1]]
    assert world.rows().runs == ["b"]


def test_removable_copies_come_in_pages_with_what_storage_should_hold(world: World) -> None:
    """Statement, entries and context are those the copy was begun with."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    begun = [begin(world, ledger, f"u-{at}") for at, ledger in enumerate(ledgers[:3])]
    for at in range(3):
        assert world.catalog.offloads.publish_tiered_copy(ledgers[at], f"u-{at}")
    assert [one.statement for one in removable(world, topic, limit=2)] == [one.statement for one in begun[:2]]
    (last,) = removable(world, topic, after=ledgers[1])
    assert last == PublishedTieredCopy(statement=last.statement, entries=10, context={**METADATA, "uuid": "u-2"})
    assert removable(world, topic, after=ledgers[2]) == []


def test_remove_primaries_takes_only_what_was_proved(world: World) -> None:
    """A ledger that nobody proved, or of which another copy was proved, keeps its primary (apache/pulsar#22839)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 4)
    for at, ledger in enumerate(ledgers[:3]):
        offloaded(world, ledger, f"u-{at}")
    some = {ledgers[1]: "u-of-another-attempt", ledgers[2]: "u-2"}
    removed = world.catalog.offloads.detach_primary_copies(
        topic.topic_id, None, proved_uuid_by_ledger=some, batch_id="a", claim=claim(), cause=CAUSE
    )
    assert (removed.ledgers, removed.intents) == (1, 1)
    assert [one.statement.ledger_id for one in removable(world, topic)] == ledgers[:2]
    assert world.intents() == [ledgers[2]]


@pytest.mark.postgres
def test_remove_primaries_takes_up_what_an_earlier_batch_left(world: World) -> None:
    """Stalled intents of primary copies join; those of dead uploads may wait long, and are left to trims."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    begin(world, ledgers[0], "u-0")
    offloaded(world, ledgers[0], "u-1")
    ended = claim(ttl_s=-1)
    removed = world.catalog.offloads.detach_primary_copies(
        topic.topic_id, None, proved_uuid_by_ledger=proved(world, topic), batch_id="a", claim=ended, cause=CAUSE
    )
    assert (removed.ledgers, removed.intents) == (1, 1)
    assert remove(world, topic, batch_id="b") == DetachedBatch(batch_id="b", ledgers=0, intents=1)
    batches = {row.copy: row.batch_id for row in world.catalog.deletions.list_intents(None, limit=10)}
    assert batches == {CopyKind.LEDGER: "b", CopyKind.OFFLOADED_LEDGER: ""}


def test_remove_primaries_repeated_with_its_batch_id_answers_the_same(world: World) -> None:
    """One act, one audit row; the name of another request is refused."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 3)
    offloaded(world, ledgers[0])
    first = remove(world, topic)
    offloaded(world, ledgers[1], "u-2")
    again = remove(world, topic)
    assert again == first
    assert [sum(one.rows for one in done.filed_counts) for done in (first, again)] == [1, 0]  # which tells them apart
    assert world.intents() == [ledgers[0]]
    assert len(world.audited("remove-primaries")) == 1
    with pytest.raises(PreconditionFailed, match="never used"):
        remove(world, topic, ledgers[1])


def test_remove_primaries_repeated_after_its_topic_has_gone_is_answered_by_its_batch(world: World) -> None:
    """The answer of the first call was lost, and the topic was deleted before the second one."""
    topic = new_topic(world)
    offloaded(world, filled(world, topic.topic_id, 2)[0])
    first = remove(world, topic)
    assert first.intents == 1
    world.remove_topic(topic.topic_id)
    repeated: dict[str, Any] = {"proved_uuid_by_ledger": {}, "claim": claim(), "cause": CAUSE}
    remove_primaries = partial(world.catalog.offloads.detach_primary_copies, topic.topic_id, None, **repeated)
    assert remove_primaries(batch_id="primaries") == first
    with pytest.raises(UnknownObject):
        remove_primaries(batch_id="another")


def test_ledger_without_its_primary_is_detached_with_what_it_has(world: World) -> None:
    """A later delete files the tiered copy alone, of a generation of its own; the primary's row still waits."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    offloaded(world, ledgers[0])
    remove(world, topic)
    assert world.phase_one(topic.topic_id).ledgers == 1
    rows = {(row.copy, row.generation) for row in world.catalog.deletions.list_intents(None, limit=10)}
    assert rows == {(CopyKind.LEDGER, 1), (CopyKind.OFFLOADED_LEDGER, 2)}


def test_removed_primary_is_not_in_use_and_the_tiered_copy_is(world: World) -> None:
    """Phase two asks for the very copy: STILL_IN_USE only where its row exists (PIP-186, second phase)."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 2)
    offloaded(world, ledgers[0])
    remove(world, topic)
    (row,) = world.catalog.deletions.list_intents(None, limit=10)
    taken = world.catalog.deletions.claim_intent(row.ledger_id, row.copy, row.generation, claim(), epoch=1)
    assert not taken.referenced
    world.forge(row.row_id, ledgers[0], CopyKind.OFFLOADED_LEDGER, uuid="u-1")
    taken = world.catalog.deletions.claim_intent(ledgers[0], CopyKind.OFFLOADED_LEDGER, 1, claim(), epoch=1)
    assert taken.referenced


@pytest.mark.postgres
@pytest.mark.parametrize("turn", range(3))
def test_offloads_trims_and_deletes_racing_lose_nothing(world: World, turn: int) -> None:
    """However they race, each uploaded pair has a row or an intent, and each ledger goes whole or stays whole."""
    topic = new_topic(world)
    ledgers = filled(world, topic.topic_id, 5)
    uuids = [f"u-{number}" for number in range(32)]

    def act(number: int) -> object:
        ledger = ledgers[(number * 7 + turn) % 4]
        match number % 8:
            case 0:
                return world.phase_one(topic.topic_id, batch_id=f"trim-{number}")
            case 1:
                return world.phase_one(topic.topic_id, [ledger], batch_id=f"delete-{number}")
            case 2:
                return remove(world, topic, batch_id=f"remove-{number}")
        begun = begin(world, ledger, uuids[number])
        if begun.answer is not OffloadStartOutcome.BEGUN:
            return None
        if number % 8 == 3:
            world.catalog.offloads.abandon_offload(ledger, uuids[number])
        return (ledger, uuids[number], world.catalog.offloads.publish_tiered_copy(ledger, uuids[number]))

    answers = race(act)
    allowed = (LedgerStillNeeded, PreconditionFailed)
    assert not [one for one in answers if isinstance(one, Exception) and not isinstance(one, allowed)], answers
    uploaded = {one[1]: one for one in answers if isinstance(one, tuple)}
    rows = tiered_intents(world)
    doomed = {row.context["uuid"] for row in rows}
    for ledger, uuid, published in uploaded.values():
        copies = world.catalog.offloads.find_readable_copies(ledger)
        held = copies is not None and copies.tiered is not None and copies.tiered["uuid"] == uuid
        assert held != (uuid in doomed), (ledger, uuid, published)
    assert len({(row.ledger_id, row.generation) for row in rows}) == len(rows)
    left = world.catalog.ledgers.list_ledgers(topic.topic_id)
    assert all(one.copies for one in left)
    assert world.rows().copies.count(ledgers[4]) == 1
