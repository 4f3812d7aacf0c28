"""Segments are passed over before their objects go: a writer that wakes late is refused, and nothing is lost."""

import pytest

from logstore.errors import AlreadyExists, LedgerFenced
from logstore.failpoints import arm
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.log.ledgers import CopyKind
from logstore.log.services import RollPolicy
from logstore.ports.catalog.log import RegisterSegmentResult
from tests.contracts.catalog.offload.test_offloads import offloaded, remove
from tests.contracts.catalog.reconciliation.steps import pass_over
from tests.contracts.catalog.sql_world import SqlWorld
from tests.contracts.catalog.steps import append, filled, listed, new_topic, newborn, race, roll, segment
from tests.contracts.catalog.worlds import World
from tests.fakes.object_store import FakeObjectStore, Fault, FaultKind, StoreOperation
from tests.open_topic_logs import open_topic_logs

pytestmark = pytest.mark.postgres


def test_segment_passed_over_is_refused_and_the_next_number_taken(world: World) -> None:
    """Entries, sizes and segments of the ledger stay what they were; only the number goes on."""
    topic = new_topic(world)
    (ledger,) = filled(world, topic.topic_id, 1)
    before = world.catalog.ledgers.get_topic_totals(topic.topic_id)
    assert pass_over(world, (ledger, 3)) == {}
    assert world.catalog.ledgers.get_topic_totals(topic.topic_id) == before
    for late in (1, 2, 3):
        (answer,) = world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, late)])
        assert isinstance(answer, AlreadyExists), late
    (answer,) = world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, 4)])
    assert isinstance(answer, RegisterSegmentResult)
    assert answer.first_entry == 10
    assert [one.number for one in world.catalog.ledgers.list_segments(ledger)] == [0, 4]
    (audited,) = world.audited("pass-over-segments")
    assert (audited.detail["segments"], audited.detail["kept"], audited.reason) == (1, 0, "a test")
    assert audited.detail["keys"] == [segment_key(ledger, 3)], "what went is known after the object is gone"


def test_segment_that_must_stay_is_kept_and_named(world: World) -> None:
    """One with a row, one of a ledger that is gone, newborn or without its primary copy, and one far ahead."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 4)
    born = newborn(world, topic.topic_id)
    offloaded(world, ids[0])
    remove(world, topic, ids[0])
    world.detach(topic.topic_id, ids[1:2])
    kept = pass_over(world, (ids[3], 0), (ids[1], 5), (ids[0], 5), (born, 0), (ids[3], 65), (ids[3], 64), (10**9, 1))
    assert sorted(kept) == [0, 1, 2, 3, 4, 6]
    told = ["a row names it", "has left the catalog", "no primary copy", "being created", "more than 64 above 0"]
    assert [part in kept[number] for number, part in enumerate(told)] == [True] * 5, kept
    assert "has left the catalog" in kept[6]
    assert world.catalog.ledgers.list_ledgers(topic.topic_id)[-1].last_segment == 64


def test_segment_of_a_ledger_that_lost_rows_of_segments_is_kept(sql_world: SqlWorld) -> None:
    """The object may be the one whose row is lost: its bytes are the only ones of answered entries."""
    topic = new_topic(sql_world)
    (ledger,) = filled(sql_world, topic.topic_id, 1)
    sql_world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, 1)])
    sql_world.sql(f"DELETE FROM segment WHERE ledger_id = {ledger} AND number = 1")
    kept = pass_over(sql_world, (ledger, 1))
    assert "rows of segments are lost: expected 2 segments" in kept[0]


def test_number_that_is_passed_over_reaches_replicas(sql_world: SqlWorld) -> None:
    """No segment of that number tells it to them, so the ledger itself is recorded as changed."""
    (ledger,) = filled(sql_world, new_topic(sql_world).topic_id, 1)
    sql_world.sql("DELETE FROM record_outbox")
    assert pass_over(sql_world, (ledger, 3)) == {}
    assert sql_world.sql("SELECT kind, id, sub FROM record_outbox") == [("ledger", ledger, "")]


def test_closed_ledger_keeps_its_numbers(world: World) -> None:
    """It takes no segment whatever its number; deletion would ask for every number below a higher one."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 2)
    assert pass_over(world, (ids[0], 99_999_999), (ids[0], 7)) == {}
    assert [one.last_segment for one in world.catalog.ledgers.list_ledgers(topic.topic_id)] == [0, 0]
    (answer,) = world.catalog.commits.commit_writes([segment(topic.topic_id, ids[0], 8)])
    assert isinstance(answer, LedgerFenced)


def test_number_of_a_lost_race_is_passed_over_as_it_is(world: World) -> None:
    """Below the highest nothing can be registered any more: nothing changes, however often it is asked."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)
    assert isinstance(
        world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, 5)])[0], RegisterSegmentResult
    )
    for _ in range(2):
        assert pass_over(world, (ledger, 2), (ledger, 4)) == {}
        assert world.catalog.ledgers.list_ledgers(topic.topic_id)[0].last_segment == 5


@pytest.mark.parametrize("point", ["before=crash", "after=crash", "reported_failed=fail"])
def test_pass_over_interrupted_and_repeated_is_done_once(world: World, point: str) -> None:
    """Killed before, killed after, or done and reported as failed."""
    topic = new_topic(world)
    (ledger,) = filled(world, topic.topic_id, 1)
    moment, action = point.split("=")
    arm(f"catalog.decide_objects.{moment}", action)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - a crash, or a planned fault
        pass_over(world, (ledger, 3))
    assert pass_over(world, (ledger, 3)) == {}
    assert world.catalog.ledgers.list_ledgers(topic.topic_id)[0].last_segment == 3


def test_preview_counts_numbers_that_earlier_pages_would_pass_over(world: World) -> None:
    """An open ledger takes numbers up to 64 above its highest, which each page raises."""
    topic = new_topic(world)
    ledger = roll(world, topic.topic_id)
    preview = world.catalog.reconciliation.preview_pass_over_segments
    assert sorted(preview({0: (ledger, 100)}, passed_over={})) == [0]
    assert preview({0: (ledger, 100)}, passed_over={ledger: 60}) == {}
    assert pass_over(world, (ledger, 60)) == {}
    assert pass_over(world, (ledger, 100)) == {}


def test_segment_registered_meanwhile_is_kept_or_refused_never_both(world: World) -> None:
    """The ledger's lock decides: what is registered is not passed over, and what is passed over is not registered."""
    topic = new_topic(world)
    (ledger,) = filled(world, topic.topic_id, 1)
    for number in range(1, 9):

        def work(runner: int, number: int = number) -> object:
            if runner % 2:
                return world.catalog.commits.commit_writes([segment(topic.topic_id, ledger, number)])[0]
            return dict(pass_over(world, (ledger, number)))

        answers = race(work, 4)
        rows = {one.number for one in world.catalog.ledgers.list_segments(ledger)}
        kept = [answer for answer in answers if isinstance(answer, dict)]
        assert len(kept) == 2, answers
        if number in rows:
            assert all(kept), answers
            assert sum(isinstance(answer, RegisterSegmentResult) for answer in answers) == 1
        else:
            assert not any(kept), answers
            assert all(isinstance(answer, AlreadyExists | dict) for answer in answers), answers


def test_pass_over_and_detach_at_once_lock_in_one_order(world: World) -> None:
    """Neither waits for the other for ever, and each does its whole work or finds that the other did."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 6)

    def work(runner: int) -> object:
        if runner % 2:
            world.phase_one(topic.topic_id, [ids[runner // 2]], force=True, batch_id=f"b{runner}")
            return None
        return dict(pass_over(world, *((one, 9) for one in ids)))

    answers = race(work, 8)
    assert not [one for one in answers if isinstance(one, Exception)], answers
    assert listed(world, topic.topic_id) == ids[4:]


def test_writer_that_wakes_late_uploads_again_under_a_later_number(world: World) -> None:
    """Its object lands after it was passed over: it is refused, and its entries are in the log once all the same."""
    topic, objects = new_topic(world), FakeObjectStore()
    patient = RollPolicy(max_age_s=10**9)  # the fake's clock stands still, and this machine's does not
    with open_topic_logs(world.catalog, objects, policy=patient) as log:
        log.append(topic, _entries("first"))
        (ledger,) = listed(world, topic.topic_id)
        late = segment_key(ledger, 1)

        def passed_over() -> None:
            assert pass_over(world, (ledger, 1)) == {}

        objects.plan(
            Fault(
                operation=StoreOperation.PUT, kind=FaultKind.CALL, matches=lambda key: key == late, action=passed_over
            )
        )
        log.append(topic, _entries("late"))
        assert late in objects.keys
        assert world.catalog.ledgers.list_segments(ledger)[1].number > 1
        objects.delete([late])
        log.append(topic, _entries("next"))
        log.roll(topic)
        log.append(topic, _entries("last"))
        assert [entry.payload for entry in log.read(topic, max_entries=9)] == [b"first", b"late", b"next", b"last"]


def _entries(payload: str) -> ProducedEntries:
    return ProducedEntries(entries=(NewEntry(payload=payload.encode()),))


def test_ledger_with_numbers_passed_over_is_detached_and_offloaded_as_any(world: World) -> None:
    """Its intent counts segments, and names the highest number, so that phase two looks for all that may be."""
    topic = new_topic(world)
    ids = filled(world, topic.topic_id, 1)
    assert pass_over(world, (ids[0], 2)) == {}
    append(world, topic.topic_id, ids[0])
    assert pass_over(world, (ids[0], 5)) == {}
    roll(world, topic.topic_id)
    offloaded(world, ids[0])
    remove(world, topic, ids[0])
    (row,) = world.catalog.deletions.list_intents(None, limit=9)
    assert (row.copy, row.segments, row.last_segment) == (CopyKind.LEDGER, 2, 5)
