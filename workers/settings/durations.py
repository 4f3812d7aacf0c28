"""Durations as people write them: `90s`, `15m`, `24h`, `3d`."""

import re

from logstore.errors import InvalidInput

_FORM = re.compile(r"(?P<count>[0-9]{1,12})(?P<unit>[smhd])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}  # largest first: `format_duration` takes the first that fits
LONGEST_S = 36_500 * 86_400
"""Longest duration, seconds, inclusive."""
_EXPECTED = "a duration such as 90s, 15m, 24h or 3d, at most 36500d"


def parse_duration(text: str, field: str) -> int:
    """Read a duration as seconds, 0 to 36,500 days inclusive.

    Args:
        text: A whole number with one unit; no sign, no fraction, no sum of several.
        field: What to call it in an error.

    Raises:
        InvalidInput: Any other text.
    """
    found = _FORM.fullmatch(text.strip()) if text.isascii() else None
    seconds = int(found["count"]) * _SECONDS[found["unit"]] if found else -1
    if not 0 <= seconds <= LONGEST_S:
        raise InvalidInput(field, expected=_EXPECTED, found=text)
    return seconds


def format_duration(seconds: int) -> str:
    """Write seconds (0 or more) with the largest unit that loses nothing; `parse_duration` reads it back."""
    if seconds == 0:
        return "0s"
    unit = next(unit for unit, size in _SECONDS.items() if seconds % size == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"
