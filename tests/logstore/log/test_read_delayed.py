"""Reading around messages that are not due: nothing is fetched for them, and each can be had by its position."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from logstore.cursors.cursor_state import CursorState
from logstore.errors import InvalidInput, MissingData, StoreUnavailable
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.log.services import RollPolicy, TopicLogs
from logstore.log.services.entry_reader import ReadCache
from logstore.ports.catalog.log import Segment
from logstore.ports.catalog.transactions import Frontier
from logstore.positions import LedgerId, Position, TopicId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.log.world import World, plain

_START = CursorState(Position(LedgerId(-1), -1))
_LATER = 60_000


def _at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), entry_id)


def _now_ms(world: World) -> int:
    return world.catalog.now_us // 1000


def _append(world: World, process: TopicLogs, delays: Sequence[int | None], *, size: int = 5) -> None:
    """One segment; a delay counts from now, in milliseconds."""
    noise, now_ms = random.Random(1), _now_ms(world)
    made = [
        NewEntry(payload=noise.randbytes(size), deliver_at_ms=None if delay is None else now_ms + delay)
        for delay in delays
    ]
    process.append(world.topic, ProducedEntries(entries=made))


def _calls(world: World, before: int) -> list[tuple[StoreOperation, str]]:
    return world.objects.calls[before:]


@dataclass
class _Kept:
    """Remembers what was passed over."""

    now_ms: int
    later: dict[Position, int] = field(default_factory=dict)

    def due_ms(self) -> int:
        return self.now_ms

    def postpone(self, ledger_id: LedgerId, deliver_at_ms_by_entry: Mapping[int, int]) -> None:
        self.later |= {Position(ledger_id, entry_id): due_ms for entry_id, due_ms in deliver_at_ms_by_entry.items()}


def test_read_without_positions_fetches_no_segment_that_holds_nothing_else(world: World) -> None:
    """They are left out before anything is asked of the store."""
    process = world.process()
    for _ in range(3):
        process.append(world.topic, plain(b"a", b"b"))
    before = len(world.objects.calls)
    without = {LedgerId(0): BitMap([0, 1, 2, 5])}
    found = [entry.position.entry_id for entry in process.scan(world.topic, excluded=without)]
    assert found == [3, 4]
    assert [key for _, key in _calls(world, before)] == [segment_key(LedgerId(0), number) for number in (1, 2)]


def test_read_without_positions_that_grow_meanwhile_leaves_those_out_of_what_it_has_not_fetched(world: World) -> None:
    """A reader of one subscription need not fetch what another's has found to be later."""
    process = world.process()
    for _ in range(8):
        process.append(world.topic, plain(b"a"))
    without = {LedgerId(0): BitMap()}
    scan = process.scan(world.topic, excluded=without)
    assert next(scan).position.entry_id == 0
    without[LedgerId(0)] |= BitMap(range(8))
    assert list(scan) == []


def test_payloads_of_messages_that_are_not_due_are_not_fetched(world: World) -> None:
    """Of a large segment in which nothing is due only the delivery times are read."""
    process = world.process()
    _append(world, process, [_LATER] * 100, size=10_000)
    before = len(world.objects.calls)
    assert process.read(world.topic, max_entries=10, cursor_state=_START) == []
    assert {operation for operation, _ in _calls(world, before)} == {StoreOperation.HEAD, StoreOperation.GET_RANGE}
    world.catalog.advance(seconds=_LATER / 1000)
    assert len(process.read(world.topic, max_entries=100, cursor_state=_START)) == 100


def test_segment_of_which_some_messages_are_not_delayed_is_fetched_in_one_request(world: World) -> None:
    """It is wanted in any case: to look at delivery times first would cost more requests, and spare none."""
    process = world.process()
    _append(world, process, [_LATER, None] * 50, size=10_000)
    before = len(world.objects.calls)
    assert len(process.read(world.topic, max_entries=100, cursor_state=_START)) == 50
    assert [operation for operation, _ in _calls(world, before)] == [StoreOperation.GET]


@pytest.mark.parametrize("size", [5, 10_000])
def test_messages_that_are_not_due_are_told_and_passed_over(world: World, size: int) -> None:
    """With their delivery times, each segment's before its entries; what is due is read in the same pass."""
    process = world.process()
    _append(world, process, [None, 5, -5, 0, 1] * 10, size=size)
    kept = _Kept(_now_ms(world))
    found = process.scan(world.topic, columns=["payload"], cursor_state=_START, postponer=kept)
    assert [entry.position.entry_id % 5 for entry in found] == [0, 2, 3] * 10
    assert kept.later == {
        _at(0, 5 * nth + at): kept.now_ms + delay for nth in range(10) for at, delay in ((1, 5), (4, 1))
    }


def test_read_decides_once_whether_a_message_is_due(world: World) -> None:
    """What became due between two looks is either told or read: never both, never neither."""
    process = world.process()
    _append(world, process, [1] * 20, size=10_000)
    kept = _Kept(_now_ms(world))
    world.objects.plan(
        Fault(operation=StoreOperation.GET_RANGE, kind=FaultKind.CALL, action=lambda: setattr(kept, "now_ms", 10**15))
    )
    found = {entry.position for entry in process.scan(world.topic, cursor_state=_START, postponer=kept)}
    assert found.isdisjoint(kept.later)
    assert len(found) + len(kept.later) == 20


@settings(max_examples=40, deadline=None)
@given(wanted=st.lists(st.builds(_at, st.integers(0, 4), st.integers(0, 5))))
def test_entries_by_position_come_in_the_order_that_is_given(wanted: list[Position]) -> None:
    """As often as they are asked for; what never was is left out; each segment is fetched once."""
    with World() as world:
        process = world.process(RollPolicy(max_entries=4))
        for _ in range(6):
            process.append(world.topic, plain(b"a", b"b"))
        there = {_at(ledger, entry) for ledger in range(3) for entry in range(4)}
        before = len(world.objects.calls)
        found = process.read_visible_entries_at(world.topic, wanted)
        assert [entry.position for entry in found] == [position for position in wanted if position in there]
        segments = {segment_key(one.ledger_id, one.entry_id // 2) for one in wanted if one in there}
        assert sorted(key for _, key in _calls(world, before)) == sorted(segments)


def test_entries_by_position_beyond_the_frontier_or_hidden_are_left_out(world: World) -> None:
    """An open transaction's messages, what stands behind them, and messages of aborted ones."""
    process = world.process()
    process.append(world.topic, plain(b"a", b"b", b"c", b"d"))

    def frontier(topic_id: TopicId, *, from_ledger: int = -1) -> Frontier:
        del topic_id, from_ledger
        return Frontier(last=_at(0, 2), hidden={LedgerId(0): BitMap([1])})

    world.catalog.transactions.read_frontier = frontier  # type: ignore[method-assign]
    found = process.read_visible_entries_at(world.topic, [_at(0, entry) for entry in (3, 2, 1, 0)], columns=["payload"])
    assert [entry.payload for entry in found] == [b"c", b"a"]


def test_entries_by_position_of_a_trimmed_ledger_are_left_out(world: World) -> None:
    """Trimmed before, or between two looks at the catalog."""
    process = world.process(RollPolicy(max_entries=1))
    for _ in range(4):
        process.append(world.topic, plain(b"a"))
    world.catalog.detach(world.topic.topic_id, [LedgerId(0)])
    real = world.catalog.ledgers.list_segments

    def segments(ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        if ledger_id == 1:
            world.catalog.detach(world.topic.topic_id, [LedgerId(1)])
        return real(ledger_id, from_entry=from_entry)

    world.catalog.ledgers.list_segments = segments  # type: ignore[method-assign]
    found = process.read_visible_entries_at(world.topic, [_at(ledger, 0) for ledger in range(4)])
    assert [entry.position.ledger_id for entry in found] == [2, 3]


def test_entries_by_position_whose_object_is_lost_are_data_loss(world: World) -> None:
    """And a store that does not answer is no loss."""
    process = world.process()
    process.append(world.topic, plain(b"a"))
    world.objects.plan(Fault(operation=StoreOperation.GET, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        process.read_visible_entries_at(world.topic, [_at(0, 0)])
    world.objects.delete(world.segments())
    with pytest.raises(MissingData):
        process.read_visible_entries_at(world.topic, [_at(0, 0)])


def test_entries_by_position_of_unknown_columns_or_of_none(world: World) -> None:
    """A column that does not exist is refused; without a position nothing is asked."""
    process = world.process()
    with pytest.raises(InvalidInput, match="colour"):
        process.read_visible_entries_at(world.topic, [], columns=["colour"])
    assert process.read_visible_entries_at(world.topic, []) == []


def test_entries_by_position_of_a_segment_that_was_read_just_now_cost_no_request(world: World) -> None:
    """With the same columns; others are fetched, and so is what was trimmed never."""
    process = world.process(RollPolicy(max_entries=2))
    for _ in range(2):
        process.append(world.topic, plain(b"a", b"b"))
    process.read_visible_entries_at(world.topic, [_at(0, 0), _at(1, 0)])
    before = len(world.objects.calls)
    assert [entry.payload for entry in process.read_visible_entries_at(world.topic, [_at(1, 1), _at(0, 1)])] == [
        b"b",
        b"b",
    ]
    assert _calls(world, before) == []
    process.read_visible_entries_at(world.topic, [_at(1, 1)], columns=["key"])
    assert len(_calls(world, before)) == 1
    world.catalog.detach(world.topic.topic_id, [LedgerId(0)])
    assert process.read_visible_entries_at(world.topic, [_at(0, 1)]) == []


def test_kept_values_are_those_that_were_used_last_and_within_the_bound() -> None:
    """One that is larger than all that may be kept is not kept at all."""
    small, large = pa.table({"n": list(range(10))}), pa.table({"n": list(range(100))})
    kept, fetched = ReadCache[int, pa.Table](3 * small.nbytes, lambda table: table.nbytes), list[int]()

    def read(number: int, table: pa.Table = small) -> pa.Table:
        def fetch() -> pa.Table:
            fetched.append(number)
            return table

        return kept.get_or_fetch(number, fetch)

    for number in (1, 2, 3, 1, 4, 1, 2):
        assert read(number) is small
    assert fetched == [1, 2, 3, 4, 2]
    assert read(9, large) is large
    assert read(9, large) is large
    assert fetched[-2:] == [9, 9]
