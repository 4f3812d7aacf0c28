"""Files for the results of commands. A failed write leaves the file as it was.

If the path is a link, the target of the link is replaced. A replaced file keeps its mode. FIFOs and character devices
are written to directly.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from logstore.atomic_files import replace_atomically
from logstore.errors import InvalidInput

_EXPECTED: Final = "a file in a folder that exists, a FIFO or a character device"


def write_result_file(field: str, name: str | Path, parts: Iterable[str]) -> Path:
    """Write the parts into a file, and return the file's absolute path. Raise `InvalidInput` if that fails."""
    path = Path(name).absolute()
    try:
        target = _resolve_target_of_atomic_write(field, str(name), path)
        if target is None:
            with path.open("w", encoding="utf-8", errors="xmlcharrefreplace") as stream:
                stream.writelines(parts)
            return path
        with replace_atomically(target) as new:
            with new.open("w", encoding="utf-8", errors="xmlcharrefreplace") as file:
                file.writelines(parts)
            if target.exists():
                new.chmod(stat.S_IMODE(target.stat().st_mode))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidInput(field, expected=f"{_EXPECTED} ({error.strerror})", found=str(name)) from error
    return path


def check_result_file(field: str, name: str | Path) -> None:
    """Raise `InvalidInput` if a result cannot be written to the file. Call this before the command does its work."""
    try:
        _resolve_target_of_atomic_write(field, str(name), Path(name).absolute())
    except OSError as error:
        raise InvalidInput(field, expected=_EXPECTED, found=str(name)) from error


def _resolve_target_of_atomic_write(field: str, name: str, path: Path) -> Path | None:
    """Follow links and return the regular file to replace. Return `None` for a path that is written to directly."""
    if not name or not name.isprintable():
        raise InvalidInput(field, expected=_EXPECTED, found=name)
    try:
        status = path.stat()
    except FileNotFoundError:
        target = path.resolve()  # the target of a link may not exist yet
        if not target.parent.is_dir() or name.endswith("/"):
            raise InvalidInput(field, expected=_EXPECTED, found=name) from None
        return target
    if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(field, expected=_EXPECTED, found=name)
    return None if _is_stdout_or_stderr(status) else path.resolve()


def _is_stdout_or_stderr(status: os.stat_result) -> bool:
    """Return whether stdout or stderr is redirected to the file. Such a file must not be replaced."""
    for descriptor in (1, 2):
        try:
            if os.path.samestat(status, os.fstat(descriptor)):
                return True
        except OSError:  # the descriptor is closed
            continue
    return False
