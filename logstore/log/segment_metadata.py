"""Metadata of segments and confirmations, by which storage identifies each upload.

If another writer was faster, a writer uploads its entries again with a higher segment number. If the catalog is lost,
storage must show which upload was registered. The metadata of each upload therefore names the append, and the extent
of the ledger before the upload. A *confirmation* is an upload without entries. It states the registered extent, and is
never registered.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

DIGEST_FIELD: Final = "sha256"
"""Metadata field of a segment with the SHA-256 of its content."""


def sha256_hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


UPLOAD_ID_FIELD: Final = "append"
"""Metadata field with the `SegmentUploadId`."""

EXTENT_FIELD: Final = "behind"
"""Metadata field with the `RegisteredLedgerExtent`."""

_UPLOAD_ID_FORM: Final = re.compile(r"(?P<append>[0-9a-f]{32})-(?P<nth>[1-9][0-9]{0,8})")
_EXTENT_FORM: Final = re.compile(r"(?P<segment>-1|[0-9]{1,8}):(?P<entries>[0-9]{1,18})")


class SegmentUploadId(NamedTuple):
    """Id of an upload: the append's id, and the upload's number. Only an append's last upload can be registered."""

    append_id: str  # 32 hexadecimal digits
    number: int  # from 1, in order of upload

    def __str__(self) -> str:
        return f"{self.append_id}-{self.number}"

    @staticmethod
    def parse(text: str | None) -> "SegmentUploadId | None":
        """Parse the text form of an upload id. Return `None` for any other text. Older objects have no upload id."""
        match = _UPLOAD_ID_FORM.fullmatch(text or "")
        return SegmentUploadId(match["append"], int(match["nth"])) if match else None


class RegisteredLedgerExtent(NamedTuple):
    """Part of a ledger that was registered at one time. Later registrations only add to this part."""

    last_segment: int  # highest registered segment number, -1: none; later registrations have higher numbers
    entries: int  # entries of all registered segments

    def __str__(self) -> str:
        return f"{self.last_segment}:{self.entries}"

    @staticmethod
    def parse(text: str | None) -> "RegisteredLedgerExtent | None":
        match = _EXTENT_FORM.fullmatch(text or "")
        return RegisteredLedgerExtent(int(match["segment"]), int(match["entries"])) if match else None


MIN_CONFIRMATION_GAP: Final = (1 << 16) + 1
MAX_CONFIRMATION_GAP: Final = 2 << 16
"""Smallest and largest distance from a segment's number to the number of its confirmation, both inclusive.

The smallest distance exceeds the number of segments of any ledger. So a confirmation never takes a segment's number.
"""


def is_confirmation(number: int, metadata: Mapping[str, str]) -> bool:
    """Return whether an upload is a confirmation: the segment number in its extent is far below `number`."""
    extent = RegisteredLedgerExtent.parse(metadata.get(EXTENT_FIELD))
    return extent is not None and MIN_CONFIRMATION_GAP <= number - extent.last_segment <= MAX_CONFIRMATION_GAP
