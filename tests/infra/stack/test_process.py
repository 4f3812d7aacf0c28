"""One process and its pid file: found again, never mistaken, ended for certain."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore.errors import ServiceFailed
from tests.logstore.eventually import assert_eventually

_SLEEP = ("sleep", "60")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A process that is not started yet, killed in the end."""
    home = StackHome.at(tmp_path / "home")
    home.create_directories_and_check_space()
    service = ServiceProcess("example", home)
    yield service
    service.kill()


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no stack started."""
    with subprocess.Popen(_SLEEP, start_new_session=True) as other:
        yield other
        other.kill()


def _start(process: ServiceProcess, *argv: str) -> psutil.Process:
    process.start(argv or _SLEEP, cwd=process.home.scratch, env=os.environ)
    running = process.find_process()
    assert running is not None
    return running


def test_process_started_is_found_by_another_instance(process: ServiceProcess) -> None:
    """The pid file is all that a later command needs; the process leads a session of its own."""
    running = _start(process)
    assert ServiceProcess("example", process.home).find_process() == running
    assert os.getsid(running.pid) == running.pid


def test_process_stopped_is_gone_with_its_pid_file(process: ServiceProcess) -> None:
    """A polite stop is enough for a polite process; stopping again does nothing."""
    running = _start(process)
    assert process.stop(5) is True
    assert not running.is_running()
    assert not process.pid_file.exists()
    assert process.stop(5) is False


def test_process_deaf_to_sigterm_is_killed_with_its_children(process: ServiceProcess) -> None:
    """After the time-out the whole group goes, not only its leader."""
    deaf = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    running = _start(process, sys.executable, "-c", deaf + "subprocess.run(['sleep', '60'])")
    assert_eventually(lambda: len(running.children()) == 1)
    (child,) = running.children()
    assert process.stop(0.3) is True
    assert not running.is_running()
    assert_eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_process_is_killed_with_children_in_groups_of_their_own(process: ServiceProcess) -> None:
    """As the Python workers of Spark are."""
    apart = "import subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)"
    running = _start(process, sys.executable, "-c", apart)
    assert_eventually(lambda: len(running.children()) == 1)
    (child,) = running.children()
    process.kill()
    assert_eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_process_killed_from_outside_counts_as_not_running(process: ServiceProcess) -> None:
    """A dead server is seen as dead at once, a zombie too."""
    running = _start(process)
    running.send_signal(signal.SIGKILL)
    assert_eventually(lambda: process.find_process() is None)
    assert process.stop(5) is False
    assert process.pid_file.exists() is False


def test_process_dead_but_not_reaped_counts_as_not_running(process: ServiceProcess) -> None:
    """A zombie serves nobody; in a container whose first process reaps none, it stays for ever."""
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        shown = psutil.Process(dead.pid)
        assert_eventually(lambda: shown.status() == psutil.STATUS_ZOMBIE)
        process.pid_file.write_text(json.dumps({"pid": dead.pid, "started": shown.create_time(), "mark": "m"}))
        assert process.find_process() is None


def test_pid_file_of_a_reused_pid_leaves_the_stranger_alone(
    process: ServiceProcess, stranger: subprocess.Popen[bytes]
) -> None:
    """A pid that belongs to somebody else by now is neither reported nor stopped nor killed."""
    record = {"pid": stranger.pid, "started": psutil.Process(stranger.pid).create_time() - 60, "mark": "m"}
    ends: list[Callable[[], bool]] = [lambda: process.stop(1), process.kill]
    for end in ends:
        process.pid_file.write_text(json.dumps(record))
        assert process.find_process() is None
        assert end() is False
        assert stranger.poll() is None


def test_pid_file_after_the_clock_was_set_still_finds_the_process(process: ServiceProcess) -> None:
    """Setting the clock moves every start time that the system reports; the mark tells the process still."""
    running = _start(process)
    record = json.loads(process.pid_file.read_text())
    process.pid_file.write_text(json.dumps({**record, "started": record["started"] - 3600}))
    assert process.find_process() == running
    process.pid_file.write_text(json.dumps({**record, "started": 0.0, "mark": "another"}))
    assert process.find_process() is None
    process.pid_file.write_text(json.dumps(record))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x", "started": 1}', '{"pid": 4194305, "started": 1}'])
def test_pid_file_that_means_no_process_is_no_obstacle(process: ServiceProcess, content: str) -> None:
    """An empty, broken or outdated pid file neither stops a start nor survives a stop."""
    process.pid_file.write_text(content)
    assert process.find_process() is None
    assert process.stop(1) is False
    assert not process.pid_file.exists()
    assert _start(process).is_running()


def test_program_that_cannot_be_run_is_named(process: ServiceProcess) -> None:
    """A missing program is one sentence, and no pid file is left."""
    with pytest.raises(ServiceFailed, match="example: /nowhere/weed cannot be run"):
        process.start(["/nowhere/weed"], cwd=process.home.scratch, env={})
    assert not process.pid_file.exists()


def test_process_whose_pid_file_cannot_be_written_does_not_survive(
    process: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that no later command could find must not be left running."""
    started = list[int]()
    spawn = subprocess.Popen

    def spy(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] = spawn(*args, **kwargs)  # type: ignore[call-overload]
        started.append(child.pid)
        return child

    def full(*_: object, **__: object) -> None:
        raise ServiceFailed("home", "the disk is full", advice="free some space")

    monkeypatch.setattr(subprocess, "Popen", spy)
    monkeypatch.setattr(StackHome, "write_file", full)
    with pytest.raises(ServiceFailed, match="the disk is full"):
        process.start(_SLEEP, cwd=process.home.scratch, env=os.environ)
    assert_eventually(lambda: not psutil.pid_exists(started[0]))


def test_last_words_of_a_dead_process_are_those_of_this_run(process: ServiceProcess) -> None:
    """The error quotes what the failed run said, not what an earlier one did, and prefers the telling lines."""
    process.log_file.write_text("FATAL: an old story\n")
    script = "echo starting; echo 'listen tcp: address already in use'; echo bye"
    since = process.start(["sh", "-c", script], cwd=process.home.scratch, env=os.environ)
    assert_eventually(lambda: process.find_process() is None)
    assert process.summarize_last_failure_lines(since) == "listen tcp: address already in use"


def test_log_grown_large_is_put_aside_at_the_next_start(
    process: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs of a stack that is restarted for months stay bounded."""
    monkeypatch.setattr("infra.stack.service_process._MAX_LOG_BYTES", 10)
    process.log_file.write_text("x" * 11)
    _start(process)
    assert process.log_file.stat().st_size == 0
    assert process.log_file.with_suffix(".log.1").stat().st_size == 11
