"""Temporary home of the demo's stack. The home and the servers in it are removed together."""

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
