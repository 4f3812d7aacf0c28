"""What a process says of itself, line by line, in a file that outlives it.

Times are of the machine's monotonic clock, the same for all its processes.
"""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Journal:
    """Written by one process, by any of its threads."""

    def __init__(self, path: Path) -> None:
        """Append to the file."""
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()

    def say(self, what: str, **more: Any) -> None:
        """One line, written at once."""
        line = json.dumps({"what": what, "at": time.monotonic(), **more})
        with self._lock:
            self._file.write(line + "\n")


def entries(path: Path, what: str | None = None) -> Sequence[dict[str, Any]]:
    """What was said, of one kind or all; a line that death cut off was not said."""
    if not path.exists():
        return []
    whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [json.loads(line) for line in whole if line.endswith("\n")]
    return [entry for entry in found if what in {None, entry["what"]}]
