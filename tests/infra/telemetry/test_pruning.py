"""Span files go by age and size, and never from under a process that lives."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from infra.telemetry import tracing
from infra.telemetry.span_reader import SpanReader
from infra.telemetry.tracing import create_tracer_provider, prune_span_files, prune_span_files_if_due

_DAY = 86_400


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return process.pid


def put(folder: Path, name: str, *, days: float = 0, size: int = 100) -> Path:
    """A file that was written to so long ago."""
    path = folder / name
    path.write_bytes(b"x" * size)
    at = time.time() - days * _DAY
    os.utime(path, (at, at))
    return path


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_prune_removes_what_nobody_has_written_to_for_too_long(tmp_path: Path, dead: int) -> None:
    """Rolled files of any process, and those of dead ones; nothing of another name."""
    mine = os.getpid()
    put(tmp_path, f"sexton-{dead}.jsonl", days=8)
    put(tmp_path, f"sexton-worker-{mine}.17.jsonl", days=8)
    for name in (f"sexton-worker-{mine}.jsonl", "notes.jsonl", "sexton.txt", f"Sexton-{dead}.jsonl.bak"):
        put(tmp_path, name, days=30)
    put(tmp_path, f"sexton-other-{dead}.jsonl", days=6)
    assert prune_span_files(tmp_path, older_than_s=7 * _DAY, max_bytes=10**9) == 2
    assert left(tmp_path) == {
        f"sexton-worker-{mine}.jsonl",
        "notes.jsonl",
        "sexton.txt",
        f"Sexton-{dead}.jsonl.bak",
        f"sexton-other-{dead}.jsonl",
    }
    assert prune_span_files(tmp_path / "none", older_than_s=0, max_bytes=0) == 0


def test_prune_removes_the_oldest_until_the_rest_is_small_enough(tmp_path: Path, dead: int) -> None:
    """A living process's file counts and stays, and so does what changed just now."""
    put(tmp_path, f"sexton-worker-{os.getpid()}.jsonl", days=5, size=400)
    for days in (4, 3, 2, 1):
        put(tmp_path, f"sexton-{dead}.{days}.jsonl", days=days, size=100)
    put(tmp_path, f"sexton-{dead}.jsonl", size=100)
    assert prune_span_files(tmp_path, older_than_s=7 * _DAY, max_bytes=700) == 2
    assert left(tmp_path) == {
        f"sexton-worker-{os.getpid()}.jsonl",
        f"sexton-{dead}.2.jsonl",
        f"sexton-{dead}.1.jsonl",
        f"sexton-{dead}.jsonl",
    }
    assert prune_span_files(tmp_path, older_than_s=0, max_bytes=0) == 2
    assert left(tmp_path) == {f"sexton-worker-{os.getpid()}.jsonl", f"sexton-{dead}.jsonl"}


def test_prune_bounds_the_number_of_files(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command leaves one, however small."""
    monkeypatch.setattr(tracing, "_MAX_FILES", 3)
    for number in range(6):
        put(tmp_path, f"sexton-{dead}.{number}.jsonl", days=6 - number)
    prune_span_files(tmp_path, older_than_s=7 * _DAY, max_bytes=10**9)
    assert left(tmp_path) == {f"sexton-{dead}.{number}.jsonl" for number in (3, 4, 5)}


def test_two_that_prune_at_once_remove_no_more_than_one(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has listed everything before the first file goes; each removes what the other would."""
    for number in range(40):
        put(tmp_path, f"sexton-{dead}.{number}.jsonl", days=6 - number / 10, size=10)
    listed, real = threading.Barrier(2), tracing._list_span_files
    removed: list[int] = []

    def both(folder: Path) -> list[tracing._SpanFile]:
        found = list(real(folder))
        listed.wait(30)
        return found

    def work() -> None:
        removed.append(prune_span_files(tmp_path, older_than_s=7 * _DAY, max_bytes=200))

    monkeypatch.setattr(tracing, "_list_span_files", both)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(removed) == 20
    assert left(tmp_path) == {f"sexton-{dead}.{number}.jsonl" for number in range(20, 40)}


def test_commands_prune_once_an_hour(tmp_path: Path, dead: int) -> None:
    """The first that comes; the next ones look at one file's time alone. A folder that is absent stays so."""
    old = f"sexton-{dead}.jsonl"
    for hours, pruned in ((None, True), (0.5, False), (2, True)):
        put(tmp_path, old, days=8)
        if hours is not None:
            at = time.time() - hours * 3_600
            os.utime(tmp_path / ".pruned", (at, at))
        prune_span_files_if_due(tmp_path, older_than_s=7 * _DAY, max_bytes=10**9)
        assert (old not in left(tmp_path)) is pruned
    prune_span_files_if_due(tmp_path / "none", older_than_s=0, max_bytes=0)
    assert not (tmp_path / "none").exists()


def test_a_long_lived_process_rolls_its_file_and_no_span_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it put aside may be pruned while it lives; readers find both."""
    monkeypatch.setattr(tracing, "MAX_SPAN_FILE_BYTES", 1_000)
    made = create_tracer_provider("sexton-test", traces_dir=tmp_path)
    tracer = made.get_tracer("test")
    with tracer.start_as_current_span("outer") as outer:
        for number in range(10):
            tracer.start_span(f"inner {number}").end()
            made.force_flush()
    made.shutdown()
    names = sorted(left(tmp_path))
    assert len(names) > 2
    assert all(path.stat().st_size < 3_000 for path in tmp_path.iterdir())
    assert all(json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines())
    assert len(SpanReader(tmp_path).read_trace(f"{outer.get_span_context().trace_id:032x}").spans) == 11
