"""What is known while one segment finds its place: the segment, what the process remembers, races lost."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from logstore.ports.catalog import Ledger, ProducerAdvance
from logstore.positions import LedgerId

_STRIDE: Final = 16
"""How far ahead a loser looks at most, and twice as far with every further loss: many conditional puts on one
key are slow, and a large upload among quick small ones would otherwise lose for ever."""

_MAX_STRIDE: Final = 1 << 16
_MAX_NUMBER: Final = 99_999_999  # eight digits in a key
_PRODUCERS: Final = 10_000  # remembered for a topic at most


@dataclass(slots=True, kw_only=True)
class Hints:
    """What this process remembers of a topic; may be old, and is forgotten when the catalog disagrees."""

    ledger: Ledger | None = None
    epoch: int = 0
    sequences: dict[str, int] = field(default_factory=dict)

    def remember(self, sequences: Mapping[str, int]) -> None:
        """Add producers' registered sequence ids, within bounds."""
        if len(self.sequences) + len(sequences) > _PRODUCERS:
            self.sequences.clear()
        self.sequences.update(sequences)

    def forget(self) -> None:
        """Remember nothing."""
        self.ledger = None
        self.sequences.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """An encoded segment on its way."""

    content: bytes
    entries: int
    sha256: str  # of the content, hexadecimal
    producers: tuple[ProducerAdvance, ...]
    upload: str  # unique: tells this upload from any other, even of equal content


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a segment's entries begin."""

    ledger_id: LedgerId
    first_entry: int


@dataclass(slots=True)
class Race:
    """One segment's attempts so far."""

    deadline_s: float
    losses: int = 0
    tried: dict[LedgerId, int] = field(default_factory=dict)  # highest number tried
    fenced: set[LedgerId] = field(default_factory=set)

    def behind(self, ledger: Ledger) -> int:
        """The highest number that is of no use any more; -1: none."""
        return max(ledger.last_segment, self.tried.get(ledger.ledger_id, -1))

    def has_numbers(self, ledger: Ledger) -> bool:
        """Whether the ledger has a number left for whatever `next_number` draws."""
        return self.behind(ledger) <= _MAX_NUMBER - _MAX_STRIDE

    def next_number(self, ledger: Ledger) -> int:
        """The number to try: the next one at first, then one at random ahead of what was lost to others."""
        reach = min(_STRIDE << max(0, self.losses - 1), _MAX_STRIDE)
        return self.behind(ledger) + (random.randint(1, reach) if self.losses else 1)  # noqa: S311 - spreads writers
