"""Tables: no wider than a terminal, nothing lost where all was asked for, colours on a terminal only."""

import gc
import io
import os
import pty
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from logstore.errors import StoreUnavailable
from logstore.ports.catalog.log import Ledger
from logstore.positions import LedgerId
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.cli.output import Answer, ConvertedRows, SpooledRows, write_answer
from workers.cli.tables import draw_fields, draw_table

_LONG = f"persistent://public/default/{'long-' * 33}end"
_VALUES = st.none() | st.booleans() | st.integers(0, 2**63) | st.text(max_size=300) | st.lists(st.text(max_size=9))
_ROWS = st.lists(st.tuples(*[_VALUES] * 6), min_size=1, max_size=4).map(
    lambda found: [
        dict(zip(("name", "ledger_id", "state", "bytes", "at", "problem"), row, strict=True)) for row in found
    ]
)


@given(rows=_ROWS, width=st.integers(40, 200))
def test_table_of_anything_is_no_wider_than_asked(rows: list[dict[str, object]], width: int) -> None:
    """Whatever the cells hold, wide characters and control characters too."""
    for line in [*draw_table(rows, width=width, columns_below=("problem",)), *draw_fields(rows[0], width=width)]:
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable()


@given(names=st.lists(st.text("abcdefgh:/-", min_size=1, max_size=300), min_size=1, max_size=4))
def test_table_without_a_width_holds_every_name_whole(names: list[str]) -> None:
    """`--wide` cuts nothing, and keeps each row on one line."""
    rows = [{"name": name, "problem": name[::-1]} for name in names]
    lines = list(draw_table(rows, width=None, columns_below=("problem",)))
    assert [line.plain.split() for line in lines[2:]] == [[name, name[::-1]] for name in names]


def test_numbers_of_one_column_are_written_alike() -> None:
    """One with commas lets all have them; a column of small ones has none."""
    lines = list(draw_table([{"bytes": 2_773, "objects": 4_100}, {"bytes": 8_904_000, "objects": 7}], width=None))
    assert [line.plain.split() for line in lines[2:]] == [["2,773", "4100"], ["8,904,000", "7"]]


def test_table_short_of_room_cuts_names_in_their_middle_and_keeps_numbers_states_and_the_error() -> None:
    """Times are shown to the minute; ids have no commas; the error stands beneath its row, in whole."""
    error = "METADATA_MISMATCH: expected the owner of somebody, found another one's " + "x" * 90
    row = {
        "id": 123456,
        "topic": _LONG,
        "state": "DEAD_LETTERED",
        "bytes": 1234567,
        "at": "2026-11-20T15:27:24.661562Z",
    }
    heading, _, told, *beneath = [
        line.plain for line in draw_table([{**row, "error": error}], width=80, columns_below=("error",))
    ]
    assert heading.split() == ["id", "topic", "state", "bytes", "at"]
    assert told.split()[0] == "123456"
    assert told.split()[2:] == ["DEAD_LETTERED", "1,234,567", "2026-11-20", "15:27"]
    head, tail = told.split()[1].split("…")
    assert _LONG.startswith(head)
    assert _LONG.endswith(tail)
    assert "".join(beneath).replace(" ", "") == error.replace(" ", "")


def test_table_leaves_a_name_with_a_time_in_it_as_it_is_and_cuts_the_first_column_last() -> None:
    """What stands first is typed again, mostly."""
    name = "sweep-deletions-2026-11-22T02:47:00Z"
    row = {"name": name, "value": "v" * 60, "origin": "stack in /tmp"}
    (told,) = [line.plain for line in draw_table([row], width=80)][2:3]
    assert told.split()[0] == name
    assert "…" in told.split()[1]
    assert list(draw_table([{"name": name}], width=80))[2].plain == f" {name}"


def test_lists_of_every_command_fit_80_columns_and_wide_shows_all(run: Run, services: FakeCommandServices) -> None:
    """Long names and errors, large numbers; `--wide` in any place."""
    assert run("topic", "create", _LONG).exit_code == 0
    run("topic", "subscribe", _LONG, "s" * 120)
    services.log.deletions = 3
    services.health = [{"name": "s3", "ok": False, "detail": _LONG}]
    lists = [
        ("topic", "list"),
        ("topic", "show", _LONG),
        ("ledger", "list", _LONG),
        ("deletion", "list"),
        ("workflow", "list"),
        ("schedule", "list"),
        ("status",),
    ]
    for line in lists:
        told = run(*line).stdout
        assert max(map(cell_len, told.splitlines())) <= 80, told
    assert _LONG not in run("topic", "list").stdout
    for form in (("--wide", "topic", "list"), ("topic", "--wide", "list"), ("topic", "list", "--wide")):
        assert _LONG in run(*form).stdout
    assert "max read position" in run("topic", "list", "--wide").stdout


def test_config_is_never_cut_where_no_terminal_shows_it(run: Run) -> None:
    """A value is there to be used again: `sexton config show | grep home`."""
    where = {one["name"]: one["value"] for one in document(run("config", "show", "--json"))}
    assert len(where["home"]) > 40
    assert where["home"] in run("config", "show").stdout


def _on_a_terminal(answer: Answer) -> str:
    """What a terminal gets to see."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stdout:
        write_answer(answer, as_json=False, stdout=stdout)
    told = b""
    with os.fdopen(ours, "rb", buffering=0) as screen, suppress(OSError):  # EIO: all is read, and nobody writes
        while piece := screen.read(65_536):
            told += piece
    return told.decode()


def test_states_have_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets none, nor does a terminal whose owner wants none."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    answer = Answer(document=[{"id": 1, "state": "DEAD_LETTERED", "name": "DELETED"}, {"id": 2, "state": "DELETED"}])
    told = _on_a_terminal(answer)
    assert "\x1b[31mDEAD_LETTERED\x1b[0m" in told
    assert "\x1b[32mDELETED\x1b[0m" in told
    assert told.count("\x1b[32m") == 1, "a name is no state"
    piped = io.StringIO()
    write_answer(answer, as_json=False, stdout=piped)
    assert "\x1b" not in piped.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any(f"\x1b[{colour}m" in _on_a_terminal(answer) for colour in (31, 32, 33))


@given(rows=_ROWS | st.just([]))
def test_spooled_rows_are_printed_as_the_same_rows_in_a_list(rows: list[dict[str, object]]) -> None:
    """One JSON document and one table, byte by byte, whatever stands in a row."""
    spooled = SpooledRows.from_rows(rows)
    for form in ({"as_json": True}, {"as_json": False}, {"as_json": False, "wide": True}):
        told = []
        for answer in (Answer(document=rows), Answer(document=spooled, display=ConvertedRows(spooled, dict))):
            stdout = io.StringIO()
            write_answer(replace(answer, columns_below=("problem",)), **form, stdout=stdout)
            told.append(stdout.getvalue())
        assert told[0] == told[1]


@pytest.mark.parametrize("form", ["--json", "--wide"])
def test_ledgers_without_number_are_listed_in_little_memory(
    run: Run, services: FakeCommandServices, orders: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the rows nor the document nor the table stand in memory as a whole."""
    (ledger,) = services.log.catalog.ledgers.list_ledgers(7)
    monkeypatch.setattr("workers.cli.output._IN_MEMORY_BYTES", 65_536)

    def peak_bytes(count: int) -> int:
        def pages(topic_id: object, *, component: object) -> Iterator[list[Ledger]]:
            for at in range(0, count, 500):
                yield [replace(ledger, ledger_id=LedgerId(at + number)) for number in range(500)]

        services.log.catalog.components.iterate_ledger_pages = pages
        rarely = gc.get_threshold()
        gc.set_threshold(700, 10, 10)  # json's encoder leaves a cycle each time, which is no part of what is held
        tracemalloc.start()
        try:
            assert run("ledger", "list", orders, form).exit_code == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            gc.set_threshold(*rarely)

    with Path(os.devnull).open("w") as nowhere:
        monkeypatch.setattr(
            "workers.cli.command_registration.write_answer",
            lambda answer, **named: write_answer(answer, **named | {"stdout": nowhere}),
        )
        run("ledger", "list", orders, form)  # imports are not counted
        few, many = peak_bytes(500), peak_bytes(2_500)
    assert many - few < 800_000, "2,000 more rows as a list of objects take several times as much"


def test_listing_that_fails_halfway_is_one_document(run: Run, services: FakeCommandServices, orders: str) -> None:
    """That of the error: what was read before is not printed."""
    (ledger,) = services.log.catalog.ledgers.list_ledgers(7)

    def pages(topic_id: object, *, component: object) -> Iterator[list[Ledger]]:
        yield [ledger]
        raise StoreUnavailable("the database went away")

    services.log.catalog.components.iterate_ledger_pages = pages
    assert document(run("ledger", "list", orders, "--json"), 4)["error"]["type"] == "StoreUnavailable"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_long_table_is_printed_in_blocks_of_lines(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a call of Rich for each line a table of 100,000 ledgers took three times as long."""
    calls, printed = list[object](), Console.print

    def count(console: Console, *drawn: object, **more: Any) -> None:
        calls.extend(drawn)
        printed(console, *drawn, **more)

    monkeypatch.setattr(Console, "print", count)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: is_terminal)
    rows = [{"id": number, "state": "LIVE", "name": f"n-{number}"} for number in range(1_200)]
    write_answer(Answer(document=rows), as_json=False, stdout=stdout)
    assert len(calls) == (3 if is_terminal else 0)
    assert ("\x1b[32mLIVE\x1b[0m" in stdout.getvalue()) is is_terminal
    shown = re.sub(r"\x1b\[[0-9;]*m", "", stdout.getvalue()).splitlines()
    assert shown == [line.plain for line in draw_table(rows, width=80)]
