"""Names, validated once at the edge; those of topics encoded for ids, keywords, object keys and metadata.

No new name steers a terminal, reads another way than it is written, or means a folder and its parent.

Source: Pulsar's naming, `persistent://tenant/namespace/topic[-partition-N]`.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from logstore.errors import InvalidInput

_PREFIX = "persistent://"
_SAFE = "._~=:-"  # with letters and digits: everything else is percent-encoded
_STEERS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line and paragraph separators, and what overrides the direction of text."""
_FOLDERS = frozenset({".", ".."})
_PARTITION = re.compile(r"-partition-(?P<number>[0-9]+)$")
MAX_ENCODED_CHARACTERS = 200
"""Longest encoded name, characters, inclusive: Temporal on SQL keeps ids and keywords in 255."""

_MOST_NAME = 200
_MOST_REASON = 2_000


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A valid topic name. Build it with `parse`, `known` or `from_encoded`, never by hand."""

    encoded: str
    """ASCII, at most `MAX_ENCODED_CHARACTERS` characters; what ids, search attributes and metadata carry."""

    @property
    def partition(self) -> int | None:
        """The partition's number, or None when the topic is not a partition."""
        found = _PARTITION.search(self.encoded)
        return int(found["number"]) if found else None

    @staticmethod
    def parse(text: str) -> "TopicName":
        """Validate the name of a topic to be, as a user wrote it, unencoded.

        Raises:
            InvalidInput: As `known`, or it holds control characters or signs that override the direction of text,
                or a part of it is `.` or `..`.
        """
        name = TopicName.parse_existing(text)
        if _STEERS.search(text):
            raise InvalidInput("topic", expected="a name without control and direction characters", found=text)
        if _FOLDERS & set(text.removeprefix(_PREFIX).split("/")):
            raise InvalidInput("topic", expected="parts other than . and ..", found=text)
        return name

    @staticmethod
    def parse_existing(text: str) -> "TopicName":
        """Validate what a user wrote of a topic that there may be: earlier builds took more names than `parse`.

        Raises:
            InvalidInput: Wrong scheme, not three parts, an empty part, a partition number that is not
                canonical decimal, text that UTF-8 cannot hold, or longer than 200 characters encoded.
        """
        form = f"{_PREFIX}tenant/namespace/topic"
        parts = text.removeprefix(_PREFIX).split("/")
        if not text.startswith(_PREFIX) or len(parts) != 3 or not all(parts):
            raise InvalidInput("topic", expected=form, found=text)
        try:
            encoded = _PREFIX + "/".join(quote(part, safe=_SAFE) for part in parts)
        except UnicodeEncodeError:
            raise InvalidInput("topic", expected="text that UTF-8 can hold", found=text) from None
        if len(encoded) > MAX_ENCODED_CHARACTERS:
            raise InvalidInput("topic", expected=f"at most {MAX_ENCODED_CHARACTERS} characters encoded", found=text)
        found = _PARTITION.search(encoded)
        if found and str(int(found["number"])) != found["number"]:
            raise InvalidInput("topic", expected="a partition number without leading zeros", found=text)
        return TopicName(encoded)

    @staticmethod
    def from_encoded(encoded: str) -> "TopicName":
        """Take back a name that was once encoded.

        Raises:
            InvalidInput: The text is not the encoded form of any name.
        """
        name = TopicName.parse_existing(unquote(encoded))
        if name.encoded != encoded:
            raise InvalidInput("topic", expected="a name in canonical encoded form", found=encoded)
        return name

    def __str__(self) -> str:
        return self.encoded


def encode_prefix(text: str) -> str:
    """How the encoded names begin of all topics whose names, as a person writes them, begin so.

    Args:
        text: A piece of the scheme `persistent://`, or the whole of it and more; text that UTF-8 can hold.
    """
    scheme, rest = text[: len(_PREFIX)], text[len(_PREFIX) :]
    return scheme + quote(rest, safe=f"{_SAFE}/")


def check_subscription(name: str) -> str:
    """Validate a subscription's name and return it.

    Raises:
        InvalidInput: Empty, longer than 120 characters, with a character outside printable ASCII, or `.` or `..`.
    """
    if not 0 < len(name) <= 120 or not all(" " < char <= "~" for char in name) or name in _FOLDERS:
        expected = "1 to 120 printable ASCII characters, no space, not . or .."
        raise InvalidInput("subscription", expected=expected, found=name)
    return name


def check_name(field: str, name: str) -> str:
    """Validate the name of a producer or of an actor, and return it.

    Raises:
        InvalidInput: Empty, longer than 200 characters, with one that cannot be printed, or `.` or `..`.
    """
    if not 0 < len(name) <= _MOST_NAME or not name.isprintable() or name.isspace() or name in _FOLDERS:
        raise InvalidInput(field, expected=f"1 to {_MOST_NAME} printable characters, not . or ..", found=name)
    return name


def check_reason(reason: str) -> str:
    """Validate the reason of an act, as the audit log keeps it, and return it; it may be empty.

    Raises:
        InvalidInput: Longer than 2,000 characters, or with one that cannot be printed.
    """
    if len(reason) > _MOST_REASON or not reason.isprintable():
        raise InvalidInput("reason", expected=f"at most {_MOST_REASON:,} printable characters", found=reason)
    return reason
