"""Replay set of a subscription, and its reader of the log, which can be rewound.

Messages of the replay set are delivered before the log is read further.

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
from logstore.log.services.view import ExcludedEntries, Postponer
from logstore.ports.catalog import Topic, Transactions
from logstore.positions import EARLIEST, LedgerId, Position

MAX_REPLAY_MESSAGES: Final = 10_000
"""Messages take some 150 bytes each. A slow subscription finds further messages in the log."""

DueMessage = tuple[int, Position]
"""Delivery time in milliseconds since 1970 (0 if unknown), and position of a message."""


class ReplaySet:
    """At most `max_messages` distinct messages, by (delivery time, ledger, entry). It is not thread-safe."""

    def __init__(self, max_messages: int = MAX_REPLAY_MESSAGES) -> None:
        self._max_messages = max_messages
        self._heap: list[DueMessage] = []
        self.bits: dict[LedgerId, BitMap] = {}
        """Entry ids by ledger."""

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, position: Position) -> bool:
        return position.entry_id in self.bits.get(position.ledger_id, ())

    @property
    def next_ms(self) -> int | None:
        """Earliest delivery time. `None` if the set is empty."""
        return self._heap[0][0] if self._heap else None

    def has_room(self, limit: int) -> bool:
        """Return whether the set has fewer than `limit` messages and is not full."""
        return len(self._heap) < min(limit, self._max_messages)

    def add(self, deliver_at_ms: int, position: Position) -> bool:
        """Add a message. Return whether the set contains it now: a full set refuses new messages."""
        if position in self:
            return True
        if len(self._heap) >= self._max_messages:
            return False
        heapq.heappush(self._heap, (deliver_at_ms, position))
        self.bits.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        return True

    def pop(self, due_ms: int, limit: int) -> list[DueMessage]:
        """Remove and return the first messages that are due at `due_ms`, inclusive, at most `limit`."""
        popped: list[DueMessage] = []
        while self._heap and self._heap[0][0] <= due_ms and len(popped) < limit:
            due = heapq.heappop(self._heap)
            popped.append(due)
            self.bits[due[1].ledger_id].discard(due[1].entry_id)
            if not self.bits[due[1].ledger_id]:
                del self.bits[due[1].ledger_id]
        return popped

    def clear(self) -> None:
        """Remove all messages."""
        self._heap.clear()
        self.bits.clear()


class ScanFilter(ExcludedEntries, Postponer, Protocol):
    """Filter of a scan: it leaves out known messages, and postpones messages that are not due."""


class LogReader:
    """Read position of a subscription in the log, at first before its first entry.

    One thread at a time may read. Any thread that holds `lock` may rewind.
    """

    def __init__(
        self,
        topic: Topic,
        scan_filter: ScanFilter,
        *,
        lock: AbstractContextManager[Any],
        managed: ManagedLedger,
        transactions: Transactions,
        columns: Sequence[str],
    ) -> None:
        self._topic, self._filter, self._lock = topic, scan_filter, lock
        self._managed, self._transactions, self._columns = managed, transactions, columns
        self._next, self._rewind_to = EARLIEST, cast("Position | None", None)
        self._state = CursorState(EARLIEST)
        self._has_scanned = False
        self._scan: Generator[Entry] | None = None
        self._scan_end = EARLIEST

    @property
    def position(self) -> Position:
        """First position that is not read yet. The caller holds the lock."""
        return self._next if self._rewind_to is None else min(self._next, self._rewind_to)

    def rewind(self, position: Position) -> None:
        """Read again from a position. The caller holds the lock."""
        self._rewind_to = position if self._rewind_to is None else min(self._rewind_to, position)

    def start(self, state: CursorState) -> None:
        """Leave out acknowledged messages from now on, and allow one more look for the end of the log."""
        self._state, self._has_scanned = state, False

    def read_more(self, limit: int) -> list[Entry] | None:
        """Return the next due messages, at most `limit`, or `None` at the end of the log as it was last looked up.

        Some of these messages may be known to the filter by now. Fewer than `limit` messages do not mean the end.

        Raises:
            MissingData, CorruptData, StoreUnavailable, CatalogBusy: The errors of `ManagedLedger.scan`.
        """
        if self._apply_rewind():
            self._has_scanned = False
        if self._scan is None:
            if self._has_scanned or not self._open_scan():
                return None
            self._has_scanned = True
        return self._read(limit)

    def close(self) -> None:
        """Close the scan, and drop what it has read ahead."""
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _read(self, limit: int) -> list[Entry]:
        assert self._scan is not None
        entries = list(islice(self._scan, limit))
        self._next = position_after(entries[-1].position if len(entries) == limit else self._scan_end)
        if len(entries) < limit:
            self._scan = None
        return entries

    def _apply_rewind(self) -> bool:
        """Apply a requested rewind. Return whether there was one. It ends the scan, which may lack messages."""
        with self._lock:
            rewind_to, self._rewind_to = self._rewind_to, None
        if rewind_to is None:
            return False
        self.close()
        self._next = min(self._next, rewind_to)
        return True

    def _open_scan(self) -> bool:
        """Open a scan at the next position. Return `False` if readers may see nothing there."""
        start = max(self._next, position_after(self._state.mark_delete))
        frontier = self._transactions.frontier(self._topic.topic_id, from_ledger=start.ledger_id)
        if frontier.last is None or frontier.last < start:
            return False
        self._scan_end = frontier.last
        scan = self._managed.scan(
            self._topic,
            from_position=start,
            columns=self._columns,
            cursor_state=self._state,
            frontier=frontier,
            without=self._filter,
            postponing=self._filter,
        )
        self._scan = cast("Generator[Entry]", scan)
        return True


def position_after(position: Position) -> Position:
    """Return the next position in the same ledger."""
    return Position(position.ledger_id, position.entry_id + 1)
