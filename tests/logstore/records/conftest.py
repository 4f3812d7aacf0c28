"""A world for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.failpoints import disarm_all_and_take_hits
from tests.logstore.records.world import RecordsWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RecordsWorld]:
    """A catalog with a topic, and an empty record log."""
    found = RecordsWorld(tmp_path)
    yield found
    disarm_all_and_take_hits()
    found.database.close()
