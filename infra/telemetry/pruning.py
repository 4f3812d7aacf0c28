"""Deletes span files by age and by size, so that traces never fill a disk."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"[a-z0-9-]+-(?P<pid>[0-9]+)(?P<rolled>\.[0-9]+)?\.jsonl")
_MOST_FILES: Final = 2_000  # each command leaves one, and a reader opens all of them
_FRESH_S: Final = 60.0  # a process may be about to write there, under a number that another one had before
_RARELY_S: Final = 3_600.0
_MARK: Final = ".pruned"  # its time: when a command pruned last


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    changed_s: float  # since 1970
    size_bytes: int
    pid: int | None  # whose it is; None once it was rolled, because no process writes there any more


def prune(traces_dir: Path, *, older_than_s: float, most_bytes: int) -> int:
    """Remove span files, the oldest first; returns how many this call removed.

    The file that a living process writes to is never removed, nor is one that changed within the last minute, nor one
    of another name. Any number of processes may prune at once: each removes what the others would.

    Args:
        traces_dir: Where they are; it need not exist.
        older_than_s: Files that no process has written to for so long go.
        most_bytes: What may stay of all of them together; beyond that, and beyond 2,000 files, the oldest go.
    """
    files = sorted(_files(traces_dir), key=lambda file: file.changed_s)
    left_bytes, left, now, removed = sum(file.size_bytes for file in files), len(files), time.time(), 0
    for file in files:
        old = file.changed_s < now - older_than_s
        if not old and left_bytes <= most_bytes and left <= _MOST_FILES:
            break
        if file.changed_s > now - _FRESH_S or (file.pid is not None and _lives(file.pid)):
            continue
        left_bytes, left = left_bytes - file.size_bytes, left - 1
        with suppress(FileNotFoundError):  # another one was faster
            file.path.unlink()
            removed += 1
    return removed


def prune_rarely(traces_dir: Path, *, older_than_s: float, most_bytes: int) -> None:
    """As `prune`, at most once an hour of all processes that ask; an error of the file system is ignored."""
    mark = traces_dir / _MARK
    with suppress(OSError):
        try:
            if mark.stat().st_mtime > time.time() - _RARELY_S:
                return
        except FileNotFoundError:
            if not traces_dir.is_dir():
                return
        mark.touch(mode=0o600)
        prune(traces_dir, older_than_s=older_than_s, most_bytes=most_bytes)


def _files(traces_dir: Path) -> Iterator[_File]:
    entries: list[os.DirEntry[str]] = []
    with suppress(FileNotFoundError):
        entries += os.scandir(traces_dir)
    for entry in entries:
        found = _NAME.fullmatch(entry.name)
        if found:
            with suppress(FileNotFoundError):
                told = entry.stat(follow_symlinks=False)
                pid = None if found["rolled"] else int(found["pid"])
                yield _File(path=Path(entry.path), changed_s=told.st_mtime, size_bytes=told.st_size, pid=pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True
