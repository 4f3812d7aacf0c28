"""What the processes of one test run share ends with the run."""

import shutil
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.postgres import PostgresServer, kill_shared_postgres
from tests.servers import kill_shared_storage as kill_shared_stack


@pytest.mark.external_service
def test_server_that_processes_share_is_one_and_is_killed_with_the_run() -> None:
    """Whoever needs it finds it running; the process that began the run ends it, even if nobody else could."""
    folder = Path(tempfile.mkdtemp(prefix="sx-", dir="/tmp"))
    try:
        first, second = (PostgresServer(durable=False, home=folder) for _ in range(2))
        server = psutil.Process(first.pid)
        assert second.pid == first.pid
        with second.database() as name:
            assert first.execute("SELECT 1", name) == [(1,)]
        kill_shared_postgres(folder)
        assert not server.is_running()
    finally:
        kill_shared_postgres(folder)
        shutil.rmtree(folder)


def test_run_that_needed_no_server_ends_too(tmp_path: Path) -> None:
    """There is nothing to kill."""
    kill_shared_postgres(tmp_path)
    kill_shared_stack(tmp_path)
    assert not [*tmp_path.iterdir()]
