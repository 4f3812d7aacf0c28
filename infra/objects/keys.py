r"""Which keys and metadata may be written: those that every supported store keeps apart.

SeaweedFS (4.48, run here) keeps keys as file paths: it stores `a//b` and `a\b` as `a/b`, and a delete of
`a//b` removes `a/b`. Deleting such a key could take someone else's object, so it is refused everywhere.
"""

import re
from collections.abc import Mapping, Sequence

from logstore.errors import InvalidInput

LONGEST_KEY_BYTES = 1024
_METADATA_BYTES = 2048  # Source: S3 User Guide, "User-defined object metadata"
_SUSPECT = ("\\", "//", "/.", "/\0")
_AMBIGUOUS = re.compile(r"\\|(?:^|/)\.{0,2}(?:/|$)")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # Source: XML 1.0, section 2.2
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")


def check_key(key: str) -> None:
    """Refuse what no store can hold: an empty key, more than 1,024 UTF-8 bytes, NUL, lone surrogates.

    Raises:
        InvalidInput: Names the key.
    """
    problem = _impossible(key)
    if problem:
        raise InvalidInput("object key", expected=problem, found=key)


def check_written_key(key: str) -> None:
    """Refuse a key that some supported store would confuse with another one.

    Raises:
        InvalidInput: Names the key.
    """
    problem = refusal(key)
    if problem:
        raise InvalidInput("object key", expected=problem, found=key)


def refusal(key: str) -> str | None:
    """Why a key may be neither written nor deleted, or None when it may."""
    if _AMBIGUOUS.search(key):
        return "no backslash, and no part between slashes that is empty, `.` or `..`"
    return _impossible(key)


def refusals(keys: Sequence[str]) -> dict[str, str]:
    """Those of `keys` that may not be deleted, each with its reason.

    Clean pages are the rule: they are recognised by substring searches over all keys at once.
    """
    joined = "/" + "\0/".join(keys) + "\0"
    if joined.isascii() and joined.count("\0") == len(keys) and not any(map(joined.__contains__, _SUSPECT)):
        return {} if max(map(len, keys), default=0) <= LONGEST_KEY_BYTES else _refused(keys)
    return _refused(keys)


def not_in_xml(keys: Sequence[str]) -> list[str]:
    """Those of `keys` that no XML document can spell, ascending as given: bulk requests cannot name them."""
    if " ".join(keys).isprintable():  # a control character or a non-character is never printable
        return []
    return [key for key in keys if _NOT_XML.search(key)]


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Refuse metadata that does not come back as it went in.

    Names are lower-case ASCII letters, digits, `-` and `_`; values are printable ASCII, not empty, without
    outer spaces (SeaweedFS drops empty values); 2,048 bytes in all.

    Raises:
        InvalidInput: Names the entry.
    """
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise InvalidInput("metadata name", expected="lower-case ASCII letters, digits, - and _", found=name)
        if not _VALUE.fullmatch(value):
            rule = "printable ASCII, not empty, without outer spaces"
            raise InvalidInput(f"metadata {name}", expected=rule, found=value)
    if sum(map(len, metadata)) + sum(map(len, metadata.values())) > _METADATA_BYTES:
        raise InvalidInput("metadata", expected=f"at most {_METADATA_BYTES} bytes in all", found=dict(metadata))


def _refused(keys: Sequence[str]) -> dict[str, str]:
    judged = ((key, refusal(key)) for key in keys)
    return {key: reason for key, reason in judged if reason}


def _impossible(key: str) -> str | None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "text that UTF-8 can spell"
    if not 1 <= size <= LONGEST_KEY_BYTES:
        return f"1 to {LONGEST_KEY_BYTES} UTF-8 bytes"
    return "no NUL character" if "\0" in key else None
