"""The state directory: private, whole, and plain about what stands in the way."""

import errno
import os
import shutil
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.stack.stack_home import StackHome
from logstore.errors import ServiceFailed


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> StackHome:
    """A prepared home."""
    at = StackHome.at(tmp_path / "home")
    at.create_directories_and_check_space()
    return at


def test_home_of_a_relative_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers run in directories of their own, so a relative home must not follow them there."""
    monkeypatch.chdir(tmp_path)
    assert StackHome.at("state").root == tmp_path / "state"


def test_prepare_twice_leaves_private_directories(home: StackHome) -> None:
    """Everything below the home is its owner's alone, and preparing again is harmless."""
    home.create_directories_and_check_space()
    rooms = [home.root, home.objects, home.zookeeper, home.logs, home.traces, home.pids, home.scratch]
    assert {_mode(room) for room in rooms} == {0o700}


def test_credentials_asked_twice_are_generated_once(home: StackHome) -> None:
    """A restart keeps the key pair; the file is readable by its owner only, and keys differ between homes."""
    assert home.read_credentials() is None
    first = home.ensure_credentials()
    assert home.ensure_credentials() == first == home.read_credentials()
    assert _mode(home.credentials_file) == 0o600
    other = StackHome.at(home.root / "other")
    other.create_directories_and_check_space()
    assert other.ensure_credentials().secret_key != first.secret_key
    assert len(first.secret_key) >= 40


def test_prepare_below_a_file_names_the_home(tmp_path: Path) -> None:
    """A home that cannot be created is one clear sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(ServiceFailed, match=r"home: cannot use .*file/home.*Not a directory.*SEXTON_HOME"):
        StackHome.at(tmp_path / "file" / "home").create_directories_and_check_space()


def test_prepare_with_little_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 200 MiB nothing is started: a store that fills up half way is worse."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=150 << 20))
    with pytest.raises(ServiceFailed, match=r"only 150 MiB are free.*200 are needed; free some space"):
        StackHome.at(tmp_path / "home").create_directories_and_check_space()


def test_write_on_a_full_disk_keeps_the_old_file(home: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is said so, the earlier content stays whole, and no temporary file remains."""
    home.write_file(home.ports_file, "{}")
    before = sorted(path.name for path in home.root.iterdir())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ServiceFailed, match=r"the disk of .* is full; free some space"):
        home.write_file(home.ports_file, '{"temporal": 1}')
    assert home.ports_file.read_text() == "{}"
    assert sorted(path.name for path in home.root.iterdir()) == before


@pytest.mark.parametrize("content", ["{", "[1]", "\N{SNOWMAN}"])
def test_read_of_a_damaged_file_names_it(home: StackHome, content: str) -> None:
    """A damaged state file is named instead of surfacing as a parser's error."""
    home.ports_file.write_text(content, encoding="utf-8")
    with pytest.raises(ServiceFailed, match=r"ports\.json is damaged"):
        home.read_json_if_exists(home.ports_file)


def test_credentials_that_lack_a_key_name_the_file(home: StackHome) -> None:
    """Half a key pair is damage, not an internal error."""
    home.write_file(home.credentials_file, '{"access_key": "A"}')
    with pytest.raises(ServiceFailed, match=r"credentials\.json is damaged"):
        home.read_credentials()


def test_lock_held_by_another_makes_the_next_wait(home: StackHome) -> None:
    """Two ups of one home never overlap."""
    entered, order = threading.Event(), list[str]()

    def second() -> None:
        entered.set()
        with home.hold_lock():
            order.append("second")

    with home.hold_lock():
        waiting = threading.Thread(target=second)
        waiting.start()
        entered.wait(5)
        waiting.join(0.2)
        assert waiting.is_alive()
        order.append("first")
    waiting.join(5)
    assert order == ["first", "second"]


def test_lock_never_given_up_is_reported(home: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a hung up or down is told so in the end."""
    monkeypatch.setattr("infra.stack.stack_home._LOCK_WAIT_S", 0.1)
    with home.hold_lock(), pytest.raises(ServiceFailed, match="has held"), home.hold_lock():
        pass
