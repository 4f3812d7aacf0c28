"""JSON lines as entries: one object a line, every line checked before anything is written.

A file is read twice, so that its size does not matter: once to check all of it, once to append. Stdin is kept in a
temporary file meanwhile.
"""

import base64
import binascii
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import IO, NoReturn, TypeVar, cast

from logstore.errors import InvalidInput
from logstore.log.entries import NewEntry
from logstore.whole_files import open_regular_file
from workers.pages.texts import format_time_s
from workers.settings import format_duration

MAX_LINE = 16 * 1024 * 1024
"""Longest line, bytes, inclusive: one line must not fill the memory."""

_T = TypeVar("_T")

_FIELDS = ("key", "payload", "payload_b64", "deliver_at", "sequence_id", "properties")
_MAX_INT = 2**63 - 1
_IN_MEMORY = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_RFC3339 = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})"
)
_LATEST_MS = 253_402_300_799_999  # the end of the year 9999
_RULE = "an RFC 3339 time with its zone, or a number of milliseconds since 1970, up to the year 9999"


@contextmanager
def rereadable(path: str) -> Iterator[IO[bytes]]:
    """Open a regular file, or stdin for `-`, so that it can be read twice from its beginning.

    Raises:
        InvalidInput: It cannot be opened or, if it can be read once only, not be read.
    """
    if path == "-":
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as copy:
            _copy_stdin(copy)
            yield copy
        return
    with ExitStack() as opened:
        with _refusing_unreadable(path):
            source = opened.enter_context(open_regular_file(Path(path)))
        yield source


def _copy_stdin(copy: IO[bytes]) -> None:
    """Copy stdin, up to the first line that is too long: that line is refused anyway."""
    stdin = cast("BufferedReader", sys.stdin.buffer)
    line_bytes, piece = 0, b"-"
    while piece and line_bytes <= MAX_LINE + 2:
        with _refusing_unreadable("-"):
            piece = stdin.read1(_PIECE_BYTES)  # `read` would meet Ctrl-C only once all of it is there
        copy.write(piece)
        line_bytes = len(piece) - piece.rfind(b"\n") - 1 + (0 if b"\n" in piece else line_bytes)
    copy.seek(0)


@contextmanager
def _refusing_unreadable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        expected = "a file that can be read, or - for stdin"
        raise InvalidInput("file", expected=expected, found=f"{path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class DeliveryLimit:
    """How late a message may be delivered. A time that lies further ahead is more likely a mistake in its unit."""

    limit_s: int
    latest_ms: int  # milliseconds since 1970, inclusive

    @staticmethod
    def from_now(limit_s: int) -> "DeliveryLimit":
        """So far ahead of this process's clock."""
        return DeliveryLimit(limit_s, time.time_ns() // 1_000_000 + limit_s * 1_000)

    def check(self, deliver_at_ms: int) -> int:
        """The time, if it lies within the limit; times that have passed do.

        Raises:
            ValueError: The rule, when it lies further ahead.
        """
        if deliver_at_ms > self.latest_ms:
            limit, latest = format_duration(self.limit_s), format_time_s(self.latest_ms * 1_000)
            raise ValueError(f"a time at most {limit} ahead, the setting delayed_limit: up to {latest}")
        return deliver_at_ms


def parse_lines(
    source: IO[bytes], *, with_producer: bool, limit: DeliveryLimit | None = None
) -> Iterator[tuple[int, NewEntry]]:
    """Entries with their line numbers, which count from 1; lines of white space are passed over.

    Args:
        source: Bytes, read as the iterator is drawn.
        with_producer: Whether sequence ids have a meaning; they are refused otherwise.
        limit: Delivery times that lie further ahead are refused.

    Raises:
        InvalidInput: `line N: field`, at the first line that is not an entry, or `file`, at one that cannot be read.
    """
    before = -1
    for number, raw in _read_lines(source):
        if not raw.strip() and len(raw) <= MAX_LINE:
            continue
        entry = parse_line(raw, number, limit)
        if entry.sequence_id is not None:
            if not with_producer:
                _refuse(number, "sequence_id", "--producer beside sequence ids", entry.sequence_id)
            if entry.sequence_id <= before:
                _refuse(number, "sequence_id", f"more than {before}, the one before", entry.sequence_id)
            before = entry.sequence_id
        yield number, entry


def _read_lines(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    for number in count(1):
        with _refusing_unreadable(f"line {number}"):
            raw = source.readline(MAX_LINE + 2)
        if not raw:
            return
        yield number, raw


def parse_line(raw: bytes, number: int, limit: DeliveryLimit | None = None) -> NewEntry:
    """One line as an entry.

    Raises:
        InvalidInput: `line N`, or `line N: field`, with what was expected and what was found.
    """
    fields = {name: value for name, value in _object(raw, number).items() if value is not None}
    for name in fields:
        if name not in _FIELDS:
            nearest = get_close_matches(name, _FIELDS, n=1, cutoff=0.0)[0]
            _refuse(number, name, f"a known field (nearest: {nearest})", name)
    return NewEntry(
        payload=_payload(fields, number),
        key=_optional(fields, "key", number, _text),
        deliver_at_ms=_optional(fields, "deliver_at", number, lambda value: _delivery(value, limit)),
        sequence_id=_optional(fields, "sequence_id", number, _sequence),
        properties=_optional(fields, "properties", number, _properties) or {},
    )


def _object(raw: bytes, number: int) -> Mapping[str, object]:
    if len(raw.rstrip(b"\r\n")) > MAX_LINE:
        raise InvalidInput(f"line {number}", expected=f"at most {MAX_LINE} bytes", found=f"{len(raw)} or more")
    try:
        text = raw.decode("utf-8")
        found = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"line {number}", expected="UTF-8 text", found=raw[error.start : error.end]) from None
    except json.JSONDecodeError as error:
        expected = f"JSON ({error.msg} at column {error.colno})"
        raise InvalidInput(f"line {number}", expected=expected, found=text.strip()) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"line {number}", expected=f"JSON ({error})", found=text.strip()) from None
    if not isinstance(found, dict):
        raise InvalidInput(f"line {number}", expected="a JSON object", found=found)
    return found


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} only once")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"no {name}")


def _optional(fields: Mapping[str, object], name: str, number: int, convert: Callable[[object], _T]) -> _T | None:
    if name not in fields:
        return None
    try:
        return convert(fields[name])
    except ValueError as error:
        _refuse(number, name, str(error), fields[name])


def _payload(fields: Mapping[str, object], number: int) -> bytes:
    if ("payload" in fields) == ("payload_b64" in fields):
        found = sorted(fields)
        _refuse(number, "payload", "either payload or payload_b64", found)
    text = _optional(fields, "payload", number, _text)
    if text is not None:
        return text.encode()
    packed = _optional(fields, "payload_b64", number, _base64)
    assert packed is not None
    return packed


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("text")  # noqa: TRY004 - the caller makes one refusal of all of these
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("text that UTF-8 can hold") from None
    return value


def _base64(value: object) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("base64 with its padding") from None


def _sequence(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INT:
        raise ValueError("a whole number from 0 to 2**63 - 1")
    return value


def _properties(value: object) -> dict[str, str]:
    rule = "an object whose values are text"
    if not isinstance(value, dict):
        raise ValueError(rule)  # noqa: TRY004 - as above
    try:
        return {_text(name): _text(item) for name, item in value.items()}
    except ValueError:
        raise ValueError(rule) from None


def _refuse(number: int, field: str, expected: str, found: object) -> NoReturn:
    raise InvalidInput(f"line {number}: {field}", expected=expected, found=found)


def _delivery(value: object, limit: DeliveryLimit | None) -> int:
    found = delivery_ms(value)
    return found if limit is None else limit.check(found)


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
