"""Files that are there as a whole or not at all, whenever a process dies and however many write them.

A process that dies beside a file leaves one whose name begins with a dot, which nothing reads.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def unnamed(path: Path) -> Path:
    """A new path at which to write this file's content: each call has its own, because several may write at once."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which becomes the file when the block ends, in the place of one that was there before.

    A block that raises leaves everything as it was.
    """
    new = unnamed(path)
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def put_first(path: Path, text: str) -> str:
    """Write the file unless it is there; the text that stands in it, which is that of the first of all that write it.

    It is on the disk before it has its name, and the name before this returns: what others act upon must outlive the
    machine too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = unnamed(path)
    try:
        with new.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(new, path)
        _sync(path.parent)
    except FileExistsError:
        return path.read_text(encoding="utf-8")
    finally:
        new.unlink(missing_ok=True)
    return text


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
