"""The processes that are at work in a soak, each started anew where it dies."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path


class Member:
    """A worker or a client: one process after the other under one number."""

    def __init__(
        self, role: str, number: int, home: Path, start: Callable[["Member"], subprocess.Popen[bytes]]
    ) -> None:
        """Start the first one."""
        self.role, self.number, self._start = role, number, start
        self.clock_file = home / f"{role}-{number}.clock"
        self.log_file = home / "logs" / f"{role}-{number}.log"
        self.lives = 0
        self.exits: list[int] = []
        self.held = False  # dead until its fault is lifted
        self._process = self._start_process()

    def _start_process(self) -> subprocess.Popen[bytes]:
        self.lives += 1
        return self._start(self)

    def signal(self, number: signal.Signals) -> None:
        """Send it one, if it lives."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def tend(self) -> None:
        """Start the next process where the last one has died."""
        code = self._process.poll()
        if code is not None and not self.held:
            self.exits.append(code)
            self._process = self._start_process()

    def end(self, within_s: float) -> int:
        """Let it end by itself, after SIGTERM where it is a worker; its exit code, -9 if it did not in time."""
        if self.role == "worker":
            self.signal(signal.SIGTERM)
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait(10)
