"""Rows of delayed messages."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from logstore.delayed.delayed_rows import COLUMNS, DelayedRows
from logstore.errors import CorruptData
from logstore.positions import LedgerId, Position
from tests.logstore.delayed.rows import made

_LEDGERS = st.one_of(st.integers(0, 4), st.sampled_from([2**40, 2**62])).map(LedgerId)
_POSITIONS = st.builds(Position, _LEDGERS, st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)))
_MESSAGES = st.dictionaries(_POSITIONS, st.integers(0, 9), max_size=60).map(
    lambda found: [(time, position) for position, time in found.items()]
)


@given(messages=_MESSAGES, now_ms=st.integers(-1, 10))
def test_rows_of_messages_in_any_order_are_sorted_and_tell_what_is_due(
    messages: list[tuple[int, Position]], now_ms: int
) -> None:
    """Ascending by time, ledger and entry; what is due stands first."""
    rows = DelayedRows.from_messages(messages)
    expected = sorted((time, position) for time, position in messages)
    assert list(zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True)) == expected
    assert rows.count_due(now_ms) == sum(1 for time, _ in messages if time <= now_ms)
    shuffled = np.random.default_rng(len(rows)).permutation(len(rows))
    assert DelayedRows.from_columns(*(column[shuffled] for column in rows.columns())) == rows


@given(messages=_MESSAGES, gone=st.lists(_POSITIONS), some=st.integers(1, 3))
def test_rows_without_bitmaps_are_those_whose_entries_are_in_none(
    messages: list[tuple[int, Position]], gone: list[Position], some: int
) -> None:
    """Near and far entries, and ledgers without a bitmap."""
    left_out = {*gone, *(position for _, position in messages[::some])}
    bitmaps: dict[LedgerId, BitMap] = {}
    for position in left_out:
        bitmaps.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
    rows = DelayedRows.from_messages(messages)
    assert rows.drop_entries(bitmaps) == DelayedRows.from_messages([one for one in messages if one[1] not in left_out])


@pytest.mark.parametrize(("count", "ledgers"), [(40, 40), (6_000, 40), (6_000, 3), (90, 3)])
def test_rows_of_few_and_many_ledgers_are_left_out_alike(count: int, ledgers: int) -> None:
    """With one entry a ledger and with many: each number of them has a way of its own."""
    rows = made(count, range(ledgers))
    whole = rows.to_bitmaps()
    bitmaps = {ledger_id: BitMap([*list(whole[ledger_id])[::2], 10**6]) for ledger_id in whole if ledger_id % 3}
    found = rows.drop_entries(bitmaps)
    assert found.positions() == [at for at in rows.positions() if at.entry_id not in bitmaps.get(at.ledger_id, ())]
    assert 0 < len(found) < len(rows)


@given(messages=_MESSAGES)
def test_the_bitmaps_of_rows_hold_their_entries(messages: list[tuple[int, Position]]) -> None:
    """One a ledger, ascending by ledger."""
    found = DelayedRows.from_messages(messages).to_bitmaps()
    assert list(found) == sorted(found)
    held = {Position(ledger_id, entry_id) for ledger_id, bits in found.items() for entry_id in bits}
    assert held == {position for _, position in messages}


def test_a_table_of_rows_reads_back_and_an_odd_one_is_refused() -> None:
    """Nulls, other types, a missing column, and rows that are not sorted are no rows."""
    rows = made(100, [1, 2])
    table = rows.to_table()
    assert DelayedRows.from_table(table, name="x") == rows
    odd = [
        table.drop_columns(["entry_id"]),
        table.cast(pa.schema([(name, pa.int32() if name == "entry_id" else pa.int64()) for name in COLUMNS])),
        pa.table({name: pa.array([1, None], pa.int64()) for name in COLUMNS}),
        table.take(list(range(99, -1, -1))),
        pa.table({name: pa.array([1, 1], pa.int64()) for name in COLUMNS}),
    ]
    for one in odd:
        with pytest.raises(CorruptData, match="x: expected"):
            DelayedRows.from_table(one, name="x")


def test_an_entry_beyond_32_bits_fits_no_bitmap_and_is_refused() -> None:
    """It would be another entry."""
    for odd in (-1, 2**32):
        with pytest.raises(OverflowError, match="32 bits"):
            DelayedRows.from_tuples([(1, 1, odd), (1, 1, 5)]).to_bitmaps()
