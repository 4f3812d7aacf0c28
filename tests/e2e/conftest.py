"""A folder with a short path, emptied of processes and files at the end whatever happened."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.shell import Shell


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder."""
    made = Path(tempfile.mkdtemp(prefix="sx-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def shell(folder: Path) -> Iterator[Shell]:
    """A shell in that folder; a stack that a failed test left there is taken down."""
    # no trim but those that a test asks for; and workers take part in Worker Versioning, as in production
    found = Shell(folder, SEXTON_TRIM_INTERVAL="30d", SEXTON_DEPLOYMENT_NAME="e2e")
    yield found
    for pids in folder.glob("*/pids"):
        if found.left_running():
            found.run("down", "--home", str(pids.parent))
