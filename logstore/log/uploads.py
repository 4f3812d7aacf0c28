"""What a data segment's object says of its upload, for the day on which no row of a catalog speaks of it.

A writer that loses a race uploads the same entries again under a later number. From the object alone nobody could tell
the upload that was registered from those that were not; so each names its append, and what its writer saw registered.

A *confirmation* is an upload without entries, which is never registered: it is there for what it says was registered.
"""

import re
from typing import Final, NamedTuple

APPEND: Final = "append"
"""Name under which the metadata holds the `UploadMark`."""

BEHIND: Final = "behind"
"""Name under which the metadata holds the `Behind`."""

_MARK: Final = re.compile(r"(?P<append>[0-9a-f]{32})-(?P<nth>[1-9][0-9]{0,8})")
_BEHIND: Final = re.compile(r"(?P<segment>-1|[0-9]{1,8}):(?P<entries>[0-9]{1,18})")


class UploadMark(NamedTuple):
    """Which upload of which append; no other one bears it. Of an append only the last upload can be registered."""

    append: str  # 32 hexadecimal digits
    nth: int  # from 1, in the order in which they were made

    def __str__(self) -> str:
        """As metadata holds it."""
        return f"{self.append}-{self.nth}"

    @staticmethod
    def parse(text: str | None) -> "UploadMark | None":
        """Read back `str(mark)`; None of anything else, as of an object from before there were marks."""
        found = _MARK.fullmatch(text or "")
        return UploadMark(found["append"], int(found["nth"])) if found else None


class Behind(NamedTuple):
    """What was registered of the ledger when the upload was made: a later registration only adds to it."""

    last_segment: int  # no later registration is of this number or a lower one; -1: there is none
    entries: int  # of all registered segments

    def __str__(self) -> str:
        """As metadata holds it."""
        return f"{self.last_segment}:{self.entries}"

    @staticmethod
    def parse(text: str | None) -> "Behind | None":
        """Read back `str(behind)`; None of anything else."""
        found = _BEHIND.fullmatch(text or "")
        return Behind(int(found["segment"]), int(found["entries"])) if found else None
