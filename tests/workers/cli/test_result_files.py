"""Files that commands write their results into: whole or as before, and nothing is replaced but a regular file."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.errors import InvalidInput
from workers.cli.output import check_result_file, write_result_file


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _failing() -> Iterator[str]:
    yield "half"
    raise RuntimeError("stop")


def test_new_file_and_one_that_was_there_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert write_result_file("html", path, ["a", "b"]) == path
    path.chmod(0o640)
    write_result_file("html", str(path), ["c\ud800"])
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("c&#55296;", 0o640)
    assert _names(tmp_path) == ["page.html"]


def test_file_is_as_it_was_if_its_content_fails(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="stop"):
        write_result_file("html", path, _failing())
    assert (path.read_text(), _names(tmp_path)) == ("before", ["page.html"])


@pytest.mark.parametrize("exists", [False, True])
def test_link_stays_and_leads_to_the_result(exists: bool, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "page.html", tmp_path / "link"
    if exists:
        target.write_text("before")
    link.symlink_to("real/page.html")
    assert write_result_file("html", link, ["new"]) == link
    assert (link.is_symlink(), target.is_symlink(), target.read_text()) == (True, False, "new")


def test_fifo_is_written_into_and_stays(tmp_path: Path) -> None:
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
    reader.start()
    write_result_file("html", fifo, ["through"])
    reader.join()
    assert (read, stat.S_ISFIFO(fifo.stat().st_mode)) == (["through"], True)


def test_character_device_is_written_into_and_stays(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    write_result_file("html", link, ["gone"])
    assert (link.is_symlink(), Path("/dev/null").is_char_device()) == (True, True)


def test_file_that_output_is_redirected_to_is_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaced, it would get nothing of what the command prints next."""
    path = tmp_path / "out"
    path.write_text("")
    inode = path.stat().st_ino
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda fd: path.stat() if fd == 1 else real(fd))
    write_result_file("html", path, ["page"])
    assert (path.read_text(), path.stat().st_ino) == ("page", inode)


def test_name_that_no_result_can_be_written_to_is_bad_input(tmp_path: Path) -> None:
    """Before any work is done, and nothing is left there."""
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    (tmp_path / "file").write_text("x")
    here = str(tmp_path)
    for name in ("", f"{here}/no/x", here, f"{here}/x/", f"{here}/a\x07", str(loop), f"{here}/file/x"):
        with pytest.raises(InvalidInput, match="html: expected a file in a folder that exists"):
            check_result_file("html", name)
        with pytest.raises(InvalidInput, match="html: expected a file in a folder that exists"):
            write_result_file("html", name, ["x"])
    assert _names(tmp_path) == ["file", "loop"]
