"""Durations as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput
from workers.settings import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("24h", 86_400), ("3d", 259_200), ("0s", 0), (" 5s ", 5)]
)
def test_parse_duration_known_unit_gives_seconds(text: str, seconds: int) -> None:
    """Every unit of the contract is read."""
    assert parse_duration(text, "retention") == seconds


@pytest.mark.parametrize(
    "text", ["", "90", "-5s", "1.5h", "1h30m", "5 s", "5w", "s", "٣s", "999999999999d", "36501d", "1e3s", "5S"]
)
def test_parse_duration_other_text_names_the_field(text: str) -> None:
    """Negative, malformed and absurd durations are refused, naming the field."""
    with pytest.raises(InvalidInput, match="retention: expected a duration") as refused:
        parse_duration(text, "retention")
    assert refused.value.field == "retention"


@given(st.integers(min_value=0, max_value=36_500 * 86_400))
def test_format_duration_any_length_reads_back(seconds: int) -> None:
    """What is shown can be typed again."""
    assert parse_duration(format_duration(seconds), "field") == seconds
