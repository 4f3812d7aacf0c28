"""Temporal goes away while a command waits."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.stack import embedded_stack
from infra.stack.service_port_choice import RequestedPorts
from logstore.catalog import Database
from tests.migrated_catalogs import migrate_or_copy_catalog
from tests.workers.cli.conftest import Run, document
from tests.workers.cli.fakes import FakeCommandServices
from workers.client.wait_for_job import JobStopped
from workers.settings import Settings


@pytest.fixture
def lone() -> Iterator[Settings]:
    """A Temporal of this test's own, and a catalog."""
    home = Path(tempfile.mkdtemp(prefix="sx-"))
    options = embedded_stack.StackOptions(
        home=home, ports=RequestedPorts.any_free(), temporal_in_memory=True, services=("temporal",)
    )
    where = embedded_stack.start_stack(options)
    settings = Settings(home=home, temporal_address=where.temporal, ui_address=where.ui, ownership="single")
    database = Database(settings.database_url)
    migrate_or_copy_catalog(database)
    database.close()
    yield settings
    embedded_stack.kill_stack(home)
    shutil.rmtree(home, ignore_errors=True)


@pytest.mark.external_service
def test_temporal_that_goes_away_mid_wait_ends_the_command_with_4_and_one_document(lone: Settings) -> None:
    """The log of the SDK's core goes to stderr: stdout is the JSON document alone."""
    sweep = subprocess.Popen(
        [str(Path(sys.executable).with_name("sexton")), "deletion", "sweep", "--json"],
        env={**os.environ, **lone.environment()},
        cwd=lone.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert sweep.stderr
    heard = iter(sweep.stderr)
    assert any("started sweep-deletions" in line for line in heard)
    embedded_stack.kill_stack(lone.home)
    told, said = sweep.communicate(timeout=100)
    assert sweep.returncode == 4, said
    error = json.loads(told)["error"]
    assert error["message"].startswith("temporal: ")
    assert "sexton up" in error["message"]


def test_job_that_is_stopped_ends_the_command_with_1_and_one_sentence(
    run: Run, services: FakeCommandServices, orders: str
) -> None:
    """No traceback: nothing of ours failed."""
    services.client.result = JobStopped("trim-topic/7 was terminated; what it had detached stays listed")
    ended = run("topic", "trim", orders, "--json")
    assert document(ended, 1)["error"]["message"].startswith("trim-topic/7 was terminated")
    assert "Traceback" not in ended.stderr
    assert "started trim-topic/7" in ended.stderr
