"""Loaded segments in few bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.delayed.delayed_rows import CompressedRows, DelayedRows
from tests.logstore.delayed.rows import Kind, made

_NUMBERS = st.one_of(
    st.integers(0, 3), st.integers(0, 300), st.integers(0, 70_000), st.integers(0, 2**33), st.integers(0, 2**62)
)


@given(
    rows=st.lists(st.tuples(_NUMBERS, _NUMBERS, _NUMBERS), max_size=50, unique=True),
    repeated=st.integers(1, 60),
    cut=st.tuples(st.integers(0, 3_000), st.integers(0, 3_000)),
)
def test_a_compact_segment_gives_back_any_part_of_any_rows(
    rows: list[tuple[int, int, int]], repeated: int, cut: tuple[int, int]
) -> None:
    """Whatever the numbers are, over more than one block, and whatever does not fit the others."""
    many = [(time, ledger, entry + extra) for time, ledger, entry in rows for extra in range(repeated)]
    expected = DelayedRows.from_tuples(set(many))
    compact = CompressedRows.from_rows(expected)
    assert len(compact) == len(expected)
    assert compact.decode_rows() == expected
    start, stop = sorted(cut)
    assert compact.decode_rows(start, stop) == expected.slice(start, stop)
    assert [compact.deliver_at_ms(number) for number in range(len(expected))] == expected.deliver_at_ms.tolist()


@pytest.mark.parametrize(("kind", "most"), [("random", 6.0), ("delay", 2.0), ("minute", 2.0)])
def test_a_loaded_segment_takes_few_bytes_a_message(kind: Kind, most: float) -> None:
    """Messages of one delay and of whole minutes 2 at most; random ones need their entry ids."""
    rows = made(30_000, [1, 2, 3], kind=kind)
    assert CompressedRows.from_rows(rows).memory_bytes / len(rows) <= most


def test_rows_with_nothing_in_common_take_12_bytes_each_at_most() -> None:
    """Each message in a ledger of its own, at any time of years, at any entry."""
    random = np.random.default_rng(1)
    rows = DelayedRows.from_columns(*(random.integers(0, 2**32 - 1, 50_000) for _ in range(3)))
    assert CompressedRows.from_rows(rows).memory_bytes / len(rows) <= 12.1
