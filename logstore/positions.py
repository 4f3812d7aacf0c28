"""Position of an entry: a ledger and the entry's number in that ledger. Source: Pulsar's `Position`."""

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
    """Position of one entry. Positions are ordered by ledger and entry, because ids ascend along a ledger list."""

    ledger_id: LedgerId
    entry_id: int  # -1: before the ledger's first entry

    @staticmethod
    def parse(text: str, *, field: str = "position") -> "Position":
        """Parse `ledger:entry`. Raise `InvalidInput` if a number is not a canonical decimal or exceeds 2**63 - 1."""
        match = _FORM.fullmatch(text)
        if not match or max(int(match["ledger"]), int(match["entry"])) > _MAX_ID:
            raise InvalidInput(field, expected="ledger:entry, as 12:0", found=text)
        return Position(LedgerId(int(match["ledger"])), int(match["entry"]))

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST: Final = Position(LedgerId(-1), -1)
"""Position before the first entry of every log."""
