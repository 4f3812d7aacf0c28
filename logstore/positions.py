"""Where an entry is: a ledger and an entry in it.

Source: Pulsar's `Position`; entry -1 stands before a ledger's first entry.
"""

import re
from dataclasses import dataclass
from typing import Final, NewType

from logstore.errors import InvalidInput

LedgerId = NewType("LedgerId", int)
TopicId = NewType("TopicId", int)

_FORM = re.compile(r"(?P<ledger>0|[1-9][0-9]{0,18}):(?P<entry>-1|0|[1-9][0-9]{0,18})")
_MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """One entry. Ids grow along a ledger list, so positions of a topic order by (ledger, entry)."""

    ledger_id: LedgerId
    entry_id: int  # -1: before the ledger's first entry

    @staticmethod
    def parse(text: str, *, field: str = "position") -> "Position":
        """Read `ledger:entry`.

        Raises:
            InvalidInput: Not two canonical decimals, or beyond 2**63 - 1.
        """
        found = _FORM.fullmatch(text)
        if not found or max(int(found["ledger"]), int(found["entry"])) > _MAX_ID:
            raise InvalidInput(field, expected="ledger:entry, as 12:0", found=text)
        return Position(LedgerId(int(found["ledger"])), int(found["entry"]))

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(LedgerId(-1), -1)
"""Position before the first entry of every log."""
