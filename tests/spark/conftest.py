"""One warm Spark session for all tests of a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.warm_session import SparkSettings, WarmSession


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmSession]:
    """Two cores, small."""
    scratch: Path = tmp_path_factory.mktemp("spark")
    session = WarmSession(SparkSettings(scratch=scratch, master="local[2]", driver_memory="512m"))
    yield session
    session.close()
