"""Temporary home of the demo's stack. Signals end the demo and remove the home with the servers in it. Waits."""

import asyncio
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from infra.stack import embedded_stack
from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore.errors import ServiceFailed
from workers.operations.service_checks import WORKER

_PREFIX: Final = "sexton-demo-"
_SERVICE_NAME: Final = "demo"
_LOCK_FILE: Final = "demo.lock"  # a home with this file may be removed once no process has the lock
_MAX_ATTEMPTS: Final = 20
_RETRY_PAUSE_S: Final = 0.25  # pause until a disk has caught up, or a process has started


def make_home() -> Path:
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def mark_home_in_use(home: Path) -> int:
    """Lock the home, so that later demos can remove it once this process is dead. Return the locked descriptor.

    The lock proves that this process lives. A recorded start time would prove nothing, because clocks may be set.
    """
    at_home = StackHome.at(home)
    at_home.create_directories_and_check_space()
    with at_home.translate_disk_errors():
        descriptor, temporary_path = tempfile.mkstemp(dir=home)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The file is locked before it gets this name, because other demos remove a home with an unlocked file.
        Path(temporary_path).rename(home / _LOCK_FILE)
    return descriptor


def kill_and_remove_abandoned_homes(say: Callable[[str], None]) -> None:
    """Remove homes of this user's killed demos, with their processes. A home without a lock file stays."""
    for home in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if _is_home_abandoned(home):
                say(f"removing {home}, which a demo that was killed has left")
                kill_processes_and_remove_home(home)
        except (ServiceFailed, OSError) as fault:
            say(str(fault))


def _is_home_abandoned(home: Path) -> bool:
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():  # lock files of other users prove nothing
        return False
    try:
        descriptor = os.open(home / _LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def kill_processes_and_remove_home(home: Path) -> None:
    """Kill workers and servers without a drain, then delete the home.

    Raises:
        ServiceFailed: A process does not end, or the folder cannot be removed within seconds.
    """
    for remaining_attempts in reversed(range(_MAX_ATTEMPTS)):
        try:
            _kill_processes(StackHome.at(home))
            shutil.rmtree(home)
        except FileNotFoundError:  # another demo removes the same home: the next attempt shows the result
            pass
        except OSError as fault:
            if not remaining_attempts:
                problem = f"{home} cannot be removed ({fault.filename}: {fault.strerror})"
                raise ServiceFailed(_SERVICE_NAME, problem, advice=f"remove it with `rm -r {home}`") from fault
        if not home.exists():
            return
        time.sleep(_RETRY_PAUSE_S)
    raise ServiceFailed(_SERVICE_NAME, f"{home} is made again and again", advice="end the processes that write there")


def _kill_processes(home: StackHome) -> None:
    with ExitStack() as kills:
        kills.callback(embedded_stack.kill_stack, home.root)
        for path in home.pids.glob(f"{WORKER}*.json"):
            kills.callback(ServiceProcess(path.stem, home).kill)


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
