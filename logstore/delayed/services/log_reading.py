"""Where one subscription reads: forward in the log, back where something is to be met again, and first its replay set.

The replay set has messages that are handed out before the log is read on.

Source: Pulsar's `MessageRedeliveryController`, which holds what is due and what is to be delivered again.
"""

import heapq
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Final, Protocol, cast

from pyroaring import BitMap

from logstore.cursors.state import CursorState
from logstore.log.entries import Entry
from logstore.log.services import ManagedLedger
from logstore.log.services.view import LeftOut, Postponing
from logstore.ports.catalog import Topic, Transactions
from logstore.positions import EARLIEST, LedgerId, Position

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


class Passing(LeftOut, Postponing, Protocol):
    """What the log is read past: what is in a set already, and what is not due."""


class LogReading:
    """The place of a subscription in the log. It is read by one thread at a time; any may turn it back."""

    def __init__(
        self,
        topic: Topic,
        passing: Passing,
        *,
        lock: AbstractContextManager[Any],
        managed: ManagedLedger,
        transactions: Transactions,
        columns: Sequence[str],
    ) -> None:
        """Begin at the log's first entry; `lock` guards the position that `rewind` sets."""
        self._topic, self._passing, self._lock = topic, passing, lock
        self._managed, self._transactions, self._columns = managed, transactions, columns
        self._at, self._turn_to = EARLIEST, cast("Position | None", None)
        self._state = CursorState(EARLIEST)
        self._opened = False
        self._scan: Generator[Entry] | None = None
        self._upto = EARLIEST

    @property
    def place(self) -> Position:
        """The first position that was not met yet. Wants the lock to be held."""
        return self._at if self._turn_to is None else min(self._at, self._turn_to)

    def rewind(self, position: Position) -> None:
        """Let what stands from there on be met again. Wants the lock to be held."""
        self._turn_to = position if self._turn_to is None else min(self._turn_to, position)

    def begin(self, state: CursorState) -> None:
        """From now on leave out what is acknowledged here; ask for the end of the log once, where it is reached."""
        self._state, self._opened = state, False

    def more(self, limit: int) -> list[Entry] | None:
        """The next messages that are due, at most `limit`; None where the end is reached that was asked for last.

        Some of them may be in a set by now. Fewer than asked for do not say that the end is reached.

        Raises:
            MissingData, CorruptData, StoreUnavailable, CatalogBusy: As `ManagedLedger.scan`.
        """
        if self._turn():
            self._opened = False
        if self._scan is None:
            if self._opened or not self._open():
                return None
            self._opened = True
        return self._read(limit)

    def end(self) -> None:
        """Drop what was read ahead."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _read(self, limit: int) -> list[Entry]:
        assert self._scan is not None
        read = list(islice(self._scan, limit))
        self._at = after(read[-1].position if len(read) == limit else self._upto)
        if len(read) < limit:
            self._scan = None
        return read

    def _turn(self) -> bool:
        """Turn back if a consumer asked for it; what was read ahead may lack what is to be read now."""
        with self._lock:
            turn_to, self._turn_to = self._turn_to, None
        if turn_to is None:
            return False
        self.end()
        self._at = min(self._at, turn_to)
        return True

    def _open(self) -> bool:
        """Read on from where we are; False when nothing lies there that may be seen."""
        at = max(self._at, after(self._state.mark_delete))
        frontier = self._transactions.frontier(self._topic.topic_id, from_ledger=at.ledger_id)
        if frontier.last is None or frontier.last < at:
            return False
        self._upto = frontier.last
        scan = self._managed.scan(
            self._topic,
            from_position=at,
            columns=self._columns,
            cursor_state=self._state,
            frontier=frontier,
            without=self._passing,
            postponing=self._passing,
        )
        self._scan = cast("Generator[Entry]", scan)
        return True


def after(position: Position) -> Position:
    """The position behind an entry."""
    return Position(position.ledger_id, position.entry_id + 1)
