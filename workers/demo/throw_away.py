"""The folder of a throw-away stack, which goes with its servers."""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from infra.stack import stack
from infra.stack.home import StackHome
from infra.stack.process import ServiceProcess
from logstore.errors import ServiceFailed
from workers.operations.status import WORKER

_PREFIX: Final = "sexton-demo-"
_DEMO: Final = "demo"
_MARK: Final = "demo.lock"  # a folder that has it may be removed once no process holds the lock
_TRIES: Final = 20
_BETWEEN_S: Final = 0.25  # a disk that is full or slow, or a process that was being started, needs a moment


def new_home() -> Path:
    """Make an empty folder among the temporary files."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def mark(home: Path) -> int:
    """Let later demos remove the folder once this process is dead; returns the descriptor that it holds until then.

    The lock goes with the process that took it, and with nothing else: a start time moves when the clock is set.

    Raises:
        ServiceFailed: The folder cannot be written.
    """
    at_home = StackHome.at(home)
    at_home.prepare()
    with at_home.translate_disk_errors():
        held, unnamed = tempfile.mkstemp(dir=home)
        fcntl.flock(held, fcntl.LOCK_EX)
        Path(unnamed).rename(home / _MARK)  # once it is locked: a demo that finds it unlocked removes the folder
    return held


def remove_abandoned(say: Callable[[str], None]) -> None:
    """Remove, with what runs in them, this user's folders whose demo was killed before it could.

    A folder without a demo's mark is left alone, and so is one that does not let itself be removed.
    """
    for home in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if _is_abandoned(home):
                say(f"removing {home}, which a demo that was killed has left")
                remove(home)
        except (ServiceFailed, OSError) as fault:
            say(str(fault))


def _is_abandoned(home: Path) -> bool:
    seen = home.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():  # others' marks are not to be believed
        return False
    try:
        found = os.open(home / _MARK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(found)
    return True


def remove(home: Path) -> None:
    """Kill workers and servers at once, because nothing of a throw-away stack is worth a drain, and delete the home.

    Tried again for a few seconds. Every process is dead before the first file is deleted.

    Raises:
        ServiceFailed: A process does not end, or the folder cannot be removed; says which, and what to do.
    """
    for left in reversed(range(_TRIES)):
        try:
            _kill(StackHome.at(home))
            shutil.rmtree(home)
        except FileNotFoundError:  # removed by another demo, or a file of it was: the next try tells
            pass
        except OSError as fault:
            if not left:
                problem = f"{home} cannot be removed ({fault.filename}: {fault.strerror})"
                raise ServiceFailed(_DEMO, problem, advice=f"remove it with `rm -r {home}`") from fault
        if not home.exists():
            return
        time.sleep(_BETWEEN_S)
    raise ServiceFailed(_DEMO, f"{home} is made again and again", advice="end the processes that write there")


def _kill(home: StackHome) -> None:
    """Kill all of them and wait for each, though one should not let itself be killed."""
    with ExitStack() as every:
        every.callback(stack.kill, home.root)
        for path in home.pids.glob(f"{WORKER}*.json"):
            every.callback(ServiceProcess(path.stem, home).kill)
