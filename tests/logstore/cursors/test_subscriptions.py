"""Subscriptions: one state, wherever its parts are, whoever changes it meanwhile and whatever fails."""

from collections.abc import Iterator

import pytest

from logstore.cursors.cursor_state import CursorState
from logstore.cursors.services.subscriptions import Subscriptions
from logstore.errors import MissingData, StoreUnavailable, UnknownObject
from logstore.failpoints import SimulatedCrash, arm, disarm_all_and_take_hits
from logstore.log.ledger_object_keys import segment_key
from logstore.positions import LedgerId
from logstore.stop_checks import use_stop_check
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.component_world import NAME, World, at


@pytest.fixture
def world() -> Iterator[World]:
    """A topic with one ledger of a hundred entries, and a subscription at its beginning."""
    with World() as found:
        found.fill()
        found.catalog.cursors.create_subscription(found.topic.topic_id, NAME, latest=False)
        yield found
    disarm_all_and_take_hits()


def _ack(world: World, process: Subscriptions, *entries: int, ledger: int = 0) -> None:
    process.acknowledge(world.topic.topic_id, NAME, positions=[at(ledger, entry) for entry in entries])


def _acked(world: World, process: Subscriptions | None = None) -> set[tuple[int, int]]:
    """Every entry that the subscription has acknowledged, as a process that knows nothing sees it."""
    state = (process or world.process()).get(world.topic.topic_id, NAME).state
    spans = world.catalog.spans(world.topic.topic_id)
    return {(s.ledger_id, entry) for s in spans for entry in range(s.entries) if state.covers(at(s.ledger_id, entry))}


def _odd(below: int) -> range:
    return range(1, below, 2)


def test_acknowledge_a_small_state_stays_in_its_row(world: World) -> None:
    """Nothing is written to storage for a state that fits."""
    _ack(world, world.process(), 5, 7)
    assert _acked(world) == {(0, 5), (0, 7)}
    assert world.objects.calls == []


def test_acknowledge_a_state_that_outgrows_its_row_goes_to_a_ledger(world: World) -> None:
    """Any number of holes survives, and the row stays small (apache/pulsar#20638)."""
    process = world.process()
    for entry in _odd(60):
        _ack(world, process, entry)
    row = world.catalog.cursors.get_cursor(world.topic.topic_id, NAME)
    (ledger,) = world.listed()
    assert row.snapshot_ledger == ledger.ledger_id
    assert ledger.keys == {"cursor": NAME}
    assert _acked(world) == {(0, entry) for entry in _odd(60)}
    assert len(row.state.acknowledged.get(LedgerId(0), ())) < 10


def test_acknowledge_never_leaves_a_predecessor_behind(world: World) -> None:
    """Every cursor ledger that ever was is the cursor's, or has an intent (apache/pulsar#982)."""
    process = world.process()
    for entry in _odd(100):
        _ack(world, process, entry)
    (ledger,) = world.listed()
    born = set(range(1, world.catalog.next_ledger))
    assert born - {ledger.ledger_id} == set(world.catalog.pending_deletion)
    assert len(world.catalog.pending_deletion) > 2
    assert not process.advance_and_fold_cursors_with_snapshots(world.topic.topic_id)
    assert [one.ledger_id for one in world.listed()] == [ledger.ledger_id], "a state that rests is left alone"


def test_acknowledge_moves_over_both_parts_and_takes_back_what_became_small(world: World) -> None:
    """Mark-delete passes what the ledger holds; at its end the ledger is not needed any more."""
    process = world.process()
    for entry in _odd(60):
        _ack(world, process, entry)
    other = world.process()
    for entry in range(0, 60, 2):
        _ack(world, other, entry)
    row = world.catalog.cursors.get_cursor(world.topic.topic_id, NAME)
    assert (row.state, row.snapshot_ledger) == (CursorState(at(0, 59)), None)
    assert world.listed() == []


def test_acknowledge_at_the_limit_does_not_flap(world: World) -> None:
    """A state that shrinks and grows by one hole at the limit is not written out and taken back each time."""
    process = world.process(inline_bytes=50)
    _ack(world, process, *_odd(24))  # 52 bytes, and 50 without its first hole
    before = world.catalog.next_ledger
    for hole in range(24, 64, 2):
        _ack(world, process, hole - 24)  # the first hole goes
        _ack(world, process, hole + 1)  # and there is another one
    assert _acked(world) == {(0, entry) for entry in range(40)} | {(0, entry) for entry in _odd(64)}
    assert world.catalog.next_ledger <= before + 5


def test_acknowledge_by_a_process_that_knows_an_older_snapshot_is_not_lost(world: World) -> None:
    """It is refused, loads what the commit names, and tries again; nobody else notices."""
    one, other = world.process(), world.process()
    for entry in range(1, 97, 4):
        _ack(world, one, entry)
        _ack(world, other, entry + 2)
    assert _acked(world) == {(0, entry) for entry in _odd(97)}
    _ack(world, one, *range(0, 97, 2))
    assert world.catalog.cursors.get_cursor(world.topic.topic_id, NAME).state.mark_delete == at(0, 96)


def test_snapshot_overtaken_by_another_process_loses_nothing(world: World) -> None:
    """Another process acknowledges, or puts its own snapshot, while this one writes (apache/pulsar#350)."""
    one, other = world.process(), world.process(inline_bytes=1)
    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=lambda: _ack(world, other, 90)))
    for entry in _odd(30):
        _ack(world, one, entry)
    assert _acked(world) == {(0, entry) for entry in _odd(30)} | {(0, 90)}
    (ledger,) = world.listed()
    assert world.catalog.cursors.get_cursor(world.topic.topic_id, NAME).snapshot_ledger == ledger.ledger_id
    assert set(range(1, world.catalog.next_ledger)) - {ledger.ledger_id} == set(world.catalog.pending_deletion)


def test_snapshot_overtaken_by_a_seek_brings_nothing_back(world: World) -> None:
    """What was acknowledged before the seek is forgotten, also by a snapshot that was under way."""
    one, other = world.process(inline_bytes=1), world.process()

    def seek() -> None:
        other.seek(world.topic.topic_id, NAME, at(0, 2))

    world.objects.plan(Fault(operation=StoreOperation.PUT, kind=FaultKind.CALL, action=seek))
    _ack(world, one, 5)
    assert _acked(world) == {(0, 0), (0, 1)}
    assert world.listed() == []
    assert world.catalog.pending_deletion == [1]


@pytest.mark.parametrize("operation", [StoreOperation.PUT, StoreOperation.GET])
def test_acknowledge_with_the_store_down_is_stored_all_the_same(
    world: World, operation: StoreOperation, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot that fails never fails an acknowledgement, and is tried again later, not at once (pulsar#26431)."""
    process = world.process(inline_bytes=1)
    world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE, times=100_000))
    for entry in _odd(20):
        _ack(world, process, entry)
        world.catalog.advance(seconds=0.1)
    assert _acked(world, process) == {(0, entry) for entry in _odd(20)}
    if operation is StoreOperation.PUT:
        assert "its state stays where it is" in caplog.text
        assert len(world.catalog.ledger_rows) <= 3, "not one newborn for every acknowledgement"
        world.objects._faults.clear()
        world.catalog.advance(seconds=60)
        _ack(world, process, 21)
        assert world.listed()


def test_get_beside_a_snapshot_that_moves_on_reads_the_new_one(world: World) -> None:
    """The row is read, the ledger is superseded and deleted, and the reader starts over."""
    writer, reader = world.process(inline_bytes=1), world.process()
    _ack(world, writer, 5)

    def overtake() -> None:
        _ack(world, writer, 7)
        gone = world.catalog.pending_deletion[-1]
        world.objects.delete([key for key in world.objects.keys if f"/{gone:016x}/" in key])

    world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.CALL, action=overtake))
    assert _acked(world, reader) == {(0, 5), (0, 7)}


def test_snapshot_that_is_lost_is_told_and_a_seek_goes_on(world: World) -> None:
    """Still named and not stored: data loss, which holds up its own cursor until a seek (apache/pulsar#18620)."""
    _ack(world, world.process(inline_bytes=1), 5)
    (ledger,) = world.listed()
    world.objects.delete([segment_key(ledger.ledger_id, 0)])
    process, topic_id = world.process(), world.topic.topic_id
    for ask in (lambda: process.get(topic_id, NAME), lambda: process.acknowledge(topic_id, NAME, positions=[at(0, 1)])):
        with pytest.raises(MissingData, match=f"cursor ledger {ledger.ledger_id} .*a seek replaces the state"):
            ask()
    (told,) = process.all(topic_id)
    assert (told.lost_snapshot, told.state.mark_delete) == (ledger.ledger_id, at(0, -1))
    assert [type(one) for one in process.advance_and_fold_cursors_with_snapshots(topic_id)] == [MissingData]
    process.seek(topic_id, NAME, at(0, 3))
    assert _acked(world, process) == {(0, 0), (0, 1), (0, 2)}
    assert [one.lost_snapshot for one in process.all(topic_id)] == [None]


def test_settle_moves_a_cursor_that_a_forced_detach_left_short(world: World) -> None:
    """Without traffic a consumed ledger still becomes deletable (apache/pulsar#9136)."""
    second, third = world.fill(), world.fill()
    process, topic_id = world.process(inline_bytes=1), world.topic.topic_id
    _ack(world, process, *range(100), ledger=third)
    process.acknowledge(topic_id, NAME, up_to=at(0, 99))
    world.catalog.detach(topic_id, [second])
    world.catalog.cursors._store(topic_id, NAME, world.catalog.cursors.get_cursor(topic_id, NAME).state)
    assert world.catalog.cursors.get_cursor(topic_id, NAME).state.mark_delete == at(0, 99)
    assert not world.process().advance_and_fold_cursors_with_snapshots(topic_id)
    row = world.catalog.cursors.get_cursor(topic_id, NAME)
    assert (row.state.mark_delete, row.snapshot_ledger) == (at(third, 99), None)


def test_settle_takes_back_what_only_speaks_of_ledgers_that_are_gone(world: World) -> None:
    """Bitmaps of deleted ledgers ahead of the mark keep no cursor ledger alive."""
    second = world.fill()
    world.fill()
    process, topic_id = world.process(inline_bytes=1), world.topic.topic_id
    _ack(world, process, *_odd(80), ledger=second)
    assert world.listed()
    world.catalog.detach(topic_id, [second])
    assert not process.advance_and_fold_cursors_with_snapshots(topic_id)
    assert world.listed() == []
    assert _acked(world) == set()


def test_acknowledge_of_many_holes_in_many_ledgers_survives_a_restart(world: World) -> None:
    """However many there are (apache/pulsar#20638)."""
    ledgers = [0, *(world.fill() for _ in range(20))]
    process = world.process(inline_bytes=200)
    for ledger in ledgers:
        _ack(world, process, *_odd(100), ledger=ledger)
    assert _acked(world) == {(ledger, entry) for ledger in ledgers for entry in _odd(100)}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "effect",
    [
        "catalog.create_component_ledger",
        "component.put_meta",
        "component.put_segment",
        "catalog.publish_snapshot",
        "catalog.fold_snapshot",
    ],
)
def test_process_that_dies_around_a_snapshot_has_lost_no_acknowledgement(
    world: World, effect: str, moment: str
) -> None:
    """Between any two effects: what was committed is there, and nothing is forgotten (promises 2 and 8)."""
    process = world.process(inline_bytes=1)
    arm(f"{effect}.{moment}", "crash")
    acked: set[int] = set()

    def acknowledge() -> None:
        for entry in (5, 7, *range(10)):
            acked.add(entry)
            _ack(world, process, entry)

    with pytest.raises(SimulatedCrash):
        acknowledge()
    assert _acked(world) == {(0, entry) for entry in acked}
    owned = {one.ledger_id for one in world.listed()} | set(world.catalog.pending_deletion)
    newborn = {row for row in world.catalog.ledger_rows if row} - owned
    assert owned | newborn == set(range(1, world.catalog.next_ledger))
    _ack(world, world.process(inline_bytes=1), *range(100))
    assert world.catalog.cursors.get_cursor(world.topic.topic_id, NAME).state == CursorState(at(0, 99))


def test_subscription_that_is_not_there_is_told(world: World) -> None:
    """Unknown is unknown, with and without a snapshot."""
    process = world.process()
    with pytest.raises(UnknownObject):
        process.get(world.topic.topic_id, "nobody")
    with pytest.raises(UnknownObject):
        process.acknowledge(world.topic.topic_id, "nobody", positions=[at(0, 0)])
    assert process.subscribe(world.topic.topic_id, NAME, latest=True).state.mark_delete == at(0, -1)


def test_store_that_does_not_answer_is_no_loss(world: World) -> None:
    """Only a definite absence is: an error is passed on."""
    _ack(world, world.process(inline_bytes=1), 5)
    world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        world.process().get(world.topic.topic_id, NAME)


def test_settle_ends_between_two_cursors(world: World) -> None:
    """Whoever asked for it may end it: the cursor keeps what it keeps."""
    second, third = world.fill(), world.fill()
    process, topic_id = world.process(inline_bytes=1), world.topic.topic_id
    _ack(world, process, *range(100), ledger=third)
    process.acknowledge(topic_id, NAME, up_to=at(0, 99))
    world.catalog.detach(topic_id, [second])
    world.catalog.cursors._store(topic_id, NAME, world.catalog.cursors.get_cursor(topic_id, NAME).state)

    def end() -> None:
        raise InterruptedError

    with use_stop_check(end), pytest.raises(InterruptedError):
        world.process().advance_and_fold_cursors_with_snapshots(topic_id)
    assert world.catalog.cursors.get_cursor(topic_id, NAME).state.mark_delete == at(0, 99)
