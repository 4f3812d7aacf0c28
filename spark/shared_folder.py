"""Proof that an executor sees the very folder to which its driver's attempt writes.

The setting `bulk_dir` may name a folder that only some machines see. A task would then fail for want of a file, or
write its output where nobody looks for it.
"""

import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from uuid import uuid4

from logstore.errors import PreconditionFailed

_NAME: Final = ".nonce"  # a name that begins with a dot is no output


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """The folder of one attempt, with a random text that stands in it."""

    path: Path
    nonce: str

    @staticmethod
    def mark(path: Path) -> "SharedFolder":
        """Write a new nonce into the folder, which exists."""
        nonce = uuid4().hex
        (path / _NAME).write_text(nonce, encoding="utf-8")
        return SharedFolder(path, nonce)

    def require(self) -> None:
        """Check in an executor that it sees the folder and may write there; after one success it is not read again.

        Raises:
            PreconditionFailed: It does not, or sees another folder under this path.
        """
        _require(self)


@lru_cache(maxsize=64)
def _require(folder: SharedFolder) -> None:
    try:
        found = (folder.path / _NAME).read_text(encoding="utf-8")
    except OSError as error:
        raise _refused(f"{error.strerror}: {folder.path}") from error
    if found != folder.nonce:
        raise _refused(f"another folder at {folder.path}")
    if not os.access(folder.path, os.W_OK):
        raise _refused(f"no right to write to {folder.path}")


def _refused(found: str) -> PreconditionFailed:
    return PreconditionFailed(
        "bulk_dir: expected a folder that every executor sees under the same path and may write to, found on"
        f" {socket.gethostname()}: {found}; mount it there too, or run with spark_master=local[*]"
    )
