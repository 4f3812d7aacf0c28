"""Check that an executor sees the driver's attempt folder. Some machines may not see the folder `bulk_dir`."""

import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final
from uuid import uuid4

from logstore.errors import PreconditionFailed

_NONCE_FILE: Final = ".nonce"  # names that begin with a dot are not output


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """Folder of one attempt, with the random content of its nonce file."""

    path: Path
    nonce: str

    @staticmethod
    def mark_with_nonce(path: Path) -> "SharedFolder":
        nonce = uuid4().hex
        (path / _NONCE_FILE).write_text(nonce, encoding="utf-8")
        return SharedFolder(path, nonce)

    def require_visible(self) -> None:
        """Raise `PreconditionFailed` unless this executor sees the folder and may write there. A success is cached."""
        _require_visible(self)


@lru_cache(maxsize=64)
def _require_visible(folder: SharedFolder) -> None:
    try:
        nonce = (folder.path / _NONCE_FILE).read_text(encoding="utf-8")
    except OSError as error:
        raise _unusable_folder(f"{error.strerror}: {folder.path}") from error
    if nonce != folder.nonce:
        raise _unusable_folder(f"another folder at {folder.path}")
    if not os.access(folder.path, os.W_OK):
        raise _unusable_folder(f"no right to write to {folder.path}")


def _unusable_folder(found: str) -> PreconditionFailed:
    return PreconditionFailed(
        "bulk_dir: expected a folder that every executor sees under the same path and may write to, found on"
        f" {socket.gethostname()}: {found}; mount it there too, or run with spark_master=local[*]"
    )
