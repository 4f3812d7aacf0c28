"""Bars on a real terminal: what else is written there stands above them, and what libraries write stands in a file."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from workers.cli.output import print_note
from workers.cli.output import append_library_stderr_to_file, show_progress_bar

with append_library_stderr_to_file(Path(sys.argv[1])), show_progress_bar("at work", at_once=True) as bar:
    os.write(2, b"of a library\\n")
    subprocess.run(["sh", "-c", "echo of a child >&2"])
    print_note("a note of ours")
    bar.update("still at work")
    print("a line of ours", file=sys.stderr)
print_note("the end")
os.write(2, b"as before\\n")
"""


def _screen(*args: str) -> str:
    """What a terminal of 80 columns gets to see of the program."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    with os.fdopen(theirs, "wb") as stderr:
        program = subprocess.Popen([sys.executable, "-c", _PROGRAM, *args], stderr=stderr, env=environ)
    told = b""
    with os.fdopen(ours, "rb", buffering=0) as screen, suppress(OSError):  # EIO: all is read, and nobody writes
        while piece := screen.read(65_536):
            told += piece
    assert program.wait(60) == 0, told
    return told.decode()


def test_bar_is_mixed_neither_with_notes_nor_with_the_output_of_libraries(tmp_path: Path) -> None:
    """A note begins a line of its own; a library's line is in the file alone, and after the block on stderr again."""
    log = tmp_path / "logs" / "library.log"
    seen = _screen(str(log))
    assert log.read_text().splitlines() == ["of a library", "of a child"]
    assert "of a library" not in seen
    assert "of a child" not in seen
    for line in ("a note of ours", "a line of ours", "the end", "as before"):
        before = re.sub("\x1b\\[[0-9;?]*[mhl]", "", seen.partition(line)[0])
        assert before.endswith(("\n", "\r", "\x1b[2K")), (line, seen)
    assert "still at work" in seen


def test_work_goes_on_where_the_file_cannot_be_made(tmp_path: Path) -> None:
    """Then all of it is on the terminal."""
    (tmp_path / "logs").write_text("a file in the place of the folder")
    seen = _screen(str(tmp_path / "logs" / "library.log"))
    assert "of a library" in seen
    assert "a note of ours" in seen
