"""What the processes of one test run share: a folder, and the servers whose homes lie in it.

The process that started pytest makes the folder, tells its xdist workers where it is, and ends what runs there when the
run is over, whatever became of the workers. A worker starts a server when it first needs it, or finds it running.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

RUN_FOLDER_KEY: Final = pytest.StashKey[Path]()
_WORKER_INPUT_KEY: Final = "sexton_run_folder"


def xdist_worker_number() -> int:
    """Of this process among the run's: 0 where there is no other."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def is_xdist_worker(config: pytest.Config) -> bool:
    """Whether another process started this one to share the tests with it."""
    return hasattr(config, "workerinput")


def create_or_receive_run_folder(config: pytest.Config) -> None:
    """Make the folder, or hear where it is; its path is short, for there are sockets in it."""
    received = getattr(config, "workerinput", {}).get(_WORKER_INPUT_KEY)
    config.stash[RUN_FOLDER_KEY] = Path(received) if received else Path(tempfile.mkdtemp(prefix="sx-", dir="/tmp"))


def pass_run_folder_to_worker(config: pytest.Config, worker_input: dict[str, object]) -> None:
    """Tell a worker, before it starts, where the folder is."""
    worker_input[_WORKER_INPUT_KEY] = str(config.stash[RUN_FOLDER_KEY])


def remove_run_folder(config: pytest.Config) -> None:
    """Nothing runs in it any more."""
    shutil.rmtree(config.stash[RUN_FOLDER_KEY], ignore_errors=True)


@contextmanager
def hold_run_lock(folder: Path) -> Iterator[None]:
    """Of all processes of the run only one is in the block."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
