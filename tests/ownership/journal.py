"""What a process says of itself, line by line, in a file that outlives it.

Times are of the machine's monotonic clock, the same for all its processes.
"""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class EventJournal:
    """Written by one process, by any of its threads."""

    def __init__(self, path: Path) -> None:
        """Append to the file."""
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Of a process that goes on; the end of one closes it as well."""
        self._file.close()

    def say(self, event_kind: str, **details: Any) -> None:
        """One line, written at once."""
        line = json.dumps({"what": event_kind, "at": time.monotonic(), **details})
        with self._lock:
            self._file.write(line + "\n")


class JournalFileReader:
    """What was said until now, of a journal that grows; a line that death cut off was not said."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path
        self._at = 0
        self._found: list[dict[str, Any]] = []

    def entries(self, kind: str | None = None) -> Sequence[dict[str, Any]]:
        """Of one kind or all; only what is new is read."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._at)
                complete_lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
            self._at += sum(map(len, complete_lines))
            self._found += map(json.loads, complete_lines)
        return [entry for entry in self._found if kind in {None, entry["what"]}]
