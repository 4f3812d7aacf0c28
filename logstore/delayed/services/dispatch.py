"""How one subscription reads in one process: what is due first, in order, then the log. Its consumers share this.

Every message that the subscription has not acknowledged is in one of four sets, or is still to be met in the log:

- tracked: its time has not come, and the tracker hands it over when it has;
- in the replay set: it is due, or was given back, and is handed out next;
- handed out: one consumer has it, and no other gets it until that one gives it back;
- behind the place of `LogReading`, which only moves forward over messages that are in one of the other sets, and turns
  back where one of them leaves its set without being handed out or acknowledged.

So nothing is handed out twice, and nothing is skipped. All of it is memory: after a crash the next process begins at
the mark-delete position and leaves out what is acknowledged.

Source: Pulsar's `PersistentDispatcherMultipleConsumers`; field cases 49, 61, 67 and 68.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Final

from pyroaring import BitMap

from logstore.cursors.services.subscriptions import Subscription
from logstore.cursors.state import CursorState, unite
from logstore.delayed import bitmaps
from logstore.delayed.rows import DelayedRows
from logstore.delayed.services.log_reading import Due, LogReading, ReplaySet, after
from logstore.delayed.services.shared_tracker import SharedTracker
from logstore.errors import SextonError
from logstore.log.entries import Entry
from logstore.log.services import ManagedLedger
from logstore.ports.catalog import Topic, Transactions
from logstore.positions import EARLIEST, LedgerId, Position

_DRAWN: Final = 1_000
"""Messages taken from the tracker at a time: a large number, because most of them may be acknowledged already."""

_UNKNOWN: Final = -1
"""How often a subscription was sought, or gave messages back, before it was asked."""


class Holding:
    """What one consumer has been handed out and has not given back."""

    def __init__(self) -> None:
        self.bits: dict[LedgerId, BitMap] = {}
        self.stale: dict[LedgerId, BitMap] = {}
        """Those of `bits` that were handed out before the subscription's last release, and may have been given back."""

    def add(self, position: Position) -> None:
        """Enter a message as handed out now."""
        self.bits.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        if position.ledger_id in self.stale:
            self.stale[position.ledger_id].discard(position.entry_id)

    def remove_to(self, position: Position) -> dict[LedgerId, BitMap]:
        """Take out, and return, everything up to and including the position."""
        kept = bitmaps.entries_behind(self.bits, position)
        removed, self.bits = bitmaps.subtract(self.bits, kept), kept
        return removed


class Dispatcher:
    """One subscription of one topic. Consumers in threads of their own may share it; receiving is one after the other.

    `receiving` is held while a consumer receives, and before the tracker's lock, which guards all sets.
    """

    def __init__(
        self,
        topic: Topic,
        shared: SharedTracker,
        *,
        state: Callable[[], Subscription],
        managed: ManagedLedger,
        transactions: Transactions,
        columns: Sequence[str],
    ) -> None:
        """Begin at the subscription's mark-delete position, which `state` tells with all that is acknowledged."""
        self.receiving = threading.Lock()
        self.holdings: list[Holding] = []
        self._topic, self._shared, self._ask = topic, shared, state
        self._state, self._seeks, self._releases = CursorState(EARLIEST), _UNKNOWN, _UNKNOWN
        self._replay = ReplaySet()
        self.columns, self._managed = columns, managed
        self._reading = LogReading(
            topic, self, lock=shared.lock, managed=managed, transactions=transactions, columns=columns
        )

    def offer(self, rows: DelayedRows) -> None:
        """See `Reading`."""
        for known in (self._state.acknowledged, self._replay.bits, *(one.bits for one in self.holdings)):
            rows = rows.without(known)
        for deliver_at_ms, position in zip(rows.deliver_at_ms.tolist(), rows.positions(), strict=True):
            if position > self._state.mark_delete:
                self._play((deliver_at_ms, position))

    def rewind(self, position: Position) -> None:
        """See `Reading`."""
        self._reading.rewind(position)

    def due_ms(self) -> int:
        """See `Postponing`."""
        return self._shared.due_ms()

    def postpone(self, ledger_id: LedgerId, later: Mapping[int, int]) -> None:
        """See `Postponing`."""
        with self._shared.lock:
            for due in self._shared.postpone(ledger_id, later):
                if not self._is_known(due[1]):
                    self._play(due)

    def receive(self, holding: Holding, max_entries: int) -> list[Entry]:
        """Hand out at most `max_entries` messages; see `Consumer.receive`. The caller holds `receiving`."""
        state = self._ask()
        self._shared.refresh()
        with self._shared.lock:
            self._update(state)
        with self._all_or_none(holding) as handed:
            got = self._due(handed, max_entries)
            got += self._log(handed, max_entries - len(got))
            got += self._due(handed, max_entries - len(got))  # what came due since it was fetched with the log
        return got

    def give_back(self, holding: Holding, positions: Sequence[Position]) -> None:
        """Let messages be handed out again, first of all; those that the holding does not have are left alone."""
        with self._shared.lock:
            for position in positions:
                if position.entry_id in holding.bits.get(position.ledger_id, ()):
                    self._return(holding, (0, position))

    def first_gap(self, holding: Holding) -> Position:
        """Return the first position that is neither acknowledged nor in the holding since the last release.

        Nobody can vouch for it: another consumer has it, its time has not come, it was given back, or it was not met in
        the log yet.
        """
        with self._shared.lock:
            mark, acknowledged = self._state.mark_delete, self._state.acknowledged
            others = [other.bits for other in self.holdings if other is not holding]
            gap = max(self._reading.place, after(mark))
            stale = bitmaps.intersect(holding.stale, holding.bits)
            for missing in (stale, self._replay.bits, self._shared.tracker.tracked(), *others):
                first = bitmaps.first_position(bitmaps.subtract(bitmaps.entries_behind(missing, mark), acknowledged))
                gap = gap if first is None else min(gap, first)
            return gap

    @property
    def releases(self) -> int:
        """How often the subscription had given messages back when a consumer last received."""
        return self._releases

    def acknowledged_to(self, holding: Holding, position: Position) -> None:
        """Take out of the holding what was acknowledged: should its transaction be aborted, it is handed out again."""
        with self._shared.lock:
            acknowledged = dict(self._state.acknowledged)
            unite(acknowledged, holding.remove_to(position))
            self._state = CursorState(self._state.mark_delete, acknowledged)

    def idle_s(self) -> float:
        """How long nothing becomes due of what is known here; infinite where nothing is known."""
        with self._shared.lock:
            times = [time for time in (self._replay.next_ms, self._shared.tracker.next_ms()) if time is not None]
            return max(0, min(times) - self._shared.due_ms()) / 1000 if times else inf

    def join(self) -> Holding:
        """Another consumer; wants the tracker's lock to be held."""
        self.holdings.append(Holding())
        return self.holdings[-1]

    def forget(self, holding: Holding) -> None:
        """Give back all that a consumer has; it is not coming back. Wants the tracker's lock to be held."""
        self.holdings.remove(holding)
        if not self.holdings:
            return  # this reading ends, and another one begins at the mark-delete position
        positions = (
            Position(ledger_id, entry_id) for ledger_id in sorted(holding.bits) for entry_id in holding.bits[ledger_id]
        )
        for position in positions:
            if not self._play((0, position)):
                return  # those behind it are met in the log, too

    def end(self) -> None:
        """Drop what was read ahead. Wants `receiving` to be held, or no consumer to be left."""
        self._reading.end()

    @contextmanager
    def _all_or_none(self, holding: Holding) -> Iterator[Callable[[Due], None]]:
        """Enter messages as handed out, and undo that if an error keeps the receiver from getting them."""
        handed: list[Due] = []

        def hand(due: Due) -> None:
            handed.append(due)
            holding.add(due[1])

        try:
            yield hand
        except BaseException as error:
            self.end()
            with self._shared.lock:
                for due in handed:
                    self._return(holding, due)
                if not isinstance(error, SextonError):  # it may have come at any place: between two sets, too
                    self.rewind(EARLIEST)
            raise

    def _update(self, told: Subscription) -> None:
        """Take over what was acknowledged, and turn back to what is not any more: a seek, or a transaction's abort."""
        before, self._state = self._state, told.state
        sought, self._seeks = self._seeks not in {_UNKNOWN, told.seeks}, told.seeks
        released, self._releases = self._releases != told.releases, told.releases
        for holding in self.holdings if released else ():
            holding.stale = {ledger_id: bits.copy() for ledger_id, bits in holding.bits.items()}
        if sought:
            self._replay.clear()
            for holding in self.holdings:
                holding.bits.clear()
            self.rewind(after(told.state.mark_delete))
        acknowledged = told.state.acknowledged
        changed = bitmaps.select_changed(before.acknowledged, acknowledged)
        given_back = bitmaps.subtract(bitmaps.entries_behind(changed, told.state.mark_delete), acknowledged)
        if first := bitmaps.first_position(given_back):
            self.rewind(first)
        for holding in self.holdings:
            kept = bitmaps.entries_behind(holding.bits, told.state.mark_delete)
            holding.bits = bitmaps.subtract(kept, acknowledged)

    def _due(self, hand: Callable[[Due], None], limit: int) -> list[Entry]:
        """Messages out of the replay set, which is filled from the tracker first."""
        got: list[Entry] = []
        while len(got) < limit and (popped := self._pop(limit - len(got))):
            try:
                entries = self._managed.entries_at(
                    self._topic, [position for _, position in popped], columns=self.columns
                )
            except SextonError:
                with self._shared.lock:
                    for due in popped:
                        self._play(due)
                raise
            got += entries
            found = {entry.position for entry in entries}
            with self._shared.lock:
                for due in popped:
                    if due[1] in found:
                        hand(due)
                    else:  # it was trimmed, or its transaction is not decided: the log knows
                        self.rewind(due[1])
        return got

    def _log(self, hand: Callable[[Due], None], limit: int) -> list[Entry]:
        """Messages of the log that are in no set."""
        got: list[Entry] = []
        self._reading.begin(self._state)
        while len(got) < limit and (read := self._reading.more(limit - len(got))) is not None:
            with self._shared.lock:
                for entry in read:
                    if not self._is_known(entry.position):
                        hand((entry.deliver_at_ms or 0, entry.position))
                        got.append(entry)
        return got

    def _pop(self, limit: int) -> list[Due]:
        """The first messages of the replay set that are not acknowledged."""
        while True:
            with self._shared.lock:
                while self._replay.has_room(limit) and self._shared.hand_over(_DRAWN):
                    pass
                is_behind = self._replay.has_room(limit) and self._shared.is_behind()
                popped = [] if is_behind else self._replay.pop(self._shared.due_ms(), limit)
                wanted = [due for due in popped if not self._state.covers(due[1])]
            if is_behind:
                self._shared.catch_up()
            elif wanted or not popped:
                return wanted

    def get(self, ledger_id: LedgerId, _default: BitMap, /) -> BitMap:
        """Entries of a ledger that a reader of the log leaves out now: see `LeftOut`."""
        with self._shared.lock:
            sets = (self._shared.tracker.tracked(), self._replay.bits, *(one.bits for one in self.holdings))
            return BitMap.union(BitMap(), *(one[ledger_id] for one in sets if ledger_id in one))

    def _is_known(self, position: Position) -> bool:
        """Whether the message is acknowledged, or in one of the sets."""
        if position in self._replay or self._shared.tracker.contains(position) or self._state.covers(position):
            return True
        return any(position.entry_id in one.bits.get(position.ledger_id, ()) for one in self.holdings)

    def _play(self, due: Due) -> bool:
        """Put a message into the replay set; where that is full, let it be met in the log, and answer False."""
        if self._replay.add(*due):
            return True
        self.rewind(due[1])
        return False

    def _return(self, holding: Holding, due: Due) -> None:
        bitmaps.remove_entries(holding.bits, {due[1].ledger_id: BitMap([due[1].entry_id])})
        self._play(due)
