"""Functions with which the demo waits for conditions and handles signals."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

WAIT_TIMEOUT_S: Final = 600.0
"""Timeout of a wait. It is long because a busy machine is many times slower than an idle machine."""

_POLL_INTERVAL_S: Final = 0.05


async def wait_until(condition: Callable[[], bool], *, within_s: float = WAIT_TIMEOUT_S) -> bool:
    """Wait for the condition, and return whether it was true in time. Ctrl-C cancels the wait."""
    deadline_s = time.monotonic() + within_s
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_POLL_INTERVAL_S)
    return True


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_SIGNALS: Final = 3  # the third signal ends the clean-up


class SignalHandler:
    """Handler of SIGINT, SIGTERM and SIGHUP during its block. A signal that the process ignores stays ignored.

    - Inside `raise_on_first_signal`, the first signal raises `KeyboardInterrupt`.
    - Outside `raise_on_first_signal`, a signal raises `KeyboardInterrupt` at the end of the handler's block.
    - The third signal ends the clean-up at once, and a message names the home that stays.

    The exception's message says whether the home was removed. With `keep` the home stays.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.home: Path | None = None
        self._keep = keep
        self._signal_count = 0
        self._is_interruptible = False
        self.has_given_up = False
        """Whether the third signal has ended the clean-up, so that the home stays."""

    def __enter__(self) -> Self:
        signals = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous_handlers = {number: signal.signal(number, self._handle_signal) for number in signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        if self._signal_count and kind in {None, KeyboardInterrupt}:
            raise KeyboardInterrupt(self._describe_whether_home_remains()) from error

    def _describe_whether_home_remains(self) -> str:
        if self.home is None:
            return "nothing was started"
        if self._keep:
            home = self.home
            return f"{home} stays, with what runs in it; `sexton --home {home} down && rm -r {home}` removes both"
        return f"{self.home} stays" if self.has_given_up else f"{self.home} is removed, with what ran in it"

    @contextmanager
    def raise_on_first_signal(self) -> Iterator[None]:
        """End the block at the first signal. If a signal arrived before the block, end the block at its start."""
        self._is_interruptible = True
        try:
            if self._signal_count:
                raise KeyboardInterrupt
            yield
        finally:
            self._is_interruptible = False

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signal_count += 1
        if self._signal_count >= _MAX_SIGNALS:
            self.has_given_up = True
            if not self._keep:
                _write_stderr(f"given up: {self.home} stays, with what runs in it; the next `sexton demo` removes both")
            raise KeyboardInterrupt
        if self._is_interruptible:
            self._is_interruptible = False
            raise KeyboardInterrupt
        hint = "; the next signal leaves it" if self._signal_count == _MAX_SIGNALS - 1 else ""
        _write_stderr(f"ending{hint}" if self._keep else f"removing {self.home}{hint}")


def _write_stderr(text: str) -> None:
    """Write without Python's buffers, because a signal may arrive during a buffered write."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
