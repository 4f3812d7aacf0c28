"""Files that settings name: each is read by one function, which refuses what cannot be read in one sentence."""

from pathlib import Path
from typing import Final

from logstore.errors import InvalidInput
from logstore.whole_files import read_regular_file
from workers.settings.model import Settings

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Length of a file that a setting names, inclusive: many times a bundle of all public authorities."""


def read_bytes(field: str, path: str, rule: str = "a file that can be read") -> bytes:
    """Return the content of a regular file of at most `MAX_FILE_BYTES`.

    Args:
        field: The setting that names the file.
        path: A link to a regular file is followed, as mounted secrets need it.
        rule: What the setting expects, as a phrase.

    Raises:
        InvalidInput: The file cannot be read, is not a regular file or is too long.
    """
    try:
        return read_regular_file(Path(path), max_bytes=MAX_FILE_BYTES)
    except OSError as error:
        raise InvalidInput(field, expected=f"{rule} ({error.strerror})", found=path) from None
    except ValueError:  # of a path with a NUL in it
        raise InvalidInput(field, expected=f"{rule} (it is no path)", found=path) from None


def read_text(field: str, path: str, rule: str) -> str:
    """The text of a file in UTF-8, without the mark that Windows begins one with; arguments are those of `read_bytes`.

    Raises:
        InvalidInput: It cannot be read, or is no text; nothing of what stands there is shown.
    """
    try:
        return read_bytes(field, path, rule).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(field, expected=f"{rule} (it is no text)", found=path) from None


def read_secret(field: str, path: str) -> str:
    """The text of a file that holds one secret, without the space around it, hence without its line's end.

    Raises:
        InvalidInput: It cannot be read, is empty, or holds more than a secret: no service takes one with a line end in
            it, and a client would leave such a key out without a word.
    """
    rule = "a file with a secret in it"
    text = read_text(field, path, rule).strip()
    if not text:
        raise InvalidInput(field, expected=f"{rule} (it is empty)", found=path)
    if not text.isprintable():
        raise InvalidInput(
            field, expected=f"{rule} (it has several lines, or characters that are not printed)", found=path
        )
    return text


def temporal_api_key(settings: Settings) -> str:
    """The API key for Temporal, which stands in a setting or in a file; empty where none is given.

    Raises:
        InvalidInput: It is given in both, or its file cannot be read or is empty.
    """
    key, path = settings.temporal_api_key.get_secret_value(), settings.temporal_api_key_file
    if key and path:
        raise InvalidInput("temporal_api_key_file", expected="it or temporal_api_key, not both", found=path)
    return read_secret("temporal_api_key_file", path) if path else key
