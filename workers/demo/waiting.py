"""How the demo waits: for a condition that will become true, and for signals that ask it to end."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

PATIENCE_S: Final = 600.0
"""Seconds. On a machine that is busy with other work everything may take many times as long, and that is no failure."""

_LOOK_S: Final = 0.05


async def happens(met: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
    """Wait until `met` answers True; returns False if it does not in time. The wait can be cancelled, as by Ctrl-C."""
    give_up = time.monotonic() + within_s
    while not await asyncio.to_thread(met):
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENOUGH: Final = 3  # signals after which a clean-up is given up


class Interrupts:
    """Takes SIGINT, SIGTERM and SIGHUP while its block runs; a signal that this process ignores stays ignored.

    They are alike. Inside `heeded` the first raises `KeyboardInterrupt`. Otherwise they wait for the block's end, which
    raises it then; only the third raises it at once, and says which folder it leaves. The one that leaves the block
    says what became of the folder.
    """

    def __init__(self, *, keep: bool = False) -> None:
        """Take nothing yet; `keep`: the folder stays, with what runs in it."""
        self.home: Path | None = None
        """The demo's folder, once there is one; it is removed in the block, unless it is kept."""
        self._keep = keep
        self._count = 0
        self._heeded = False
        self.given_up = False
        """Whether the third signal has come: the folder stays."""

    def __enter__(self) -> Self:
        """Take the signals."""
        taken = [number for number in _ASKING if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._take) for number in taken}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back; raise what had to wait."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._count and kind in {None, KeyboardInterrupt}:
            raise KeyboardInterrupt(self._left()) from error

    def _left(self) -> str:
        if self.home is None:
            return "nothing was started"
        if self._keep:
            home = self.home
            return f"{home} stays, with what runs in it; `sexton --home {home} down && rm -r {home}` removes both"
        return f"{self.home} stays" if self.given_up else f"{self.home} is removed, with what ran in it"

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Let the first signal end the block, also one that came before it."""
        self._heeded = True
        try:
            if self._count:
                raise KeyboardInterrupt
            yield
        finally:
            self._heeded = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._count += 1
        if self._count >= _ENOUGH:
            self.given_up = True
            if not self._keep:
                _say(f"given up: {self.home} stays, with what runs in it; the next `sexton demo` removes both")
            raise KeyboardInterrupt
        if self._heeded:
            self._heeded = False
            raise KeyboardInterrupt
        last = "; the next signal leaves it" if self._count == _ENOUGH - 1 else ""
        _say(f"ending{last}" if self._keep else f"removing {self.home}{last}")


def _say(text: str) -> None:
    """Write past Python's buffers, in the midst of whose work a signal may arrive."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
