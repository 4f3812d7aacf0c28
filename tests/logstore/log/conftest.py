"""A fresh world a test, and no failpoint left armed."""

from collections.abc import Iterator

import pytest

from logstore.failpoints import disarm_all_and_take_hits
from tests.logstore.log.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """One topic without ledgers."""
    with World() as made:
        yield made
    disarm_all_and_take_hits()
