"""Keys by which payloads are encrypted, as a file holds them: one a line, the name of a key and 32 bytes in base64.

The first encrypts what is new, all of them decrypt what was written before: so a key is changed without a moment at
which something cannot be read. Empty lines and lines that begin with `#` count for nothing.
"""

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Final

from logstore.errors import InvalidInput
from workers.settings.files import read_text

PAYLOAD_KEY_FILE: Final = "payload_key_file"
_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RULE: Final = "lines of a key's name and 32 bytes in base64, each name once"


def read_payload_keys(path: str) -> Mapping[str, bytes]:
    """Keys by name, in the order of the file; none where no file is given.

    Raises:
        InvalidInput: The file cannot be read, holds no key, or a line that is none; what stands in it is not shown.
    """
    if not path:
        return {}
    lines = read_text(PAYLOAD_KEY_FILE, path, f"a file of {_RULE}").splitlines()
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        name, _, text = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if name in keys or not _NAME.fullmatch(name):
            raise _refused(path, number)
        keys[name] = _key(path, number, text)
    if not keys:
        raise InvalidInput(PAYLOAD_KEY_FILE, expected=f"a file of {_RULE} (it has none)", found=path)
    return keys


def _key(path: str, number: int, text: str) -> bytes:
    try:
        key = b64decode(text.strip(), validate=True)
    except ValueError:  # no base64, or no ASCII
        raise _refused(path, number) from None
    if len(key) != _BYTES:
        raise _refused(path, number)
    return key


def _refused(path: str, number: int) -> InvalidInput:
    return InvalidInput(PAYLOAD_KEY_FILE, expected=_RULE, found=f"{path}, line {number}")
