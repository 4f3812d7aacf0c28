r"""Rules for keys and metadata that every supported store keeps unchanged and distinct.

SeaweedFS (4.48, tested) stores keys as file paths: `a//b` and `a\b` become `a/b`, and a delete of `a//b` removes `a/b`.
A delete of `a//b` could therefore remove an object of another application. Sexton refuses such keys for every store.
"""

import re
from collections.abc import Mapping, Sequence

from logstore.errors import InvalidInput

MAX_KEY_BYTES = 1024
_MAX_METADATA_BYTES = 2048  # Source: S3 User Guide, "User-defined object metadata"
_SUSPECT_PARTS = ("\\", "//", "/.", "/\0")
_AMBIGUOUS = re.compile(r"\\|(?:^|/)\.{0,2}(?:/|$)")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # Source: XML 1.0, section 2.2
_METADATA_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_METADATA_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


def require_possible_key(key: str) -> None:
    """Refuse a key that no store supports.

    Raises:
        InvalidInput: The key is empty, has more than 1,024 UTF-8 bytes, or has NUL or a lone surrogate.
    """
    problem = _find_violated_limit(key)
    if problem:
        raise InvalidInput("object key", expected=problem, found=key)


def require_writable_key(key: str) -> None:
    """Refuse a key that a supported store would confuse with another key, or that `require_possible_key` refuses."""
    problem = find_violated_rule(key)
    if problem:
        raise InvalidInput("object key", expected=problem, found=key)


def find_violated_rule(key: str) -> str | None:
    if _AMBIGUOUS.search(key):
        return "no backslash, and no part between slashes that is empty, `.` or `..`"
    return _find_violated_limit(key)


def find_violated_rules(keys: Sequence[str]) -> dict[str, str]:
    """Return the violated rule by key. Keys that violate no rule are left out."""
    joined = "/" + "\0/".join(keys) + "\0"
    if joined.isascii() and joined.count("\0") == len(keys) and not any(map(joined.__contains__, _SUSPECT_PARTS)):
        return {} if max(map(len, keys), default=0) <= MAX_KEY_BYTES else _check_each(keys)
    return _check_each(keys)


def find_keys_outside_xml(keys: Sequence[str]) -> list[str]:
    """Return the keys that XML cannot represent, in the given order. Bulk requests are XML."""
    if " ".join(keys).isprintable():  # characters outside XML are never printable
        return []
    return [key for key in keys if _NOT_XML.search(key)]


def require_supported_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that a supported store would change.

    Names consist of lower-case ASCII letters, digits, `-` and `_`. Values are printable ASCII, not empty (SeaweedFS
    drops empty values), and have no space at either end. Names and values together have at most 2,048 bytes.

    Raises:
        InvalidInput: A name, a value or the total size is not supported.
    """
    for name, value in metadata.items():
        if not _METADATA_NAME.fullmatch(name):
            raise InvalidInput("metadata name", expected="lower-case ASCII letters, digits, - and _", found=name)
        if not _METADATA_VALUE.fullmatch(value):
            rule = "printable ASCII, not empty, without outer spaces"
            raise InvalidInput(f"metadata {name}", expected=rule, found=value)
    if sum(map(len, metadata)) + sum(map(len, metadata.values())) > _MAX_METADATA_BYTES:
        raise InvalidInput("metadata", expected=f"at most {_MAX_METADATA_BYTES} bytes in all", found=dict(metadata))


def _check_each(keys: Sequence[str]) -> dict[str, str]:
    return {key: problem for key in keys if (problem := find_violated_rule(key))}


def _find_violated_limit(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "text that UTF-8 can spell"
    if not 1 <= size <= MAX_KEY_BYTES:
        return f"1 to {MAX_KEY_BYTES} UTF-8 bytes"
    return "no NUL character" if "\0" in key else None
