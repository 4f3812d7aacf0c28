"""JSON lines as entries: what is read, and what is refused with its line and field."""

import base64
import io
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidInput
from logstore.log.entries import NewEntry
from workers.cli.append import (
    MAX_LINE_BYTES,
    LatestDeliveryTime,
    open_rereadable,
    parse_delivery_time,
    parse_entry_lines,
)
from workers.human_readable_values import format_time_to_microsecond


def _parse(content: bytes, *, producer: bool = True) -> list[NewEntry]:
    return [entry for _, entry in parse_entry_lines(io.BytesIO(content), with_producer=producer)]


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_ENTRIES = st.builds(
    NewEntry,
    payload=st.binary(),
    key=st.none() | _TEXT,
    deliver_at_ms=st.none() | st.integers(0, 253_402_300_799_999),
    properties=st.dictionaries(_TEXT, _TEXT),
)


@given(st.lists(_ENTRIES), st.booleans())
def test_parse_lines_any_entries_written_as_json_come_back(entries: list[NewEntry], ascii_only: bool) -> None:
    """Writing entries as JSON lines and parsing them is the identity."""
    lines = [json.dumps(_line(entry), ensure_ascii=ascii_only) for entry in entries]
    assert _parse("\n".join(lines).encode()) == entries


def _line(entry: NewEntry) -> dict[str, object]:
    return {
        "key": entry.key,
        "payload_b64": base64.b64encode(entry.payload).decode(),
        "deliver_at": entry.deliver_at_ms,
        "properties": dict(entry.properties),
    }


def test_parse_lines_text_payload_and_sequence_are_read() -> None:
    """The plain form works, with blank lines and any line ends."""
    found = _parse(b'{"payload": "\xc3\xa9", "sequence_id": 3}\r\n\n{"payload": "", "sequence_id": 9}')
    assert [(one.payload, one.sequence_id) for one in found] == [("é".encode(), 3), (b"", 9)]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"payload": "x"', "line 2"),
        (b'{"payload": "\xff"}', "line 2"),
        (b'{"payload": NaN}', "line 2"),
        (b'{"payload": "x", "deliver_at": Infinity}', "line 2"),
        (b'{"payload": "x", "payload": "y"}', "line 2"),
        (b'{"payload": "x", "properties": {"a": "1", "a": "2"}}', "line 2"),
        (b'[{"payload": "x"}]', "line 2"),
        (b'"text"', "line 2"),
        (b"[" * 100_000, "line 2"),
        (b'{"payload": ' + b"9" * 5_000 + b"}", "line 2"),
        (b"{}", "line 2: payload"),
        (b'{"payload": "x", "payload_b64": "eA=="}', "line 2: payload"),
        (b'{"payload": 5}', "line 2: payload"),
        (b'{"payload": "\\ud800"}', "line 2: payload"),
        (b'{"payload_b64": "eA"}', "line 2: payload_b64"),
        (b'{"payload_b64": "e A=="}', "line 2: payload_b64"),
        (b'{"payload_b64": "\xc3\xa9"}', "line 2: payload_b64"),
        (b'{"payload": "x", "key": 1}', "line 2: key"),
        (b'{"payload": "x", "deliver_at": "tomorrow"}', "line 2: deliver_at"),
        (b'{"payload": "x", "deliver_at": "2026-11-20T10:00:00"}', "line 2: deliver_at"),
        (b'{"payload": "x", "deliver_at": "2026-02-30T10:00:00Z"}', "line 2: deliver_at"),
        (b'{"payload": "x", "deliver_at": -1}', "line 2: deliver_at"),
        (b'{"payload": "x", "deliver_at": 1.5}', "line 2: deliver_at"),
        (b'{"payload": "x", "deliver_at": true}', "line 2: deliver_at"),
        (b'{"payload": "x", "sequence_id": -1}', "line 2: sequence_id"),
        (b'{"payload": "x", "sequence_id": true}', "line 2: sequence_id"),
        (b'{"payload": "x", "sequence_id": 9223372036854775808}', "line 2: sequence_id"),
        (b'{"payload": "x", "sequence_id": 1}', "line 2: sequence_id"),
        (b'{"payload": "x", "properties": ["a"]}', "line 2: properties"),
        (b'{"payload": "x", "properties": {"a": 1}}', "line 2: properties"),
        (b'{"payload": "x", "propertis": {}}', "line 2: propertis"),
    ],
)
def test_parse_lines_bad_line_names_line_and_field(line: bytes, field: str) -> None:
    """The first bad line is named with its field, whatever is wrong with it."""
    with pytest.raises(InvalidInput) as refused:
        _parse(b'{"payload": "fine", "sequence_id": 1}\n' + line)
    assert refused.value.field == field


@pytest.mark.parametrize("later_ms", [-5_000, 0, 1])
def test_parse_lines_delivery_time_beyond_the_limit_is_refused_by_line(later_ms: int) -> None:
    """Up to the limit and in the past it is taken; what lies beyond is named with line, field and limit."""
    limit = LatestDeliveryTime(limit_s=3 * 86_400, latest_ms=1_800_000_000_000)
    line = b'{"payload": "x"}\n{"payload": "x", "deliver_at": %d}' % (limit.latest_ms + later_ms)
    lines = parse_entry_lines(io.BytesIO(line), with_producer=False, limit=limit)
    if later_ms <= 0:
        assert [entry.deliver_at_ms for _, entry in lines] == [None, limit.latest_ms + later_ms]
        return
    with pytest.raises(InvalidInput, match=r"at most 3d ahead.* up to 2027-01-15T08:00:00Z") as refused:
        list(lines)
    assert refused.value.field == "line 2: deliver_at"


def test_delivery_limit_from_now_is_so_far_ahead_of_the_clock() -> None:
    """In milliseconds."""
    before = time.time_ns() // 1_000_000
    limit = LatestDeliveryTime.from_now(90)
    assert before + 90_000 <= limit.latest_ms <= time.time_ns() // 1_000_000 + 90_000


def test_parse_lines_sequence_id_without_producer_is_refused() -> None:
    """A sequence id means nothing without the producer whose it is."""
    with pytest.raises(InvalidInput, match="--producer"):
        _parse(b'{"payload": "x", "sequence_id": 0}', producer=False)


def test_parse_lines_line_too_long_is_refused() -> None:
    """A line that would fill the memory is not read to its end."""
    source = io.BytesIO(b'{"payload": "' + b"x" * (MAX_LINE_BYTES + 100) + b'"}')
    with pytest.raises(InvalidInput, match=f"at most {MAX_LINE_BYTES} bytes"):
        list(parse_entry_lines(source, with_producer=False))
    assert source.tell() <= MAX_LINE_BYTES + 2


def test_parse_lines_empty_file_gives_nothing() -> None:
    """No lines, no entries, no error."""
    assert _parse(b"") == []


def test_rereadable_pipe_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot seek is kept meanwhile."""
    end, begin = os.pipe()
    with os.fdopen(begin, "wb") as writer:
        writer.write(b"abc")
    with os.fdopen(end, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with open_rereadable("-") as source:
            first = source.read()
            source.seek(0)
            assert (first, source.read()) == (b"abc", b"abc")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "device"])
def test_rereadable_fifo_or_device_is_refused_without_being_read(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """To open it may block for ever, and to read it may never end."""
    path = tmp_path / "lines"
    make(path)
    with pytest.raises(InvalidInput, match=r"- for stdin, found .*: not a regular file"), open_rereadable(str(path)):
        pass


@pytest.mark.parametrize("byte", [b"x", b" "])
def test_rereadable_endless_line_of_stdin_is_not_kept(monkeypatch: pytest.MonkeyPatch, byte: bytes) -> None:
    """It is read to the bound of a line, and refused; what stands before it is no reason to read on."""
    stdin = io.TextIOWrapper(io.BufferedReader(_Endless(b'{"payload": "a"}\n', byte)))
    monkeypatch.setattr("sys.stdin", stdin)
    with (
        open_rereadable("-") as source,
        pytest.raises(InvalidInput, match=f"line 2: expected at most {MAX_LINE_BYTES} bytes"),
    ):
        list(parse_entry_lines(source, with_producer=False))


class _Endless(io.RawIOBase):
    def __init__(self, first: bytes, byte: bytes) -> None:
        self._first, self._byte = first, byte

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._first or self._byte * len(buffer)
        self._first = b""
        buffer[: len(piece)] = piece
        return len(piece)


def test_parse_lines_file_that_fails_while_it_is_read_names_the_option() -> None:
    """This one opens like any regular file, and the disk answers with an I/O error."""
    with (
        open_rereadable("/proc/self/mem") as source,
        pytest.raises(InvalidInput, match=r"^file: .* found 'line 1: Input/output error'$"),
    ):
        list(parse_entry_lines(source, with_producer=False))


@pytest.mark.parametrize("name", ["absent", "."])
def test_rereadable_no_file_names_the_option(tmp_path: Path, name: str) -> None:
    """A file that cannot be opened is bad input."""
    with pytest.raises(InvalidInput, match=r"^file: "), open_rereadable(str(tmp_path / name)):
        pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T00:00:01.0001Z", 1_001),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01t01:00:00.5+01:00", 500),
    ],
)
def test_delivery_ms_fraction_rounds_up(text: str, expected: int) -> None:
    """A delivery time is never earlier than what was asked for."""
    assert parse_delivery_time(text) == expected


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_shown_us_any_moment_reads_back(moment: datetime) -> None:
    """What is shown as RFC 3339 is read as the same moment, to the millisecond."""
    us = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000
    assert parse_delivery_time(format_time_to_microsecond(us)) * 1_000 == us
