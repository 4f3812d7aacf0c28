"""Tests of a real Pulsar cluster run only with Pulsar's client, which `make test-pulsar` puts on the path."""

import os
import sys
from importlib.util import find_spec

import pytest

collect_ignore = (
    [] if find_spec("pulsar") else ["test_plans.py", "test_applies.py", "test_abort.py", "test_removals.py"]
)

_EXIT_STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_EXIT_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Exit at once: threads of Pulsar's client abort the process at an ordinary exit, if their broker was killed."""
    if "pulsar" in sys.modules and _EXIT_STATUS in config.stash:
        sys.stdout.flush()
        os._exit(config.stash[_EXIT_STATUS])
