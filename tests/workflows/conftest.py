"""One Temporal server that skips time, and one event loop, for every test of this folder."""

import asyncio
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from activities import heartbeats
from tests.activities.activity_world import World
from tests.activities.conftest import new_world
from tests.workflows.ownership.neighbours import Neighbours
from tests.workflows.workflow_harness import InProcessWorkflowHarness, WorkflowHarness
from workflows import search_attributes

__all__ = ["new_world"]

_SERVER = [
    f"--dynamic-config-value={value}"
    for value in (
        "frontend.WorkflowTimeSkippingEnabled=true",
        "history.transferProcessorMaxPollRPS=1000",
        "history.timerProcessorMaxPollRPS=1000",
        "limit.historyCount.suggestContinueAsNew=100",
    )
]
_numbers = itertools.count()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on the folder's event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: value for name, value in pyfuncitem.funcargs.items() if name in wanted}
    loop = pyfuncitem.funcargs["loop"]
    assert isinstance(loop, asyncio.Runner)
    loop.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session", autouse=True)
def loop() -> Iterator[asyncio.Runner]:
    """The one event loop, for tests without fixtures too: a Temporal client stays with the loop it was made on."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def temporal(loop: asyncio.Runner) -> Iterator[WorkflowEnvironment]:
    """A development server on which sleeps and retries take no time."""
    started = WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
        dev_server_extra_args=_SERVER,
        dev_server_log_level="error",
        dev_server_startup_timeout=timedelta(seconds=30),
        data_converter=pydantic_data_converter,
        search_attributes=search_attributes.ALL,
    )
    environment = loop.run(started)
    yield environment
    loop.run(environment.shutdown())


@pytest.fixture
def house(
    request: pytest.FixtureRequest,
    loop: asyncio.Runner,
    new_world: Callable[[], World],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[WorkflowHarness]:
    """A world of its own, and workers on demand, in this process; on a real server where the test is marked so."""
    monkeypatch.setattr(heartbeats, "_BEAT_INTERVAL_S", 0.05)
    if request.node.get_closest_marker("external_service"):
        temporal: WorkflowEnvironment = request.getfixturevalue("temporal")
        number = next(_numbers)
        made = WorkflowHarness(temporal.client, new_world(), queue=f"workflows-{number}", first_ledger=number * 1000)
    else:
        made = InProcessWorkflowHarness(new_world())
    with made:
        yield made


@pytest.fixture
def street(house: WorkflowHarness) -> Neighbours:
    """Workers that own topics, on demand; they see ownership alike."""
    return Neighbours(house)
