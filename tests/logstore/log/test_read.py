"""Reading: order, limits, columns, cursors, trims under the reader's eyes, objects that are not what they should be."""

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.cursors.cursor_state import CursorState, acknowledge
from logstore.errors import CorruptData, InvalidInput, MissingData, StoreUnavailable
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.log.ledger_object_keys import segment_key
from logstore.log.segment_format import encode_segment
from logstore.log.services import RollPolicy, TopicLogs
from logstore.ports.catalog.log import Ledger, Segment
from logstore.positions import LedgerId, Position, TopicId
from tests.fakes.object_store import Fault, FaultKind, StoreOperation
from tests.logstore.log.world import World, once, plain


def _at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), entry_id)


def _filled(world: World, *, ledgers: int = 3, segments: int = 2, entries: int = 2) -> TopicLogs:
    """Payloads are positions: `ledgers` full of `segments` of `entries` each."""
    process = world.process(RollPolicy(max_entries=segments * entries))
    for ledger in range(ledgers):
        for segment in range(segments):
            first = segment * entries
            process.append(world.topic, plain(*[b"%d:%d" % (ledger, first + at) for at in range(entries)]))
    return process


def _all(world: World) -> list[Position]:
    return [_at(span.ledger_id, at) for span in world.catalog.spans(world.topic.topic_id) for at in range(span.entries)]


_POSITIONS = st.builds(_at, st.integers(-1, 5), st.integers(-1, 6))


@settings(max_examples=60, deadline=None)
@given(
    start=st.none() | _POSITIONS,
    up_to=st.none() | _POSITIONS,
    limit=st.integers(1, 30),
    mark=st.none() | _POSITIONS,
    data=st.data(),
)
def test_read_any_window_equals_the_entries_in_it(
    start: Position | None, up_to: Position | None, limit: int, mark: Position | None, data: st.DataObject
) -> None:
    """From, up to, limit and cursor choose exactly the entries that they describe, in order."""
    with World() as world:
        process = _filled(world)
        entries = _all(world)
        state = None
        if mark is not None:
            spans = world.catalog.spans(world.topic.topic_id)
            state = acknowledge(CursorState(mark), data.draw(st.lists(st.sampled_from(entries))), spans)
        found = process.read(world.topic, from_position=start, up_to=up_to, max_entries=limit, cursor_state=state)
        wanted = [
            position
            for position in entries
            if (start is None or position >= start)
            and (up_to is None or position <= up_to)
            and not (state and state.covers(position))
        ]
        assert [entry.position for entry in found] == wanted[:limit]
        assert all(entry.payload == str(entry.position).encode() for entry in found)


def test_read_of_a_topic_without_entries_is_empty(world: World) -> None:
    """No ledgers, or only empty ones."""
    process = world.process()
    assert process.read(world.topic, max_entries=5) == []
    process.roll(world.topic)
    assert process.read(world.topic, max_entries=5, from_position=_at(0, 0)) == []


def test_read_sees_what_another_process_appended_last(world: World) -> None:
    """Nothing is cached that could hide an entry that was acknowledged to its producer."""
    process = _filled(world, ledgers=1)
    world.process().append(world.topic, plain(b"new"))
    assert process.read(world.topic, from_position=_at(0, 4), max_entries=5)[0].payload == b"new"


@pytest.mark.parametrize("limit", [0, -1])
def test_read_limit_below_one_is_refused(world: World, limit: int) -> None:
    """A limit that asks for nothing is a mistake."""
    with pytest.raises(InvalidInput, match=r"^max_entries"):
        world.process().read(world.topic, max_entries=limit)


def test_read_unknown_column_is_refused_at_once(world: World) -> None:
    """Not when the first entry is drawn."""
    with pytest.raises(InvalidInput, match="colour"):
        world.process().scan(world.topic, columns=["colour"])


def test_read_columns_not_asked_for_are_absent(world: World) -> None:
    """A reader of delivery times gets those, and the publish time that every entry has."""
    process = world.process()
    entry = NewEntry(payload=b"x", key="k", deliver_at_ms=5, sequence_id=1, properties={"a": "b"})
    process.append(world.topic, ProducedEntries(entries=[entry], producer="p"))
    (found,) = process.scan(world.topic, columns=["deliver_at_ms"])
    assert found.deliver_at_ms == 5
    assert found.publish_ms > 0
    assert (found.payload, found.key, found.producer, found.sequence_id, found.properties) == (
        None,
        None,
        None,
        None,
        {},
    )


def _large(world: World) -> TopicLogs:
    noise = random.Random(1)
    process = world.process()
    process.append(world.topic, plain(*[noise.randbytes(10_000) for _ in range(100)]))
    return process


def test_read_without_payloads_fetches_a_fraction_of_a_large_segment(world: World) -> None:
    """Range reads: footer and columns, never the whole object."""
    process = _large(world)
    before = len(world.objects.calls)
    assert len(list(process.scan(world.topic, columns=["deliver_at_ms"]))) == 100
    operations = {operation for operation, _ in world.objects.calls[before:]}
    assert operations == {StoreOperation.HEAD, StoreOperation.GET_RANGE}


def test_read_with_payloads_fetches_a_segment_in_one_request(world: World) -> None:
    """Most of the object is wanted, so it is read whole."""
    process = _large(world)
    before = len(world.objects.calls)
    assert len(process.read(world.topic, max_entries=100)) == 100
    assert [operation for operation, _ in world.objects.calls[before:]] == [StoreOperation.GET]


def test_read_few_entries_fetches_one_segment(world: World) -> None:
    """A reader that wants a few entries does not make the store work ahead."""
    process = _filled(world)
    before = len(world.objects.calls)
    process.read(world.topic, max_entries=2)
    assert len(world.objects.calls) - before == 1


def test_read_skips_segments_that_the_cursor_covers_without_fetching_them(world: World) -> None:
    """Acknowledged entries cost nothing, behind the mark or beyond it."""
    process = _filled(world)
    spans = world.catalog.spans(world.topic.topic_id)
    acked = [position for position in _all(world) if position not in {_at(1, 1), _at(2, 3)}]
    state = acknowledge(CursorState(_at(0, -1)), acked, spans)
    before = len(world.objects.calls)
    found = process.read(world.topic, max_entries=50, cursor_state=state)
    assert [entry.position for entry in found] == [_at(1, 1), _at(2, 3)]
    assert len(world.objects.calls) - before == 2


def test_read_looks_up_no_segments_of_ledgers_that_the_cursor_has_passed(world: World) -> None:
    """A long consumed list costs one query, not one a ledger."""
    process = _filled(world)
    asked: list[LedgerId] = []
    real = world.catalog.ledgers.list_segments

    def segments(ledger_id: LedgerId, *, from_entry: int = 0) -> list[Segment]:
        asked.append(ledger_id)
        return real(ledger_id, from_entry=from_entry)

    world.catalog.ledgers.list_segments = segments  # type: ignore[method-assign]
    assert len(process.read(world.topic, max_entries=50, cursor_state=CursorState(_at(1, 3)))) == 4
    assert asked == [2]


def test_read_sees_what_an_open_ledger_gained_since_it_was_listed(world: World) -> None:
    """A cursor at the end of the list as it was is not at the end of the log."""
    process = _filled(world, ledgers=1, segments=1)
    process.append(world.topic, plain(b"0:2"))
    real = world.catalog.ledgers.list_ledgers

    def listed(topic_id: TopicId, *, from_ledger: LedgerId | None = None, limit: int | None = None) -> list[Ledger]:
        found = real(topic_id, from_ledger=from_ledger, limit=limit)
        world.catalog.ledgers.list_ledgers = real  # type: ignore[method-assign]
        process.append(world.topic, plain(b"new"))
        return found

    world.catalog.ledgers.list_ledgers = listed  # type: ignore[method-assign]
    state = CursorState(world.catalog.spans(world.topic.topic_id)[-1].last)
    assert not list(process.scan(world.topic, cursor_state=state)), "what may be seen is asked first"
    assert [entry.payload for entry in process.scan(world.topic, cursor_state=state)] == [b"new"]


def _at_second_page(world: World, meanwhile: Callable[[], object]) -> None:
    """Let something happen just before the list is asked for its second page."""
    real, left = world.catalog.ledgers.list_ledgers, [meanwhile]

    def listed(topic_id: TopicId, *, from_ledger: LedgerId | None = None, limit: int | None = None) -> list[Ledger]:
        if left and from_ledger is not None and from_ledger >= 0:
            left.pop()()
        return real(topic_id, from_ledger=from_ledger, limit=limit)

    world.catalog.ledgers.list_ledgers = listed  # type: ignore[method-assign]


def test_read_page_behind_which_the_list_was_trimmed_is_no_silent_skip(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Ledgers that went between two pages are told of as those that went within one (apache/pulsar#18620)."""
    process = _filled(world, ledgers=20, segments=1)
    ids = [one.ledger_id for one in world.catalog.ledgers.list_ledgers(world.topic.topic_id)]
    _at_second_page(world, lambda: world.catalog.detach(world.topic.topic_id, ids[:12]))
    seen = list(dict.fromkeys(entry.position.ledger_id for entry in process.scan(world.topic)))
    assert seen[-8:] == ids[12:]
    assert "PositionTrimmed" in caplog.text


def test_read_page_after_page_ends_where_the_list_ended_when_it_began(world: World) -> None:
    """Writers that are faster than the reader do not keep it for ever."""
    process = _filled(world, ledgers=20, segments=1)
    ids = [one.ledger_id for one in world.catalog.ledgers.list_ledgers(world.topic.topic_id)]

    def write() -> None:
        process.roll(world.topic)
        process.append(world.topic, plain(b"later"))

    _at_second_page(world, write)
    seen = list(dict.fromkeys(entry.position.ledger_id for entry in process.scan(world.topic)))
    assert seen == ids


def test_read_for_a_subscription_leaves_out_what_is_not_due(world: World) -> None:
    """Only what a consumer may see now; due is inclusive, and a plain reader sees all."""
    now_ms = world.catalog.now_us // 1000
    times = [None, now_ms - 1, now_ms, now_ms + 1]
    process = world.process()
    entries = [NewEntry(payload=b"%d" % at, deliver_at_ms=time) for at, time in enumerate(times)]
    process.append(world.topic, ProducedEntries(entries=entries))
    state = CursorState(_at(0, -1))

    def seen(columns: list[str], state: CursorState | None) -> list[int]:
        found = process.scan(world.topic, columns=columns, cursor_state=state)
        return [entry.position.entry_id for entry in found]

    assert seen(["payload"], state) == [0, 1, 2]
    assert seen(["payload"], None) == [0, 1, 2, 3]
    assert all(entry.deliver_at_ms is None for entry in process.scan(world.topic, columns=["key"], cursor_state=state))
    world.catalog.advance(seconds=0.001)
    assert seen(["payload", "deliver_at_ms"], state) == [0, 1, 2, 3]


def _trim(world: World, *ledgers: int) -> None:
    """Phase one, and phase two at once."""
    for ledger in ledgers:
        rows = world.catalog.segment_rows[LedgerId(ledger)]
        keys = [segment_key(row.ledger_id, row.number) for row in rows]
        world.catalog.detach(world.topic.topic_id, [LedgerId(ledger)])
        world.objects.delete(keys)


def test_read_from_a_trimmed_position_begins_at_the_first_listed_entry(world: World) -> None:
    """A position of a ledger that is gone stands for what comes next."""
    process = _filled(world)
    _trim(world, 0)
    assert process.read(world.topic, from_position=_at(0, 1), max_entries=1)[0].position == _at(1, 0)


@pytest.mark.parametrize("columns", [["payload"], ["key"]])
def test_read_that_misses_a_trimmed_object_goes_on_beyond_it_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture, columns: list[str]
) -> None:
    """A missing ledger pins nobody, and the skip is explicit and logged (apache/pulsar#18620)."""
    process = _filled(world)
    scan = process.scan(world.topic, columns=columns)
    assert next(scan).position == _at(0, 0)
    _trim(world, 0, 1)
    with caplog.at_level(logging.WARNING):
        rest = [entry.position for entry in scan]
    assert rest == [_at(0, 1), *[_at(2, entry) for entry in range(4)]]
    assert any(
        "PositionTrimmed" in record.message and record.message.endswith("going on at 2:0") for record in caplog.records
    )


def test_read_of_a_ledger_trimmed_between_list_and_segments_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rows are gone before its objects: a ledger without segments is looked up again, not taken for empty."""
    process = _filled(world)
    scan = process.scan(world.topic)
    next(scan)
    world.catalog.detach(world.topic.topic_id, [LedgerId(0), LedgerId(1), LedgerId(2)])
    assert next(scan).position == _at(0, 1)
    list(scan)
    assert "going on at the end" in caplog.text


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_read_of_a_ledger_that_is_shorter_than_its_row_says_raises(world: World, lost: int) -> None:
    """A length below what was acknowledged is an alarm, wherever the gap is (apache/bookkeeper#4812)."""
    process = _filled(world, ledgers=2, segments=3)
    del world.catalog.segment_rows[LedgerId(0)][lost]
    with pytest.raises(MissingData, match=f"ledger 0: expected segments for 6 entries, found none at entry {2 * lost}"):
        list(process.scan(world.topic))
    assert len(list(process.scan(world.topic, from_position=Position(LedgerId(1), 0)))) == 6
    if lost < 2:  # behind the gap there is nothing to miss
        assert len(list(process.scan(world.topic, from_position=Position(LedgerId(0), 2 * lost + 2)))) == 10 - 2 * lost


@pytest.mark.parametrize("columns", [["payload"], ["key"]])
def test_read_that_misses_an_object_of_a_listed_ledger_is_data_loss(world: World, columns: list[str]) -> None:
    """Named, and never skipped in silence; what stands before it is read."""
    process = _filled(world)
    lost = segment_key(LedgerId(1), 1)
    world.objects.delete([lost])
    with pytest.raises(MissingData, match=lost):
        list(process.scan(world.topic, columns=columns))
    scan = process.scan(world.topic, columns=columns)
    assert [next(scan).position for _ in range(6)] == _all(world)[:6]


def test_read_of_a_large_lost_object_by_ranges_is_data_loss(world: World) -> None:
    """A range read finds the loss as a whole read does."""
    process = _large(world)
    world.objects.delete(world.segments())
    with pytest.raises(MissingData):
        list(process.scan(world.topic, columns=["key"]))


def _replace_object(world: World, key: str, body: bytes) -> None:
    world.objects.delete([key])
    world.objects.put_if_absent(key, body, metadata={})


@pytest.mark.parametrize("columns", [["payload"], ["key"]])
def test_read_of_an_object_with_another_row_count_is_corrupt(world: World, columns: list[str]) -> None:
    """Entry ids are counted in the segment: one row more or less would shift every id behind it."""
    process = _filled(world, ledgers=1)
    key = segment_key(LedgerId(0), 1)
    body = encode_segment([plain(b"one alone")], publish_ms=1)
    _replace_object(world, key, body)
    row = world.catalog.segment_rows[LedgerId(0)][1]
    world.catalog.segment_rows[LedgerId(0)][1] = replace(row, size_bytes=len(body), sha256=None)
    with pytest.raises(CorruptData, match="expected 2 entries, found 1"):
        list(process.scan(world.topic, columns=columns))


@pytest.mark.parametrize("columns", [["payload"], ["key"]])
@pytest.mark.parametrize("large", [True, False])
def test_read_of_an_object_of_another_size_is_corrupt(world: World, columns: list[str], large: bool) -> None:
    """Length is part of what the catalog knows."""
    process = _large(world) if large else _filled(world, ledgers=1)
    key = segment_key(LedgerId(0), 0)
    stored = world.objects.get(key)
    assert stored is not None
    _replace_object(world, key, stored.body[:-9])
    with pytest.raises(CorruptData, match=key):
        list(process.scan(world.topic, columns=columns))


def test_read_of_another_segment_in_the_objects_place_is_corrupt(world: World) -> None:
    """As many rows, well formed, and still not what was registered."""
    process = _filled(world, ledgers=1)
    key = segment_key(LedgerId(0), 0)
    _replace_object(world, key, encode_segment([plain(b"another", b"segment")], publish_ms=1))
    with pytest.raises(CorruptData, match="bytes, found"):
        list(process.scan(world.topic))


def test_read_of_bytes_that_are_no_segment_is_corrupt(world: World) -> None:
    """The object's name is in the error."""
    process = _filled(world, ledgers=1)
    key = segment_key(LedgerId(0), 0)
    stored = world.objects.get(key)
    assert stored is not None
    _replace_object(world, key, bytes(len(stored.body)))
    with pytest.raises(CorruptData, match=key):
        list(process.scan(world.topic))


@pytest.mark.parametrize(
    ("operation", "columns"), [(StoreOperation.GET, ["payload"]), (StoreOperation.GET_RANGE, ["key"])]
)
def test_read_while_the_store_is_away_is_retryable(world: World, operation: StoreOperation, columns: list[str]) -> None:
    """No answer is never taken for absence."""
    process = _large(world)
    world.objects.plan(Fault(operation=operation, kind=FaultKind.BEFORE))
    with pytest.raises(StoreUnavailable):
        list(process.scan(world.topic, columns=columns))
    assert len(list(process.scan(world.topic, columns=columns))) == 100


def test_read_abandoned_scan_leaves_the_process_usable(world: World) -> None:
    """What was fetched ahead is dropped."""
    process = _filled(world)
    scan = process.scan(world.topic)
    for _ in range(3):
        next(scan)
    close: Any = scan
    close.close()
    assert len(world.entries(process)) == 12


def test_read_while_others_append_and_trim_is_in_order_and_without_repeats(world: World) -> None:
    """Each entry at most once, ascending, whatever goes on in the list."""
    process = _filled(world, ledgers=4)
    other = world.process(RollPolicy(max_entries=4))
    for nth in range(4):
        world.objects.plan(
            Fault(
                operation=StoreOperation.GET,
                kind=FaultKind.CALL,
                matches=lambda key, nth=nth: key == segment_key(LedgerId(nth), 0),  # type: ignore[misc]
                action=once(lambda: other.append(world.topic, plain(b"later"))),
            )
        )
    positions = [entry.position for entry in process.scan(world.topic)]
    assert positions == sorted(set(positions))
    assert set(positions) >= {_at(ledger, entry) for ledger in range(4) for entry in range(4)}
