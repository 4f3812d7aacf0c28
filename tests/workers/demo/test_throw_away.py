"""The folder of a demo goes with its servers, whatever signals come, and those of demos that were killed go later."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from infra.stack.service_process import ServiceProcess
from infra.stack.stack_home import StackHome
from logstore.errors import ServiceFailed
from workers.demo import demo_steps as demo_run
from workers.demo import run_demo, temporary_homes
from workers.demo.temporary_homes import (
    SignalHandler,
    kill_and_remove_abandoned_homes,
    kill_processes_and_remove_home,
    make_home,
    mark_home_in_use,
)
from workers.settings import Settings

_HOME = Path("/nowhere/sexton-demo-one")
_SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def home(temporary: Path) -> Iterator[Path]:
    """The marked folder of a demo that is this process, with a server in it."""
    made = make_home()
    held = mark_home_in_use(made)
    server = ServiceProcess("worker-1", StackHome.at(made))
    server.start(_SLEEP, cwd=made, env=os.environ)
    yield made
    server.kill()
    os.close(held)


@dataclass
class _Story:
    """Work and its clean-up, and which signals come in each."""

    working: Sequence[signal.Signals] = ()
    cleaning: Sequence[signal.Signals] = ()
    seen: list[str] = field(default_factory=list)
    interrupts: SignalHandler = field(default_factory=SignalHandler)

    def run(self) -> None:
        self.interrupts.home = _HOME
        with self.interrupts:
            try:
                with self.interrupts.raise_on_first_signal():
                    self._do("working", self.working, "worked")
            finally:
                self._do("cleaning", self.cleaning, "clean")

    def _do(self, begun: str, signals: Sequence[signal.Signals], done: str) -> None:
        self.seen.append(begun)
        for number in signals:
            signal.raise_signal(number)
        self.seen.append(done)


def _server(home: Path) -> psutil.Process:
    found = ServiceProcess("worker-1", StackHome.at(home)).find_process()
    assert found is not None
    return found


@pytest.fixture
def abandoned(temporary: Path) -> Iterator[Path]:
    """The folder of a demo that was killed, with a server in it that outlived it."""
    names = "mark_home_in_use, make_home"
    marked = f"from workers.demo.temporary_homes import {names}; made = make_home(); mark_home_in_use(made)"
    script = f"import os, signal; {marked}; print(made, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    surroundings = {**os.environ, "TMPDIR": str(temporary)}
    dead = subprocess.run([sys.executable, "-c", script], env=surroundings, capture_output=True, text=True, check=False)
    assert dead.returncode == -signal.SIGKILL
    made = Path(dead.stdout.strip())
    server = ServiceProcess("worker-1", StackHome.at(made))
    server.start(_SLEEP, cwd=made, env=os.environ)
    yield made
    server.kill()


def test_removal_waits_for_the_servers_deaths(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one file is deleted under a server that may still write."""
    server, rmtree, alive = _server(home), shutil.rmtree, []

    def watched(path: Path) -> None:
        alive.append(server.is_running())
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", watched)
    kill_processes_and_remove_home(home)
    assert alive == [False]
    assert not home.exists()


def test_removal_is_tried_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that comes while the folder is emptied does not keep it."""
    rmtree, tries = shutil.rmtree, []

    def empty(path: Path) -> None:
        tries.append(path)
        if len(tries) == 1:
            raise OSError(39, "Directory not empty", str(path))
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", empty)
    monkeypatch.setattr(temporary_homes, "_RETRY_PAUSE_S", 0.0)
    kill_processes_and_remove_home(home)
    assert tries == [home, home]
    assert not home.exists()


def test_removal_that_fails_names_the_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no success, and it says what is left."""

    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", fail)
    monkeypatch.setattr(temporary_homes, "_RETRY_PAUSE_S", 0.0)
    with pytest.raises(ServiceFailed, match=f"{home} cannot be removed .*Permission denied.*rm -r {home}"):
        kill_processes_and_remove_home(home)


def test_the_next_demo_removes_the_folder_of_a_dead_one(abandoned: Path) -> None:
    """With the servers that outlived it."""
    server = _server(abandoned)
    kill_and_remove_abandoned_homes(print)
    assert not abandoned.exists()
    assert not server.is_running()


def test_the_next_demo_leaves_the_folders_of_others(home: Path, temporary: Path) -> None:
    """Those of a demo that lives, and those without a demo's mark."""
    unmarked = temporary / "sexton-demo-of-a-person"
    StackHome.at(unmarked).create_directories_and_check_space()
    kill_and_remove_abandoned_homes(print)
    assert home.exists()
    assert unmarked.exists()
    assert _server(home).is_running()


def test_the_next_demo_leaves_one_that_lives_though_the_clock_was_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells when a process was started by a clock that moves with the system's: that is no proof of a death."""
    server, told = _server(home), psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: told(process) + 5)
    kill_and_remove_abandoned_homes(print)
    assert home.exists()
    assert server.status() != psutil.STATUS_ZOMBIE


def test_the_next_demo_believes_no_mark_behind_a_link(abandoned: Path, temporary: Path) -> None:
    """A name in a folder that all users share may be anybody's."""
    elsewhere = temporary / "elsewhere"
    abandoned.rename(elsewhere)
    (temporary / "sexton-demo-link").symlink_to(elsewhere)
    kill_and_remove_abandoned_homes(print)
    assert elsewhere.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_work(number: signal.Signals) -> None:
    """SIGTERM and SIGHUP are as Ctrl-C."""
    story = _Story(working=[number])
    with pytest.raises(KeyboardInterrupt):
        story.run()
    assert story.seen == ["working", "cleaning", "clean"]


def test_a_second_signal_does_not_skip_the_clean_up(capfd: pytest.CaptureFixture[str]) -> None:
    """And it is said what goes on."""
    story = _Story(working=[signal.SIGINT], cleaning=[signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        story.run()
    assert story.seen == ["working", "cleaning", "clean"]
    assert capfd.readouterr().err == f"removing {_HOME}; the next signal leaves it\n"


def test_a_signal_in_the_clean_up_after_work_that_was_done_waits_for_it() -> None:
    """It is heeded at the end."""
    story = _Story(cleaning=[signal.SIGTERM])
    with pytest.raises(KeyboardInterrupt):
        story.run()
    assert story.seen == ["working", "worked", "cleaning", "clean"]


def test_a_third_signal_gives_up_and_says_what_stays(capfd: pytest.CaptureFixture[str]) -> None:
    """A person that asks three times wants to leave."""
    story = _Story(working=[signal.SIGTERM], cleaning=[signal.SIGINT, signal.SIGTERM])
    with pytest.raises(KeyboardInterrupt):
        story.run()
    assert story.seen == ["working", "cleaning"]
    assert story.interrupts.has_given_up
    assert f"given up: {_HOME} stays" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("keep", [True, False])
def test_a_demo_that_is_interrupted_says_what_became_of_its_home(
    keep: bool, number: signal.Signals, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--keep` it stays, with what runs there, and the person is told how to end it."""
    homes = []

    def interrupted(settings: Settings, *_: object) -> None:
        homes.append(settings.home)
        signal.raise_signal(number)

    monkeypatch.setattr(demo_run, "_run_all_steps", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        run_demo(Settings(home=temporary / "own"), topics=1, ledgers=2, keep=keep, on_progress=print)
    (home,) = homes
    stays = f"{home} stays, with what runs in it; `sexton --home {home} down && rm -r {home}` removes both"
    assert str(stopped.value) == (stays if keep else f"{home} is removed, with what ran in it")
    assert home.exists() == keep


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalHandler() as interrupts, interrupts.raise_on_first_signal():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
