"""Times as the command line takes and shows them: RFC 3339, or milliseconds since 1970."""

import re
from datetime import UTC, datetime

_RFC3339 = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})"
)
_LATEST_MS = 253_402_300_799_999  # the end of the year 9999
_RULE = "an RFC 3339 time with its zone, or milliseconds since 1970, up to the year 9999"


def delivery_ms(value: object) -> int:
    """A delivery time as milliseconds since 1970; a fraction of one is rounded up, so that nothing is early.

    Raises:
        ValueError: The rule, when the value breaks it.
    """
    found = _from_text(value) if isinstance(value, str) else value
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= _LATEST_MS:
        raise ValueError(_RULE)
    return found


def _from_text(text: str) -> int:
    found = _RFC3339.fullmatch(text.upper())
    if not found:
        raise ValueError(_RULE)
    try:
        whole = datetime.fromisoformat(found["time"] + found["zone"].replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(_RULE) from None
    nanoseconds = int((found["fraction"] or "").ljust(9, "0"))
    return int(whole.timestamp()) * 1_000 - (-nanoseconds // 1_000_000)


def shown_us(moment_us: int) -> str:
    """Microseconds since 1970 as RFC 3339, UTC."""
    seconds, rest = divmod(moment_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest).isoformat().replace("+00:00", "Z")
