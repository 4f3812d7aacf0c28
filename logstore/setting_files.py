"""Readers of the files that settings name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logstore.atomic_files import read_regular_file
from logstore.errors import InvalidInput

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Maximum length of a setting's file, inclusive. All TLS certificates of public authorities are much shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PemFiles:
    """Paths of PEM files, or empty texts. Without `ca`, the certificate authorities of this machine are trusted."""

    ca: str = ""
    cert: str = ""
    key: str = ""


def read_setting_file(field: str, path: str, rule: str = "a file that can be read") -> bytes:
    """Return the content of a file of at most `MAX_FILE_BYTES`. An error says that `field` expects `rule`."""
    try:
        return read_regular_file(Path(path), max_bytes=MAX_FILE_BYTES)
    except OSError as error:
        raise InvalidInput(field, expected=f"{rule} ({error.strerror})", found=path) from None
    except ValueError:  # the path contains a NUL character
        raise InvalidInput(field, expected=f"{rule} (it is no path)", found=path) from None


def read_setting_text_file(field: str, path: str, rule: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark. An error message does not show the content."""
    try:
        return read_setting_file(field, path, rule).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(field, expected=f"{rule} (it is no text)", found=path) from None


def read_secret_file(field: str, path: str) -> str:
    """Return the secret in a file, without surrounding white space.

    Raises:
        InvalidInput: The file cannot be read, is empty, or has several lines or unprintable characters.
    """
    rule = "a file with a secret in it"
    text = read_setting_text_file(field, path, rule).strip()
    if not text:
        raise InvalidInput(field, expected=f"{rule} (it is empty)", found=path)
    if not text.isprintable():
        raise InvalidInput(
            field, expected=f"{rule} (it has several lines, or characters that are not printed)", found=path
        )
    return text
