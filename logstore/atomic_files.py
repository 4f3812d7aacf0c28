"""Files that exist completely or not at all, even if a process dies or several processes write the same file.

A process that dies leaves at most a file whose name begins with a dot. No reader opens such files.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


def temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}")


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path. Its file replaces `path` after the block. If the block raises, the file is removed."""
    new = temporary_path(path)
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def create_or_read_text(path: Path, text: str) -> str:
    """Write `text` if the file does not exist. Return the text of the file, which the first writer wrote.

    File and folder are synchronized to disk, so other processes can rely on the text after a crash of the machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = temporary_path(path)
    try:
        with new.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(new, path)
        _sync_folder(path.parent)
    except FileExistsError:
        return path.read_text(encoding="utf-8")
    finally:
        new.unlink(missing_ok=True)
    return text


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. A symbolic link to a regular file is followed.

    A FIFO or a device is refused without being opened, because opening may block for ever and reading may never end.
    Raise `OSError` if the file cannot be opened or is not regular.
    """
    _require_regular(path.stat())  # check before opening, because opening a device may change it
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        _require_regular(os.fstat(descriptor))  # another file may have taken the name meanwhile
        yield file


def read_regular_file(path: Path, *, max_bytes: int) -> bytes:
    """Return the content of a regular file. Raise `OSError` if it has more than `max_bytes`."""
    with open_regular_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"longer than {max_bytes:,} bytes")
    return content


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
