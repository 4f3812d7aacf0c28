"""What every test may ask for: real servers, settings on them; and CI's rule that nothing is skipped."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from temporalio.worker._workflow import _WorkflowWorker

from infra.stack import embedded_stack
from logstore import failpoints
from tests import postgres, run_folder
from tests import servers as real_servers
from tests.run_parts import RunPart, split_tests
from tests.shared_preparations import (
    share_compiled_statements,
    share_s3_service_descriptions,
    validate_each_workflow_once,
)
from workers.settings import Settings

_LONGEST_MODULES = (
    "faults/model/test_model.py",
    "faults/transactions/test_machine.py",
    "logstore/delayed/test_tracker_machine.py",
    "e2e/test_session.py",
    "faults/test_sigkill.py",
    "spark/",
    "workflows/pulsar/test_plan_of_real_cluster.py",
    "e2e/test_demo.py",
    "workers/cli/test_outside_failures.py",
    "e2e/test_identity.py",
    "workers/hosting/test_taking_part.py",
    "faults/test_overlap.py",
    "infra/stack/test_stack.py",
    "faults/transactions/test_history.py",
    "faults/test_records_sigkill.py",
    "workers/hosting/test_rebuilding.py",
    "workers/hosting/test_lying_listings.py",
    "e2e/test_secrets.py",
)
"""Modules whose tests take longest, to be begun first: while the last of them run, other processes would wait.

What begins first is not taken over by another process: tests of Spark stay in one, which starts one Java for them.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--all-faults`, which runs in full what is else a sample, and `--part`. CONTRIBUTING.md explains both."""
    parser.addoption("--all-faults", action="store_true", help="every hit of every failpoint, every variant; no sample")
    parser.addoption(
        "--part", default=RunPart(), type=_parse_part, metavar="3/8", help="one of so many parts of the run"
    )


def _parse_part(text: str) -> RunPart:
    try:
        return RunPart.parse(text)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


hypothesis_settings.register_profile("sexton", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("sexton")  # how long an example takes says how busy the machine is


def pytest_configure(config: pytest.Config) -> None:
    """What only `make faults` runs has a mark of its own."""
    share_compiled_statements()
    share_s3_service_descriptions()
    validate_each_workflow_once()
    _allow_workflow_tasks_a_minute()
    run_folder.create_or_receive_run_folder(config)
    config.addinivalue_line("markers", "all_faults: only with --all-faults")
    config.addinivalue_line("markers", "where_allowed: needs rights that not every machine gives")


def _allow_workflow_tasks_a_minute() -> None:
    """Keep the deadlock detector of workers, whose limit is 2 s of wall-clock time, from reporting a busy machine."""
    init = _WorkflowWorker.__init__

    def init_with_longer_limit(self: _WorkflowWorker, **options: Any) -> None:
        init(self, **options)
        self._deadlock_timeout_seconds = 60

    _WorkflowWorker.__init__ = init_with_longer_limit  # type: ignore[method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of xdist: a worker is about to start."""
    run_folder.pass_run_folder_to_worker(node.config, node.workerinput)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the servers that the run's processes shared, even if one of these died."""
    if not run_folder.is_xdist_worker(config):
        real_servers.kill_shared_storage(config.stash[run_folder.RUN_FOLDER_KEY])
        postgres.kill_shared_postgres(config.stash[run_folder.RUN_FOLDER_KEY])
        run_folder.remove_run_folder(config)


@pytest.hookimpl(trylast=True)  # of what is left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave such tests out; to skip them would say that something is missing here. Begin with the longest."""
    if not config.getoption("--all-faults"):
        deselected = [item for item in items if item.get_closest_marker("all_faults")]
        items[:] = [item for item in items if item not in deselected]
        config.hook.pytest_deselected(items=deselected)
    items[:], others = split_tests(items, config.getoption("--part"))
    config.hook.pytest_deselected(items=others)
    items[:] = _order_longest_first(items, getattr(config, "workerinput", {}).get("workercount", 1))


def _order_longest_first(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Let each process, which gets an equal part of the items in their order, have some of the longest at its head."""
    longest = [[item for item in items if item.nodeid.startswith(f"tests/{module}")] for module in _LONGEST_MODULES]
    others = [
        item for item in items if not item.nodeid.startswith(tuple(f"tests/{module}" for module in _LONGEST_MODULES))
    ]
    ordered: list[pytest.Item] = []
    for number in range(processes):
        long_items = [item for module in longest[number::processes] for item in module]
        part = (len(items) - len(ordered)) // (processes - number)
        ordered += [*long_items, *others[: max(0, part - len(long_items))]]
        del others[: max(0, part - len(long_items))]
    return ordered + others


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while all that is collected lives: a third of the CPU, in each process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives as long as the run, and have it look less often: a third of the CPU."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A skipped test is not a passed one: under CI it fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", ()) if reporter else ()
    skipped = [report for report in reports if "where_allowed" not in getattr(report, "keywords", ())]
    if os.environ.get("CI") and skipped and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Iterator[embedded_stack.StackAddresses]:
    """One SeaweedFS for the whole run, and one Temporal for each of its processes: schedules have fixed names."""
    with real_servers.running_servers(pytestconfig.stash[run_folder.RUN_FOLDER_KEY]) as where:
        yield where


@pytest.fixture
def settings(servers: embedded_stack.StackAddresses, tmp_path: Path) -> Settings:
    """A log store of this test's own on the shared servers."""
    return real_servers.create_store_settings(servers, tmp_path)


@pytest.fixture(scope="session")
def run_part(pytestconfig: pytest.Config) -> RunPart:
    """Part of the run. A test that takes it runs in every part and selects its cases by it."""
    chosen: RunPart = pytestconfig.getoption("--part")
    return chosen


@pytest.fixture(autouse=True)
def _no_failpoint_left() -> Iterator[None]:
    yield
    failpoints.disarm_all_and_take_hits()
