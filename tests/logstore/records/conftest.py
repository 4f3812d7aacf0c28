"""A world for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.failpoints import disarm
from tests.logstore.records.world import RecordsWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[RecordsWorld]:
    """A catalog with a topic, and an empty record log."""
    found = RecordsWorld(tmp_path)
    yield found
    disarm()
    found.database.close()
