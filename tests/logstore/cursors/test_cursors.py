"""Cursors against a plain set of acknowledged entries."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from logstore.cursors.cursor_state import (
    CursorSnapshot,
    CursorState,
    VisibleLedgerSpan,
    acknowledge,
    acknowledge_to,
    advance_mark_delete,
    pack_acknowledged,
    require_snapshot,
    seek,
    unpack_acknowledged,
)
from logstore.errors import CorruptData, InvalidInput, SnapshotNeeded
from logstore.positions import LedgerId, Position


def _at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), entry_id)


def _spans(*entries: int, first: int = 0, step: int = 1) -> list[VisibleLedgerSpan]:
    return [VisibleLedgerSpan(LedgerId(first + at * step), count) for at, count in enumerate(entries)]


@st.composite
def _logs(draw: st.DrawFn) -> list[VisibleLedgerSpan]:
    """Up to five listed ledgers, some empty, ids from 0 on with gaps."""
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    gaps = draw(st.lists(st.integers(1, 3), min_size=len(counts), max_size=len(counts)))
    ids = [sum(gaps[: at + 1]) - gaps[0] for at in range(len(counts))]
    return [VisibleLedgerSpan(LedgerId(ledger_id), count) for ledger_id, count in zip(ids, counts, strict=True)]


def _entries(spans: list[VisibleLedgerSpan]) -> list[Position]:
    return [_at(span.ledger_id, entry) for span in spans for entry in range(span.entries)]


def _before(spans: list[VisibleLedgerSpan]) -> CursorState:
    return CursorState(Position(spans[0].ledger_id, -1))


def _check_against(model: set[Position], state: CursorState, spans: list[VisibleLedgerSpan]) -> None:
    entries = _entries(spans)
    assert {position for position in entries if state.covers(position)} == model
    first_gap = next((position for position in entries if position not in model), None)
    assert all(position <= state.mark_delete for position in entries if first_gap is None or position < first_gap)
    assert first_gap is None or state.mark_delete < first_gap
    assert all(min(bits) > state.mark_delete.entry_id or ledger > state.mark_delete.ledger_id
               for ledger, bits in state.acknowledged.items())  # fmt: skip


@given(_logs(), st.data())
def test_cursor_any_acknowledgements_equal_a_set_of_entries(
    spans: list[VisibleLedgerSpan], data: st.DataObject
) -> None:
    """Whatever is acknowledged in whatever way, the cursor covers exactly that, and its mark is the frontier."""
    entries = _entries(spans)
    state, model = advance_mark_delete(_before(spans), spans), set[Position]()
    if not entries:
        return
    for _ in range(data.draw(st.integers(0, 5))):
        if data.draw(st.booleans()):
            chosen = data.draw(st.lists(st.sampled_from(entries)))
            state = acknowledge(state, chosen, spans)
            model |= set(chosen)
        else:
            limit = data.draw(st.sampled_from(entries))
            state = acknowledge_to(state, limit, spans)
            model |= {position for position in entries if position <= limit}
        state = CursorState(state.mark_delete, unpack_acknowledged(pack_acknowledged(state.acknowledged)))
        _check_against(model, state, spans)


@given(_logs(), st.data())
def test_cursor_order_of_acknowledgements_does_not_matter(spans: list[VisibleLedgerSpan], data: st.DataObject) -> None:
    """Acknowledgements of many consumers commute, alone or together, repeated or not."""
    entries = _entries(spans)
    chosen = data.draw(st.lists(st.sampled_from(entries))) if entries else []
    shuffled = data.draw(st.permutations(chosen))
    together = acknowledge(_before(spans), chosen, spans)
    one_by_one = _before(spans)
    for position in [*shuffled, *chosen]:
        one_by_one = acknowledge(one_by_one, [position], spans)
    assert one_by_one == together


@given(_logs(), st.data())
def test_cursor_missing_ledger_never_pins_the_frontier(spans: list[VisibleLedgerSpan], data: st.DataObject) -> None:
    """With the rest acknowledged, a ledger that was lost or trimmed holds nothing up (apache/pulsar#18620)."""
    entries = _entries(spans)
    acked = data.draw(st.lists(st.sampled_from(entries))) if entries else []
    state = acknowledge(_before(spans), acked, spans)
    lost = data.draw(st.sampled_from(spans))
    left = [span for span in spans if span != lost]
    state = acknowledge(state, [position for position in entries if position.ledger_id != lost.ledger_id], left)
    remaining = _entries(left)
    assert not remaining or state.mark_delete >= remaining[-1]
    assert lost.ledger_id not in state.acknowledged


def test_cursor_mark_never_moves_back() -> None:
    """An older cumulative acknowledgement, late, changes nothing."""
    spans = _spans(5)
    state = acknowledge_to(_before(spans), _at(0, 3), spans)
    assert acknowledge_to(state, _at(0, 1), spans) == state


def test_cursor_of_ledger_zero_is_an_ordinary_one() -> None:
    """Ledger id 0 and entry 0 are values, not absence (apache/bookkeeper#950)."""
    spans = _spans(3, 2)
    state = acknowledge(_before(spans), [_at(0, 1)], spans)
    assert state == CursorState(_at(0, -1), {LedgerId(0): BitMap([1])})
    assert not state.covers(_at(0, 0))
    assert acknowledge(state, [_at(0, 0)], spans).mark_delete == _at(0, 1)


def test_cursor_of_an_emptied_topic_moves_when_entries_come() -> None:
    """A cursor made before the first ledger stands before everything."""
    state = CursorState(_at(-1, -1))
    assert not state.covers(_at(0, 0))
    assert acknowledge(state, [_at(0, 0)], _spans(2)).mark_delete == _at(0, 0)


def test_cursor_acknowledging_what_was_trimmed_is_harmless() -> None:
    """A consumer that is slower than a forced detach gets no error."""
    spans = _spans(3, first=5)
    state = CursorState(_at(5, -1))
    assert acknowledge(state, [_at(2, 7)], spans) == state


_REFUSED: dict[str, Callable[[CursorState, list[VisibleLedgerSpan]], CursorState]] = {
    "beyond the end of a ledger": lambda state, spans: acknowledge(state, [_at(0, 3)], spans),
    "beyond the last ledger": lambda state, spans: acknowledge(state, [_at(9, 0)], spans),
    "before the first entry": lambda state, spans: acknowledge(state, [_at(0, -1)], spans),
    "cumulative beyond the end": lambda state, spans: acknowledge_to(state, _at(1, 2), spans),
    "cumulative in an empty log": lambda state, _spans: acknowledge_to(state, _at(0, 0), []),
    "seek two beyond the end": lambda _state, spans: seek(_at(1, 3), spans),
    "seek beyond the last ledger": lambda _state, spans: seek(_at(2, 0), spans),
}


@pytest.mark.parametrize("case", _REFUSED)
def test_cursor_position_that_no_entry_has_had_is_refused(case: str) -> None:
    """A mistaken position is an error and never an acknowledgement of the future."""
    spans = _spans(3, 2)
    with pytest.raises(InvalidInput, match=r"^position: expected an entry "):
        _REFUSED[case](_before(spans), spans)


@given(_logs(), st.data())
def test_cursor_after_seek_next_entry_is_the_position(spans: list[VisibleLedgerSpan], data: st.DataObject) -> None:
    """Everything before it is acknowledged, nothing from it on."""
    entries = _entries(spans)
    if not entries:
        return
    target = data.draw(st.sampled_from(entries))
    state = seek(target, spans)
    _check_against({position for position in entries if position < target}, advance_mark_delete(state, spans), spans)


def test_cursor_seek_to_the_end_is_behind_the_last_entry() -> None:
    """One beyond the last entry is where the next one will be."""
    spans = _spans(3)
    assert seek(_at(0, 3), spans).mark_delete == _at(0, 2)


def test_cursor_seek_is_refused_with_the_positions_that_there_are() -> None:
    """Up to the one behind the last entry; in a topic without ledgers there is none."""
    with pytest.raises(InvalidInput, match="the one behind its last, up to 0:3, found '0:4'"):
        seek(_at(0, 4), _spans(3))
    with pytest.raises(InvalidInput, match="of a topic with a ledger, found '0:0'"):
        seek(_at(0, 0), ())


@given(st.dictionaries(st.integers(-1, 2**63 - 1), st.sets(st.integers(0, 2**32 - 1), max_size=9), max_size=4))
def test_cursor_bitmaps_survive_packing(acknowledged: dict[int, set[int]]) -> None:
    """Single acknowledgements survive a restart, in one canonical form."""
    bits = {LedgerId(ledger): BitMap(entries) for ledger, entries in acknowledged.items()}
    packed = pack_acknowledged(bits)
    assert unpack_acknowledged(packed) == bits
    assert pack_acknowledged(dict(reversed(bits.items()))) == packed


@pytest.mark.parametrize("cut", [1, 11, 12, -1])
def test_cursor_bitmaps_cut_short_are_corrupt(cut: int) -> None:
    """Half of an acknowledgement state is no state."""
    packed = pack_acknowledged({LedgerId(0): BitMap(range(100))})
    with pytest.raises(CorruptData, match="cursor"):
        unpack_acknowledged(packed[:cut])


def test_request_that_lacks_a_cursors_snapshot_is_told_which_one() -> None:
    """A row that is the whole needs none, and passes over what an older request carries."""
    snapshot = CursorSnapshot(ledger_id=LedgerId(7), acknowledged={})
    assert require_snapshot("s", snapshot, needed=None) is None
    assert require_snapshot("s", snapshot, needed=LedgerId(7)) is snapshot
    for one in (None, snapshot):
        with pytest.raises(SnapshotNeeded, match="expected the snapshot in ledger 8") as refused:
            require_snapshot("s", one, needed=LedgerId(8))
        assert refused.value.needed == 8
