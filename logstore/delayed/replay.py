"""The replay set of a subscription: messages that are handed out before the log is read on.

Source: Pulsar's `MessageRedeliveryController`, which holds what is due and what is to be delivered again.
"""

import heapq
from typing import Final

from pyroaring import BitMap

from logstore.positions import LedgerId, Position

MOST_REPLAYED: Final = 10_000
"""Messages; some 150 bytes each. A subscription that is slower reads the rest in the log."""

Due = tuple[int, Position]
"""A delivery time, milliseconds since 1970 (0: none is known), and where the message stands."""


class ReplaySet:
    """Messages in order of (delivery time, ledger, entry), each once. Not for several threads at once."""

    def __init__(self, most: int = MOST_REPLAYED) -> None:
        """Hold at most `most` messages."""
        self._most = most
        self._heap: list[Due] = []
        self.bits: dict[LedgerId, BitMap] = {}
        """The entries, by ledger."""

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, position: Position) -> bool:
        return position.entry_id in self.bits.get(position.ledger_id, ())

    @property
    def next_ms(self) -> int | None:
        """When the first of them is due; None where there is none."""
        return self._heap[0][0] if self._heap else None

    def has_room(self, limit: int) -> bool:
        """Whether it holds fewer than `limit` messages, and one more can be added."""
        return len(self._heap) < min(limit, self._most)

    def add(self, deliver_at_ms: int, position: Position) -> bool:
        """Put a message in; whether it is in now: there is no room for more than the limit."""
        if position in self:
            return True
        if len(self._heap) >= self._most:
            return False
        heapq.heappush(self._heap, (deliver_at_ms, position))
        self.bits.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        return True

    def pop(self, due_ms: int, limit: int) -> list[Due]:
        """Take out the first messages that are due at `due_ms` or before, at most `limit`."""
        taken: list[Due] = []
        while self._heap and self._heap[0][0] <= due_ms and len(taken) < limit:
            due = heapq.heappop(self._heap)
            taken.append(due)
            self.bits[due[1].ledger_id].discard(due[1].entry_id)
            if not self.bits[due[1].ledger_id]:
                del self.bits[due[1].ledger_id]
        return taken

    def clear(self) -> None:
        """Forget all of them."""
        self._heap.clear()
        self.bits.clear()
