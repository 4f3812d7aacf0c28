"""Topic names, validated once at the edge and encoded for ids, keywords, object keys and metadata.

Source: Pulsar's naming, `persistent://tenant/namespace/topic[-partition-N]`.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from logstore.errors import InvalidInput

_PREFIX = "persistent://"
_SAFE = "._~=:-"  # with letters and digits: everything else is percent-encoded
_PARTITION = re.compile(r"-partition-(?P<number>[0-9]+)$")
MAX_ENCODED = 200
"""Longest encoded name, characters, inclusive: Temporal on SQL keeps ids and keywords in 255."""


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A valid topic name. Build it with `parse` or `from_encoded`, never by hand."""

    encoded: str
    """ASCII, at most `MAX_ENCODED` characters; what ids, search attributes and metadata carry."""

    @property
    def display(self) -> str:
        """The name as a person writes it; `parse(display)` gives the same name."""
        return unquote(self.encoded)

    @property
    def partition(self) -> int | None:
        """The partition's number, or None when the topic is not a partition."""
        found = _PARTITION.search(self.encoded)
        return int(found["number"]) if found else None

    @staticmethod
    def parse(text: str) -> "TopicName":
        """Validate what a user wrote, unencoded.

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
        if len(encoded) > MAX_ENCODED:
            raise InvalidInput("topic", expected=f"at most {MAX_ENCODED} characters encoded", found=text)
        _check_partition(encoded, text)
        return TopicName(encoded)

    @staticmethod
    def from_encoded(encoded: str) -> "TopicName":
        """Take back a name that `parse` once encoded.

        Raises:
            InvalidInput: The text is not the encoded form of any name.
        """
        name = TopicName.parse(unquote(encoded))
        if name.encoded != encoded:
            raise InvalidInput("topic", expected="a name in canonical encoded form", found=encoded)
        return name

    def __str__(self) -> str:
        return self.encoded


def _check_partition(encoded: str, text: str) -> None:
    found = _PARTITION.search(encoded)
    if found and str(int(found["number"])) != found["number"]:
        raise InvalidInput("topic", expected="a partition number without leading zeros", found=text)


def check_subscription(name: str) -> str:
    """Validate a subscription's name and return it.

    Raises:
        InvalidInput: Empty, longer than 120 characters, or with a character outside printable ASCII.
    """
    if not 0 < len(name) <= 120 or not all(" " < char <= "~" for char in name):
        raise InvalidInput("subscription", expected="1 to 120 printable ASCII characters", found=name)
    return name
