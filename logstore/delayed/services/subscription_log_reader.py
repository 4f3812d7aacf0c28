"""Replay set of a subscription, and the subscription's reader of the log, which can be rewound.

Source: Pulsar's `MessageRedeliveryController`.
"""

import heapq
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Final, Protocol, cast

from pyroaring import BitMap

from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import CursorState
from logstore.log.entries import Entry
from logstore.log.services import TopicLogs
from logstore.log.services.entry_reader import ExcludedEntries, Postponer
from logstore.ports.catalog.log import Topic
from logstore.positions import EARLIEST, LedgerId, Position

MAX_REPLAY_MESSAGES: Final = 10_000
"""Maximum messages of a replay set. A message takes about 150 bytes. Further messages are read from the log again."""

DueMessage = tuple[int, Position]
"""Delivery time and position of a message. The time is in milliseconds since 1970, or 0 if it is not known."""


class ReplaySet:
    """Set of at most `max_messages` messages, ordered by (delivery time, ledger, entry). Not thread-safe."""

    def __init__(self, max_messages: int = MAX_REPLAY_MESSAGES) -> None:
        self._max_messages = max_messages
        self._heap: list[DueMessage] = []
        self.bits: dict[LedgerId, BitMap] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, position: Position) -> bool:
        return position.entry_id in self.bits.get(position.ledger_id, ())

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def has_room(self, limit: int) -> bool:
        return len(self._heap) < min(limit, self._max_messages)

    def add_unless_full(self, deliver_at_ms: int, position: Position) -> bool:
        """Add a message, unless the set is full. Return whether the set contains the message now."""
        if position in self:
            return True
        if len(self._heap) >= self._max_messages:
            return False
        heapq.heappush(self._heap, (deliver_at_ms, position))
        self.bits.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        return True

    def pop_due(self, due_ms: int, limit: int) -> list[DueMessage]:
        """Remove and return at most `limit` messages with times up to `due_ms`, inclusive, earliest first."""
        popped: list[DueMessage] = []
        while self._heap and self._heap[0][0] <= due_ms and len(popped) < limit:
            due = heapq.heappop(self._heap)
            popped.append(due)
            self.bits[due[1].ledger_id].discard(due[1].entry_id)
            if not self.bits[due[1].ledger_id]:
                del self.bits[due[1].ledger_id]
        return popped

    def clear(self) -> None:
        self._heap.clear()
        self.bits.clear()


class ScanFilter(ExcludedEntries, Postponer, Protocol):
    """Filter that leaves out messages that are tracked, held or in the replay set, and postpones waiting messages."""


class SubscriptionLogReader:
    """Reader of the log for one subscription. The first read begins after the mark-delete position.

    One thread at a time may read. Any thread that holds `lock` may rewind.
    """

    def __init__(
        self,
        topic: Topic,
        scan_filter: ScanFilter,
        *,
        lock: AbstractContextManager[Any],
        topic_logs: TopicLogs,
        transactions: Transactions,
        columns: Sequence[str],
    ) -> None:
        self._topic, self._filter, self._lock = topic, scan_filter, lock
        self._topic_logs, self._transactions, self._columns = topic_logs, transactions, columns
        self._next, self._rewind_to = EARLIEST, cast("Position | None", None)
        self._state = CursorState(EARLIEST)
        self._has_scanned = False
        self._scan: Generator[Entry] | None = None
        self._scan_end = EARLIEST

    @property
    def position(self) -> Position:
        """First position that is not read yet. The caller holds `lock`."""
        return self._next if self._rewind_to is None else min(self._next, self._rewind_to)

    def rewind(self, position: Position) -> None:
        self._rewind_to = position if self._rewind_to is None else min(self._rewind_to, position)

    def begin_pass(self, state: CursorState) -> None:
        """From now on leave out messages that `state` acknowledges. The next read looks up the end of the log again."""
        self._state, self._has_scanned = state, False

    def read_next_entries(self, limit: int) -> list[Entry] | None:
        """Return the next messages that may be delivered, at most `limit`, or `None` at the end of the log.

        The end is looked up once after each `begin_pass` and each rewind. An empty list does not mean that the end is
        reached. Returned messages may meanwhile be tracked, held or in the replay set.
        """
        if self._apply_rewind():
            self._has_scanned = False
        if self._scan is None:
            if self._has_scanned or not self._open_scan():
                return None
            self._has_scanned = True
        return self._read_open_scan(limit)

    def close_scan(self) -> None:
        if self._scan is not None:
            self._scan.close()
            self._scan = None

    def _read_open_scan(self, limit: int) -> list[Entry]:
        assert self._scan is not None
        entries = list(islice(self._scan, limit))
        self._next = position_after(entries[-1].position if len(entries) == limit else self._scan_end)
        if len(entries) < limit:
            self._scan = None
        return entries

    def _apply_rewind(self) -> bool:
        with self._lock:
            rewind_to, self._rewind_to = self._rewind_to, None
        if rewind_to is None:
            return False
        self.close_scan()
        self._next = min(self._next, rewind_to)
        return True

    def _open_scan(self) -> bool:
        start = max(self._next, position_after(self._state.mark_delete))
        frontier = self._transactions.read_frontier(self._topic.topic_id, from_ledger=start.ledger_id)
        if frontier.last is None or frontier.last < start:
            return False
        self._scan_end = frontier.last
        scan = self._topic_logs.scan(
            self._topic,
            from_position=start,
            columns=self._columns,
            cursor_state=self._state,
            frontier=frontier,
            excluded=self._filter,
            postponer=self._filter,
        )
        self._scan = cast("Generator[Entry]", scan)
        return True


def position_after(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)
