"""Dispatcher of one subscription in one process. It delivers due messages first, and then messages of the log.

All consumers of the subscription in the process share the dispatcher. Each unacknowledged message of the subscription
is in one of these states:

1. Tracked: the message is not due. The tracker offers the message when the message is due.
2. In the replay set: the message is due, or was given back, and is delivered next.
3. Held: one consumer has the message. No other consumer gets the message until this consumer gives it back.
4. After the position of the log reader. The reader advances only over acknowledged messages and messages
   in states 1 to 3. If an unacknowledged message leaves states 1 to 3, the reader rewinds to this message.

So no two consumers have the same message, and no message is skipped. All states are in memory. After a crash, the
next process begins at the mark-delete position, and leaves out acknowledged messages.

Source: Pulsar's `PersistentDispatcherMultipleConsumers` and `MessageRedeliveryController`. Prevented failures:
apache/pulsar#14327 (an abort gives back messages of another transaction), #19801 (disconnecting consumers wipes the
index), #6403 (a restarted consumer gets a message twice), #20638 (a restart delivers acknowledged messages).
"""

import heapq
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from math import inf
from typing import Any, Final, cast

from pyroaring import BitMap

from logstore.catalog.transactions.sql_transactions import Transactions
from logstore.cursors.cursor_state import CursorState, unite_entries
from logstore.delayed import entry_bitmaps
from logstore.delayed.delayed_rows import DelayedRows
from logstore.delayed.services.shared_tracker import SharedTracker
from logstore.errors import SextonError
from logstore.log.entries import Entry
from logstore.log.services import TopicLogs
from logstore.ports.catalog.cursors import StoredCursor
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


class SubscriptionLogReader:
    """Reader of the log for one subscription. The first read begins after the mark-delete position.

    One thread at a time may read. Any thread that holds `lock` may rewind.
    """

    def __init__(
        self,
        topic: Topic,
        scan_filter: "Dispatcher",
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


_MESSAGES_PER_OFFER: Final = 1_000
"""Maximum messages taken from the tracker at once. It is large, because most messages may be acknowledged."""

_UNKNOWN: Final = -1
"""Value of `_seeks` and `_releases` before the subscription is read."""


class ConsumerHolding:
    """Holding of a consumer: messages that the consumer has received and neither acknowledged nor given back."""

    def __init__(self) -> None:
        self.entries: dict[LedgerId, BitMap] = {}
        self.stale_entries: dict[LedgerId, BitMap] = {}
        """Entries received before the subscription's last release. This release may have given the entries back."""

    def add(self, position: Position) -> None:
        self.entries.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        if position.ledger_id in self.stale_entries:
            self.stale_entries[position.ledger_id].discard(position.entry_id)

    def remove_up_to(self, position: Position) -> dict[LedgerId, BitMap]:
        remaining = entry_bitmaps.entries_behind(self.entries, position)
        removed, self.entries = entry_bitmaps.subtract_entries(self.entries, remaining), remaining
        return removed


class Dispatcher:
    """Dispatcher of one subscription of one topic. The dispatcher begins at the mark-delete position.

    Threads may share the dispatcher. Lock order: `receiving`, then the tracker's lock. `receiving` is locked while a
    consumer receives. The tracker's lock guards the replay set and all holdings. Each `receive_messages` calls
    `read_subscription`.
    """

    def __init__(
        self,
        topic: Topic,
        shared: SharedTracker,
        *,
        read_subscription: Callable[[], StoredCursor],
        topic_logs: TopicLogs,
        transactions: Transactions,
        columns: Sequence[str],
    ) -> None:
        self.receiving = threading.Lock()
        self.holdings: list[ConsumerHolding] = []
        self._topic, self._shared, self._read_subscription = topic, shared, read_subscription
        self._state, self._seeks, self._releases = CursorState(EARLIEST), _UNKNOWN, _UNKNOWN
        self._replay = ReplaySet()
        self.columns, self._topic_logs = columns, topic_logs
        self._reader = SubscriptionLogReader(
            topic, self, lock=shared.lock, topic_logs=topic_logs, transactions=transactions, columns=columns
        )

    def add_due_messages(self, rows: DelayedRows) -> None:
        """Add due messages to the replay set, except messages that are already in this set, held or acknowledged."""
        for known in (self._state.acknowledged, self._replay.bits, *(holding.entries for holding in self.holdings)):
            rows = rows.drop_entries(known)
        for deliver_at_ms, position in zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True):
            if position > self._state.mark_delete:
                self._replay_or_rewind((deliver_at_ms, position))

    def rewind(self, position: Position) -> None:
        self._reader.rewind(position)

    def due_ms(self) -> int:
        return self._shared.due_ms()

    def postpone(self, ledger_id: LedgerId, deliver_at_ms_by_entry: Mapping[int, int]) -> None:
        """Track messages of the log that are not due. Messages that have become due go into the replay set."""
        with self._shared.lock:
            for due in self._shared.track_waiting_and_return_due(ledger_id, deliver_at_ms_by_entry):
                if not self._is_known(due[1]):
                    self._replay_or_rewind(due)

    def receive_messages(self, holding: ConsumerHolding, max_entries: int) -> list[Entry]:
        """Deliver at most `max_entries` messages. The caller holds `receiving`."""
        subscription = self._read_subscription()
        self._shared.refresh_bucket_list_if_old()
        with self._shared.lock:
            self._apply_acknowledgements_and_seeks(subscription)
        with self._deliver_all_or_none(holding) as deliver:
            received = self._receive_due(deliver, max_entries)
            received += self._receive_log(deliver, max_entries - len(received))
            # Messages that were postponed while the log was read may be due by now.
            received += self._receive_due(deliver, max_entries - len(received))
        return received

    def give_back(self, holding: ConsumerHolding, positions: Sequence[Position]) -> None:
        with self._shared.lock:
            for position in positions:
                if position.entry_id in holding.entries.get(position.ledger_id, ()):
                    self._take_back(holding, (0, position))

    def first_unreceived_position(self, holding: ConsumerHolding) -> Position:
        """Return the first unacknowledged position not received by the consumer of `holding` since the last release.

        The message at this position was received before the subscription's last release, is held by another consumer,
        is not due, was given back, or is not read yet.
        """
        with self._shared.lock:
            mark, acknowledged = self._state.mark_delete, self._state.acknowledged
            others = [other.entries for other in self.holdings if other is not holding]
            gap = max(self._reader.position, position_after(mark))
            stale_entries = entry_bitmaps.intersect_entries(holding.stale_entries, holding.entries)
            for missing in (stale_entries, self._replay.bits, self._shared.tracker.tracked_entries(), *others):
                first = entry_bitmaps.first_position(
                    entry_bitmaps.subtract_entries(entry_bitmaps.entries_behind(missing, mark), acknowledged)
                )
                gap = gap if first is None else min(gap, first)
            return gap

    @property
    def releases(self) -> int:
        """Number of the subscription's releases at the last `receive_messages`."""
        return self._releases

    def record_acknowledged(self, holding: ConsumerHolding, position: Position) -> None:
        """Treat messages up to `position` as acknowledged, and remove them from `holding`. An abort gives them back."""
        with self._shared.lock:
            acknowledged = dict(self._state.acknowledged)
            unite_entries(acknowledged, holding.remove_up_to(position))
            self._state = CursorState(self._state.mark_delete, acknowledged)

    def seconds_until_due(self) -> float:
        """Return the seconds until a message of the tracker or the replay set is due. Without any, return infinity."""
        with self._shared.lock:
            times = [time for time in (self._replay.next_ms, self._shared.tracker.next_ms()) if time is not None]
            return max(0, min(times) - self._shared.due_ms()) / 1000 if times else inf

    def add_consumer(self) -> ConsumerHolding:
        """Return the holding of a new consumer. The caller holds the tracker's lock."""
        self.holdings.append(ConsumerHolding())
        return self.holdings[-1]

    def remove_consumer(self, holding: ConsumerHolding) -> None:
        """Remove a consumer and give back its messages. The caller holds the tracker's lock."""
        self.holdings.remove(holding)
        if not self.holdings:
            return  # the next dispatcher begins at the mark-delete position
        positions = (
            Position(ledger_id, entry_id)
            for ledger_id in sorted(holding.entries)
            for entry_id in holding.entries[ledger_id]
        )
        for position in positions:
            if not self._replay_or_rewind((0, position)):
                return  # the replay set is full, so the other messages are read from the log

    def close_scan(self) -> None:
        """Drop entries that were read ahead. While there are consumers, the caller must hold `receiving`."""
        self._reader.close_scan()

    @contextmanager
    def _deliver_all_or_none(self, holding: ConsumerHolding) -> Iterator[Callable[[DueMessage], None]]:
        """Yield a function that adds messages to the holding. If the `with` block raises, take these messages back."""
        delivered: list[DueMessage] = []

        def deliver(message: DueMessage) -> None:
            delivered.append(message)
            holding.add(message[1])

        try:
            yield deliver
        except BaseException as error:
            self.close_scan()
            with self._shared.lock:
                for message in delivered:
                    self._take_back(holding, message)
                if not isinstance(error, SextonError):
                    # The error may have interrupted a change of several sets.
                    self.rewind(EARLIEST)
            raise

    def _apply_acknowledgements_and_seeks(self, subscription: StoredCursor) -> None:
        """Apply the subscription's acknowledgements. Rewind to entries that a seek or an abort has given back."""
        before, self._state = self._state, subscription.state
        mark_delete, acknowledged = subscription.state.mark_delete, subscription.state.acknowledged
        was_sought, self._seeks = self._seeks not in {_UNKNOWN, subscription.seeks}, subscription.seeks
        has_released, self._releases = self._releases != subscription.releases, subscription.releases
        for holding in self.holdings if has_released else ():
            holding.stale_entries = {ledger_id: bits.copy() for ledger_id, bits in holding.entries.items()}
        if was_sought:
            self._replay.clear()
            for holding in self.holdings:
                holding.entries.clear()
            self.rewind(position_after(mark_delete))
        changed = entry_bitmaps.select_changed_bitmaps(before.acknowledged, acknowledged)
        given_back = entry_bitmaps.subtract_entries(entry_bitmaps.entries_behind(changed, mark_delete), acknowledged)
        if first := entry_bitmaps.first_position(given_back):
            self.rewind(first)
        for holding in self.holdings:
            remaining = entry_bitmaps.entries_behind(holding.entries, mark_delete)
            holding.entries = entry_bitmaps.subtract_entries(remaining, acknowledged)

    def _receive_due(self, deliver: Callable[[DueMessage], None], limit: int) -> list[Entry]:
        received: list[Entry] = []
        while len(received) < limit and (popped := self._refill_replay_set_and_pop(limit - len(received))):
            try:
                entries = self._topic_logs.read_visible_entries_at(
                    self._topic, [position for _, position in popped], columns=self.columns
                )
            except SextonError:
                with self._shared.lock:
                    for message in popped:
                        self._replay_or_rewind(message)
                raise
            received += entries
            fetched = {entry.position for entry in entries}
            with self._shared.lock:
                for message in popped:
                    if message[1] in fetched:
                        deliver(message)
                    else:  # the message was trimmed or is in an open transaction, which the log reader handles
                        self.rewind(message[1])
        return received

    def _receive_log(self, deliver: Callable[[DueMessage], None], limit: int) -> list[Entry]:
        received: list[Entry] = []
        self._reader.begin_pass(self._state)
        while len(received) < limit and (entries := self._reader.read_next_entries(limit - len(received))) is not None:
            with self._shared.lock:
                for entry in entries:
                    if not self._is_known(entry.position):
                        deliver((entry.deliver_at_ms or 0, entry.position))
                        received.append(entry)
        return received

    def _refill_replay_set_and_pop(self, limit: int) -> list[DueMessage]:
        while True:
            with self._shared.lock:
                while self._replay.has_room(limit) and self._shared.offer_due_and_check_more(_MESSAGES_PER_OFFER):
                    pass
                must_read = self._replay.has_room(limit) and self._shared.must_read()
                popped = [] if must_read else self._replay.pop_due(self._shared.due_ms(), limit)
                wanted = [message for message in popped if not self._state.covers(message[1])]
            if must_read:
                self._shared.load_due_segment_and_check_lost()
            elif wanted or not popped:
                return wanted

    def get(self, ledger_id: LedgerId, _default: BitMap, /) -> BitMap:
        """Return the entries of a ledger that the log reader leaves out now: tracked, held, and in the replay set."""
        with self._shared.lock:
            held = (holding.entries for holding in self.holdings)
            entry_sets = (self._shared.tracker.tracked_entries(), self._replay.bits, *held)
            return BitMap.union(BitMap(), *(entries[ledger_id] for entries in entry_sets if ledger_id in entries))

    def _is_known(self, position: Position) -> bool:
        if position in self._replay or self._shared.tracker.contains(position) or self._state.covers(position):
            return True
        return any(position.entry_id in holding.entries.get(position.ledger_id, ()) for holding in self.holdings)

    def _replay_or_rewind(self, message: DueMessage) -> bool:
        """Add a message to the replay set. If the set is full, rewind to the message and return `False`."""
        if self._replay.add_unless_full(*message):
            return True
        self.rewind(message[1])
        return False

    def _take_back(self, holding: ConsumerHolding, message: DueMessage) -> None:
        position = message[1]
        entry_bitmaps.remove_entries(holding.entries, {position.ledger_id: BitMap([position.entry_id])})
        self._replay_or_rewind(message)
