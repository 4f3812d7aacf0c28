"""Files are there as a whole or not at all."""

import os
from pathlib import Path

import pytest

from logstore.atomic_files import create_or_read_text, replace_atomically
from logstore.failpoints import SimulatedCrash


def test_file_is_replaced_once_all_of_it_is_written(tmp_path: Path) -> None:
    """Until then the old one stands."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replace_atomically(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text() == "new"


def test_block_that_raises_changes_nothing(tmp_path: Path) -> None:
    """Nor does it leave a file behind."""

    def write_half() -> None:
        with replace_atomically(tmp_path / "a.txt") as new:
            new.write_text("half")
            raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_first_writer_has_said_it_for_all(tmp_path: Path) -> None:
    """The others are told what it wrote; the folder is made."""
    path = tmp_path / "folder" / "a.txt"
    assert create_or_read_text(path, "one") == "one"
    assert create_or_read_text(path, "two") == "one"
    assert [one.name for one in path.parent.iterdir()] == ["a.txt"]


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file after a loss of power would be read for ever as what the first writer said."""
    done: list[str] = []
    real_sync, real_link = os.fsync, os.link

    def sync(descriptor: int) -> None:
        done.append("sync")
        real_sync(descriptor)

    def link(old: Path, new: Path) -> None:
        done.append("link")
        real_link(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "link", link)
    create_or_read_text(tmp_path / "a.txt", "one")
    assert done == ["sync", "link", "sync"]
