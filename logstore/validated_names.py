"""Names of topics, subscriptions, producers and actors. Each name is validated once, where it enters Sexton.

Topic names are encoded for ids, keywords, object keys and metadata.

Source: Pulsar's naming, `persistent://tenant/namespace/topic[-partition-N]`.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from logstore.errors import InvalidInput

_PREFIX = "persistent://"
_UNQUOTED = "._~=:-"  # stay, as do letters and digits; all other characters are percent-encoded
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line and paragraph separators, and characters that override the direction of text."""
_DOT_FOLDERS = frozenset({".", ".."})
_PARTITION = re.compile(r"-partition-(?P<number>[0-9]+)$")
MAX_ENCODED_CHARACTERS = 200
"""Longest encoded name, inclusive. Temporal on SQL keeps ids and keywords in 255 characters."""

_MAX_NAME_CHARACTERS = 200
_MAX_REASON_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    encoded: str

    @property
    def partition(self) -> int | None:
        match = _PARTITION.search(self.encoded)
        return int(match["number"]) if match else None

    @staticmethod
    def parse(text: str) -> "TopicName":
        """Validate the unencoded name of a new topic.

        Raises:
            InvalidInput: `parse_existing` refuses the name, the name has control characters, or a part is `.` or `..`.
        """
        name = TopicName.parse_existing(text)
        if _CONTROL_CHARACTERS.search(text):
            raise InvalidInput("topic", expected="a name without control and direction characters", found=text)
        if _DOT_FOLDERS & set(text.removeprefix(_PREFIX).split("/")):
            raise InvalidInput("topic", expected="parts other than . and ..", found=text)
        return name

    @staticmethod
    def parse_existing(text: str) -> "TopicName":
        """Validate the unencoded name of a topic that may exist. Earlier builds accepted names that `parse` refuses.

        Raises:
            InvalidInput: The name has a wrong scheme, not three parts, an empty part, a partition number that is not
                canonical decimal, text that UTF-8 cannot encode, or more than 200 encoded characters.
        """
        form = f"{_PREFIX}tenant/namespace/topic"
        parts = text.removeprefix(_PREFIX).split("/")
        if not text.startswith(_PREFIX) or len(parts) != 3 or not all(parts):
            raise InvalidInput("topic", expected=form, found=text)
        try:
            encoded = _PREFIX + "/".join(quote(part, safe=_UNQUOTED) for part in parts)
        except UnicodeEncodeError:
            raise InvalidInput("topic", expected="text that UTF-8 can hold", found=text) from None
        if len(encoded) > MAX_ENCODED_CHARACTERS:
            raise InvalidInput("topic", expected=f"at most {MAX_ENCODED_CHARACTERS} characters encoded", found=text)
        match = _PARTITION.search(encoded)
        if match and str(int(match["number"])) != match["number"]:
            raise InvalidInput("topic", expected="a partition number without leading zeros", found=text)
        return TopicName(encoded)

    @staticmethod
    def from_encoded(encoded: str) -> "TopicName":
        """Parse an encoded name. Raise `InvalidInput` if the text is not the canonical encoding of a name."""
        name = TopicName.parse_existing(unquote(encoded))
        if name.encoded != encoded:
            raise InvalidInput("topic", expected="a name in canonical encoded form", found=encoded)
        return name

    def __str__(self) -> str:
        return self.encoded


def encode_topic_prefix(text: str) -> str:
    """Return the prefix of all encoded names whose unencoded names begin with `text`.

    `text` must be a prefix of the scheme `persistent://` or begin with this scheme. `text` must be valid UTF-8.
    """
    scheme, rest = text[: len(_PREFIX)], text[len(_PREFIX) :]
    return scheme + quote(rest, safe=f"{_UNQUOTED}/")


def check_subscription_name(name: str) -> str:
    """Return `name` if it is a valid name of a subscription.

    Raises:
        InvalidInput: The name is empty, longer than 120 characters, `.` or `..`, or has a space or a character outside
            printable ASCII.
    """
    if not 0 < len(name) <= 120 or not all(" " < char <= "~" for char in name) or name in _DOT_FOLDERS:
        expected = "1 to 120 printable ASCII characters, no space, not . or .."
        raise InvalidInput("subscription", expected=expected, found=name)
    return name


def check_producer_or_actor_name(field: str, name: str) -> str:
    """Return `name` if it is a valid name of a producer or of an actor.

    Raises:
        InvalidInput: The name is empty, longer than 200 characters, not printable, `.` or `..`.
    """
    if not 0 < len(name) <= _MAX_NAME_CHARACTERS or not name.isprintable() or name.isspace() or name in _DOT_FOLDERS:
        raise InvalidInput(field, expected=f"1 to {_MAX_NAME_CHARACTERS} printable characters, not . or ..", found=name)
    return name


def check_audit_reason(reason: str) -> str:
    """Return `reason` if it is valid for the audit log. A reason may be empty.

    Raises:
        InvalidInput: The reason is longer than 2,000 characters, or not printable.
    """
    if len(reason) > _MAX_REASON_CHARACTERS or not reason.isprintable():
        raise InvalidInput("reason", expected=f"at most {_MAX_REASON_CHARACTERS:,} printable characters", found=reason)
    return reason
