"""Positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput
from logstore.positions import LedgerId, Position

_IDS = st.integers(0, 2**63 - 1)


@given(_IDS, st.integers(-1, 2**63 - 1))
def test_position_text_round_trips(ledger_id: int, entry_id: int) -> None:
    """Boundary ids (0, -1, the largest) are ordinary values (apache/bookkeeper#950)."""
    position = Position(LedgerId(ledger_id), entry_id)
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:", ":1", "01:2", "1:02", "1:-2", "-1:0", "1:2:3", " 1:2", "1:2\n", "1:+2", "٣:1", f"{2**63}:0"],
)
def test_position_of_another_form_is_refused(text: str) -> None:
    """One position has one text."""
    with pytest.raises(InvalidInput, match=r"^position: "):
        Position.parse(text)


def test_position_with_thousands_of_digits_is_refused_like_any_other() -> None:
    """Python refuses to convert such a number with an error of its own, which no caller expects."""
    with pytest.raises(InvalidInput, match=r"^from: "):
        Position.parse("9" * 5000 + ":0", field="from")


@given(_IDS, _IDS, _IDS, _IDS)
def test_positions_order_by_ledger_and_then_entry(a: int, b: int, c: int, d: int) -> None:
    """The order of positions is the order of entries in a topic."""
    assert (Position(LedgerId(a), b) < Position(LedgerId(c), d)) == ((a, b) < (c, d))
