"""Files that a command writes its result into, where the operator says.

A file is there as a whole or as it was before. A link stays, and the file that it leads to is replaced, with its mode.
A FIFO or a character device such as `/dev/stdout` is written into, as a shell's `>` does.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from logstore.errors import InvalidInput
from logstore.whole_files import replacing

_EXPECTED: Final = "a file in a folder that exists, a FIFO or a character device"
_STANDARD_STREAMS: Final = (1, 2)


def write_result_file(field: str, name: str | Path, parts: Iterable[str]) -> Path:
    """Write the parts into the file of that name, and return its absolute path as it was given.

    Args:
        field: The option, as it is typed.
        name: What the operator gave.
        parts: The text; halves of characters are written as references of XML.

    Raises:
        InvalidInput: The file cannot be written. A file that was there before is as it was.
    """
    path = Path(name).absolute()
    try:
        target = _checked(field, str(name), path)
        if target is None:
            with path.open("w", encoding="utf-8", errors="xmlcharrefreplace") as stream:
                stream.writelines(parts)
            return path
        with replacing(target) as new:
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
    """Refuse a name that no result can be written to, before the work is done.

    Raises:
        InvalidInput: It is no printable name of a regular file, a FIFO or a character device in a folder that exists.
    """
    try:
        _checked(field, str(name), Path(name).absolute())
    except OSError as error:
        raise InvalidInput(field, expected=_EXPECTED, found=str(name)) from error


def _checked(field: str, name: str, path: Path) -> Path | None:
    """Return the regular file to replace, at the end of all links; None for what is written into as it stands."""
    if not name or not name.isprintable():
        raise InvalidInput(field, expected=_EXPECTED, found=name)
    try:
        found = path.stat()
    except FileNotFoundError:
        target = path.resolve()  # a link may lead to a file that is not there yet
        if not target.parent.is_dir() or name.endswith("/"):
            raise InvalidInput(field, expected=_EXPECTED, found=name) from None
        return target
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode):
        return None
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(field, expected=_EXPECTED, found=name)
    return None if _is_standard_stream(found) else path.resolve()


def _is_standard_stream(found: os.stat_result) -> bool:
    """Whether this process has its output redirected to the file: replaced, the file would get no more of that."""
    for descriptor in _STANDARD_STREAMS:
        try:
            if os.path.samestat(found, os.fstat(descriptor)):
                return True
        except OSError:  # it is closed
            continue
    return False
