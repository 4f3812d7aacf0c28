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

FOLDER: Final = pytest.StashKey[Path]()
_INPUT: Final = "sexton_run_folder"


def worker_number() -> int:
    """Of this process among the run's: 0 where there is no other."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def is_worker(config: pytest.Config) -> bool:
    """Whether another process started this one to share the tests with it."""
    return hasattr(config, "workerinput")


def find_folder(config: pytest.Config) -> None:
    """Make the folder, or hear where it is; its path is short, for there are sockets in it."""
    told = getattr(config, "workerinput", {}).get(_INPUT)
    config.stash[FOLDER] = Path(told) if told else Path(tempfile.mkdtemp(prefix="sx-", dir="/tmp"))


def tell_folder(config: pytest.Config, worker_input: dict[str, object]) -> None:
    """Tell a worker, before it starts, where the folder is."""
    worker_input[_INPUT] = str(config.stash[FOLDER])


def remove_folder(config: pytest.Config) -> None:
    """Nothing runs in it any more."""
    shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of all processes of the run only one is in the block."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
